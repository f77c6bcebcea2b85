"""Every error the package raises, in one tree.

::

    HiSparseError
    ├── InputError (ValueError)              the call is wrong; fix the argument and call again
    │   ├── ArrayError                       dtype, shape or layout of an array
    │   ├── PositionError                    position or request out of range, or repeated in one row
    │   ├── HotBufferError                   the hot buffer cannot hold what one step selects
    │   ├── SettingError                     a setting has no meaning or contradicts another
    │   ├── UnsupportedModelError            the model cannot be served; use its stock cache
    │   └── MetricError                      a metric is defined or fed against its metadata
    ├── CapacityError (RuntimeError)         no room; nothing was changed
    │   ├── HostPoolFullError                wait for a request to end, or raise the pool's knob
    │   ├── DevicePagesFullError             wait for pages to be spilled, or raise the device's knob
    │   └── DiskFullError (OSError)          free disk space, or move the pool
    ├── StorageError (OSError)               the pool's file or directory cannot be used
    │   └── CorruptPoolError                 rows on disk are not what was written; nothing of them was served
    ├── StateError (RuntimeError)            the call does not fit what happened before; reset and start again
    └── AccountingError (AssertionError)     a recount failed: a fault of this package, please report it

A message has what, the value, the limit and the knob.
"""

__all__ = [
    "AccountingError",
    "ArrayError",
    "CapacityError",
    "CorruptPoolError",
    "DevicePagesFullError",
    "DiskFullError",
    "HiSparseError",
    "HostPoolFullError",
    "HotBufferError",
    "InputError",
    "MetricError",
    "PositionError",
    "SettingError",
    "StateError",
    "StorageError",
    "UnsupportedModelError",
]


class HiSparseError(Exception):
    """Root of every error this package raises."""


class InputError(HiSparseError, ValueError):
    """The call is wrong; nothing was changed."""


class ArrayError(InputError):
    """An array has the wrong dtype, shape or layout."""


class PositionError(InputError):
    """A position or request is out of range, or repeated within one row."""


class HotBufferError(InputError):
    """The hot buffer cannot hold what one step selects."""


class SettingError(InputError):
    """A setting has no meaning or contradicts another one."""


class UnsupportedModelError(InputError):
    """The model cannot be served from a hot buffer; its stock cache still works."""


class MetricError(InputError):
    """A metric is defined or fed against its metadata."""


class CapacityError(HiSparseError, RuntimeError):
    """There is no room; nothing was changed."""


class HostPoolFullError(CapacityError):
    """The host pool has too few free pages for the request."""


class DevicePagesFullError(CapacityError):
    """The device has too few free pages for the request, now."""


class DiskFullError(CapacityError, OSError):
    """The disk under a file pool has no room for the pages asked for."""


class StorageError(HiSparseError, OSError):
    """A pool's file or directory cannot be created, opened or mapped."""


class CorruptPoolError(StorageError):
    """Rows read from a pool file are not the rows that were written."""


class StateError(HiSparseError, RuntimeError):
    """The call does not fit what happened before."""


class AccountingError(HiSparseError, AssertionError):
    """A recount does not give the number that was kept."""
