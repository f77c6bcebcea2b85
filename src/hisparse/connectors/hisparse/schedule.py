"""When the next sample is due."""

from collections.abc import Callable

from hisparse.errors import SettingError


class Schedule:
    """Due at first, then by time or by calls since `restart`, whichever comes first."""

    def __init__(self, every_seconds: float, every_calls: int, clock: Callable[[], float]) -> None:
        """Start due.

        Raises:
            SettingError: A period is not positive.
        """
        if not every_seconds > 0:
            raise SettingError(f"every_seconds must be > 0, got {every_seconds}")
        if every_calls < 1:
            raise SettingError(f"every_calls must be at least 1, got {every_calls}")
        self._every_seconds, self._every_calls, self._clock = every_seconds, every_calls, clock
        self._calls = every_calls
        self._started_at = clock()

    def count_call(self) -> None:
        """Count one call."""
        self._calls += 1

    def is_due(self) -> bool:
        """Return whether the period is over. Reads only."""
        return self._calls >= self._every_calls or self._clock() - self._started_at >= self._every_seconds

    def restart(self) -> None:
        """Begin a new period now."""
        self._calls = 0
        self._started_at = self._clock()
