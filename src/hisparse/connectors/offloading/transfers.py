"""What a worker measured of its transfers between device and tiers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from hisparse.connectors.offloading.busy import BusyTime
from hisparse.connectors.offloading.direction import DirectionalTransferStats, read_reason
from hisparse.connectors.reading import explained, read_whole
from hisparse.telemetry import KVConnectorStats, Sample, SkipReason
from hisparse.telemetry.catalogue import TRANSFERS
from hisparse.telemetry.values import ItemError, read_increment, read_number, show

T = TypeVar("T")


class TransferStats(KVConnectorStats):
    """Transfers that ended since the last drain, by direction.

    `data` is ``{"load": DirectionalTransferStats, "store": DirectionalTransferStats}``. Everything adds up,
    over time and over workers: each worker moves bytes of its own. Memory does not grow with the number of
    transfers. A worker records from the one thread that collects completions.
    """

    def __init__(self, data: Any = None, *, rank: int | None = None) -> None:
        """Start empty and aggregate `data`; `rank` says which worker measures."""
        # Outlives every drain: a transfer that ends after one may overlap what was drained before.
        self._busy = {direction: BusyTime() for direction in TRANSFERS}
        # So do these: reasons are series at the front end, however many drains they came in.
        self._reasons: dict[str, set[str]] = {direction: set() for direction in TRANSFERS}
        super().__init__(data, rank=rank)

    def record(
        self,
        direction: str,
        *,
        size_bytes: int,
        started: float,
        ended: float,
        submitted: float | None = None,
        failure: str | BaseException | None = None,
    ) -> None:
        """Count a transfer that has ended. Never raises: the part that cannot be used is skipped and counted.

        Args:
            direction: ``"load"``, from a tier to the device, or ``"store"``.
            size_bytes: Bytes it moved; not counted where it failed.
            started: When bytes began to move, in seconds of a clock that never runs backwards.
            ended: When the last byte had moved, by the completion and not by the return of the dispatch.
            submitted: When it was queued, where that is known; its wait counts apart from its time.
            failure: Why it failed, as one of a few fixed words, or the error; None where it succeeded.
        """
        try:
            self._record(direction, size_bytes, (submitted, started, ended), failure=failure)
        except ItemError as error:
            self.skip(error.reason, str(error))
        except Exception as error:  # noqa: BLE001  somebody else's number may raise anything
            self.skip(SkipReason.INTERNAL, explained(error))

    def _record(self, direction: Any, size_bytes: Any, times: tuple[Any, Any, Any], *, failure: Any) -> None:
        one = self.data.get(direction) if isinstance(direction, str) else None
        if not isinstance(one, DirectionalTransferStats):
            raise ItemError(SkipReason.UNKNOWN_KEY, f"direction must be one of {TRANSFERS}, got {show(direction)}")
        submitted, started, ended = times
        start = self._usable(lambda: read_number(started, "started"))
        end = self._usable(lambda: read_number(ended, "ended"))
        seconds = None
        if start is not None and end is not None:
            seconds = self._usable(lambda: read_increment(end - start, "ended - started"))
        if failure is None:
            size = self._usable(lambda: read_whole(size_bytes, "size_bytes"))
            self.skip_each(one.succeed(size, seconds))
        else:
            reason, wrong = read_reason(failure)
            self.skip_each(wrong)
            one.fail(reason)
        if start is not None and submitted is not None and failure is None:
            self._usable(lambda: one.wait(read_increment(start - read_number(submitted, "submitted"), "the wait")))
        if start is not None and end is not None:
            one.be_busy(self._busy[direction].cover(start, end))

    def _usable(self, read: Callable[[], T]) -> T | None:
        """Return what was read, or None where it is not usable, which is counted: one part is not the others."""
        try:
            return read()
        except ItemError as error:
            self.skip(error.reason, str(error))
            return None

    def _empty(self) -> dict[str, Any]:
        return {direction: DirectionalTransferStats(reasons=self._reasons[direction]) for direction in TRANSFERS}

    def _merge(self, data: Mapping[str, Any]) -> None:
        for direction, value in data.items():
            one = self.data.get(direction) if isinstance(direction, str) else None
            if not isinstance(one, DirectionalTransferStats):
                self.skip(SkipReason.UNKNOWN_KEY, f"unknown direction {show(direction)}")
            elif not isinstance(value, Mapping):
                self.skip(SkipReason.WRONG_TYPE, f"{direction} must be a mapping, got {show(value)}")
            else:
                self.skip_each(one.merge(value))

    def _plain(self) -> dict[str, Any]:
        return {direction: plain for direction, one in self.data.items() if (plain := one.to_dict())}

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of both directions. Reads only."""
        for direction, one in self.data.items():
            yield from one.samples(direction)

    def reduce(self) -> dict[str, int | float]:
        """Return bytes, seconds, busy seconds and failures of each direction in which something ended."""
        reduced: dict[str, int | float] = {}
        for direction, one in self.data.items():
            if one.transfers or one.failures:
                reduced[f"Offload {direction} bytes"] = one.moved_bytes
                reduced[f"Offload {direction} seconds"] = one.moving_seconds
                reduced[f"Offload {direction} busy seconds"] = one.busy_seconds
                reduced[f"Offload {direction} failures"] = sum(one.failures.values())
        return reduced
