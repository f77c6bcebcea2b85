"""Series that are written often, found once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hisparse.telemetry.histogram import Histogram, as_samples, check_sendable, observe_each
from hisparse.telemetry.values import MAX_NUMBER, ItemError, read_increment

Refuse = Callable[[Any, Exception], None]


class CounterHandle:
    """One counter of a container; made by `OffloadingConnectorStats.counter`."""

    __slots__ = ("_key", "_refuse", "_values")

    def __init__(self, values: dict[str, int | float], key: str, *, refuse: Refuse) -> None:
        """Write to ``values[key]``; `refuse` counts what cannot be used."""
        self._values = values
        self._key = key
        self._refuse = refuse

    def add(self, amount: float = 1) -> None:
        """Add `amount` >= 0; what is no such number is skipped and counted."""
        values, key = self._values, self._key
        # Exact types: asking an abstract base class takes as long as the rest.
        if (type(amount) is int or type(amount) is float) and amount >= 0:
            total = values.get(key, 0) + amount
            if total <= MAX_NUMBER:
                values[key] = total
                return
        try:
            total = values.get(key, 0) + read_increment(amount, "an increment")
            check_sendable(total, key)
            values[key] = total
        except ItemError as error:
            self._refuse(key, error)


class RefusedCounter(CounterHandle):
    """A counter that could not be made: what is added to it is skipped, and counted."""

    __slots__ = ("_error",)

    def __init__(self, name: Any, error: ItemError, *, refuse: Refuse) -> None:
        """Refuse with `error`, which says why there is no such counter."""
        super().__init__({}, "", refuse=refuse)
        self._key = name
        self._error = error

    def add(self, amount: float = 1) -> None:  # noqa: ARG002  nothing can be done with it
        """Count one skipped item."""
        self._refuse(self._key, self._error)


class HistogramHandle:
    """One histogram of a container; made by `OffloadingConnectorStats.histogram`."""

    __slots__ = ("_bounds", "_key", "_refuse", "_values")

    def __init__(self, values: dict[str, Histogram], key: str, *, bounds: tuple[float, ...], refuse: Refuse) -> None:
        """Write to ``values[key]``, a histogram over `bounds`; `refuse` counts what cannot be used."""
        self._values = values
        self._key = key
        self._bounds = bounds
        self._refuse = refuse

    def observe(self, samples: "list[float] | np.ndarray[Any, Any]") -> None:
        """Count samples >= 0; each that is no such number is skipped and counted."""
        histogram = self._values.get(self._key)
        if histogram is None:
            histogram = self._values[self._key] = Histogram.empty(self._bounds)
        if isinstance(samples, list) and histogram.observe_list(samples):
            return
        try:
            found = as_samples(samples)
            if isinstance(found, np.ndarray):
                if histogram.observe_array(found):
                    return
                found = found.ravel().tolist()
            for error in observe_each(histogram, found if isinstance(found, list) else [found], self._key):
                self._refuse(self._key, error)
        except ItemError as error:
            self._refuse(self._key, error)


class RefusedHistogram(HistogramHandle):
    """A histogram that could not be made: a call that gives it samples is skipped, and counted."""

    __slots__ = ("_error",)

    def __init__(self, name: Any, error: ItemError, *, refuse: Refuse) -> None:
        """Refuse with `error`, which says why there is no such histogram."""
        super().__init__({}, "", bounds=(), refuse=refuse)
        self._key = name
        self._error = error

    def observe(self, samples: "list[float] | np.ndarray[Any, Any]") -> None:
        """Count one skipped item for each sample, and at least one."""
        found = samples.size if isinstance(samples, np.ndarray) else len(samples) if isinstance(samples, list) else 1
        for _ in range(max(1, found)):
            self._refuse(self._key, self._error)
