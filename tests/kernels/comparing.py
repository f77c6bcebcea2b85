"""How kernel tests write arrays and compare answers and states."""

import numpy as np

from hisparse.kernels import Residency, Resolution

FIELDS = ("slots", "miss_request", "miss_position", "miss_slot", "counts")


def int32(*values: object) -> np.ndarray:
    """Return an int32 array of the values."""
    return np.array(values, np.int32)


def assert_same_resolution(got: Resolution, expected: Resolution) -> None:
    """Claim that two resolutions are equal bit for bit, dtypes included."""
    for field in FIELDS:
        a, b = getattr(got, field), getattr(expected, field)
        assert a.dtype == b.dtype, field
        np.testing.assert_array_equal(a, b, err_msg=field)


def snapshot(residency: Residency) -> list[bytes]:
    """Return everything that can be seen of the state."""
    requests = range(residency.settings.max_requests)
    return [array(r).tobytes() for r in requests for array in (residency.recency, residency.positions)]
