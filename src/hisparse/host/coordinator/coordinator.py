"""The scheduler side of the host tier: it decides which rows are where, and moves none."""

from collections.abc import Sequence

from hisparse.errors import SettingError, StateError
from hisparse.host.coordinator.admitting import Admitting
from hisparse.host.coordinator.arriving import Arriving
from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.counters import CoordinatorStats
from hisparse.host.coordinator.growing import Growing
from hisparse.host.coordinator.landing import Landing
from hisparse.host.coordinator.leaving import Leaving
from hisparse.host.coordinator.messages import Admission, StepPlan
from hisparse.host.coordinator.publishing import Publishing
from hisparse.host.coordinator.record import Phase, RequestRecord
from hisparse.host.coordinator.recount import check_books, stats_of
from hisparse.host.coordinator.room import Room
from hisparse.host.coordinator.settings import CoordinatorSettings, SpillMode
from hisparse.host.coordinator.spilling import Spilling
from hisparse.host.coordinator.stepping import Stepping
from hisparse.host.ledger import PageLedger
from hisparse.layout import PageKey


class HiSparseCoordinator:
    """Keeps, for every request, which of its pages are on the device, on the host, or on their way.

    The rows of a request lie in device pages while there is room. Under pressure a request gets a hot buffer, its
    pages are spilled to the host pool, and their device pages come free; the last ones stay. What is admitted goes
    on: each running request is promised the device pages it needs at least, and all its pages in the host pool.

    A step of an engine is: `acknowledge` what workers report, `append` what the step will write, `plan_step`, send
    the plan to the workers. It is used from one thread.
    """

    def __init__(  # noqa: PLR0913  each argument is a setting, given by name
        self,
        *,
        ledger: PageLedger,
        device_pages: int,
        page_rows: int,
        hot_pages: int,
        watermark_pages: int | None = None,
        max_spill_pages: int = 256,
        pinned_tail_pages: int = 2,
        workers: int = 1,
        spill: SpillMode = "eager",
        page_bytes: int = 0,
    ) -> None:
        """Start with every page free.

        Args:
            ledger: The pages of the host pool, `HostPool.ledger`.
            device_pages: Pages of the device, hot buffers included.
            page_rows: Rows in a page, those of the ledger.
            hot_pages: Device pages that one hot buffer takes.
            watermark_pages: Requests are moved to hot buffers while fewer pages are free; by default a tenth of
                the device, or one hot buffer where that is more.
            max_spill_pages: Whole pages spilled in one step at most, and whole pages restored.
            pinned_tail_pages: Pages at the end of a running request that stay on the device.
            workers: Workers that carry out every plan and acknowledge every transfer.
            spill: ``"eager"``: rows are copied to the host in the step that writes them; ``"pressure"``: pages are
                copied when their device pages are wanted.
            page_bytes: Bytes of a page over all layers, for counters of bytes.

        Raises:
            SettingError: A setting is out of range, or `page_rows` is not the ledger's.
        """
        if page_rows != ledger.page_rows:
            raise SettingError(f"page_rows must be the ledger's {ledger.page_rows}, got {page_rows}")
        settings = CoordinatorSettings(
            device_pages=device_pages,
            page_rows=page_rows,
            hot_pages=hot_pages,
            watermark_pages=max(hot_pages, device_pages // 10) if watermark_pages is None else watermark_pages,
            max_spill_pages=max_spill_pages,
            pinned_tail_pages=pinned_tail_pages,
            workers=workers,
            spill=spill,
            page_bytes=page_bytes,
        )
        books = self._books = Books.of(settings, ledger)
        room, publishing = Room(books), Publishing(books)
        spilling = Spilling(books, room)
        self._publishing = publishing
        self._leaving = Leaving(books, room=room, spilling=spilling, publishing=publishing)
        self._landing = Landing(books, room=room, publishing=publishing, leaving=self._leaving)
        self._admitting = Admitting(books, room=room, publishing=publishing)
        self._growing = Growing(books, room=room, spilling=spilling, publishing=publishing)
        self._stepping = Stepping(
            books, room=room, spilling=spilling, publishing=publishing, arriving=Arriving(books, room)
        )

    def admit(
        self, request_id: str, *, max_positions: int, keys: Sequence[PageKey] = (), reuse_prefix: bool = True
    ) -> Admission:
        """Promise a request what it needs on both ends; it begins with the published pages that are found.

        A refused request may ask again; it is counted as refused once.

        Args:
            request_id: A name that no request has which runs or waits.
            max_positions: The longest it may become.
            keys: The keys of its first pages, as `page_keys` gives them; what becomes durable of them is published.
            reuse_prefix: Whether to look `keys` up; where not, they are not counted as asked for either.

        Raises:
            DevicePagesFullError: The device has too few free pages now; nothing was changed.
            HostPoolFullError: The host pool has too few free pages; nothing was changed.
            StateError: A request of that name runs or waits.
        """
        return self._admitting.admit(request_id, max_positions, keys, reuse_prefix=reuse_prefix)

    def append(self, request_id: str, length: int, *, lookahead: int = 0, keys: Sequence[PageKey] = ()) -> None:
        """Let a running request have `length` positions; device and host pages are taken for new ones.

        Args:
            request_id: Who.
            length: Positions whose rows are valid once the coming step has run. Only these are ever copied.
            lookahead: Positions behind them that the step may write and that may be rejected: draft tokens.
            keys: The keys of all its pages from the first on, where more are known than before.

        Raises:
            DevicePagesFullError: The device has too few free pages now; nothing was changed. The next plan makes
                room; ask again in a later step, with fewer positions, or preempt a request.
            HostPoolFullError: `length` is above the request's `max_positions`; nothing was changed.
            PositionError: `length` is below the present length; nothing was changed.
            StateError: No request of that name runs.
        """
        record = self._running(request_id)
        self._growing.append(record, length, lookahead)
        if keys:
            self._growing.set_keys(record, keys)

    def plan_step(self) -> StepPlan:
        """Decide what moves in the next step, and take account of it as under way."""
        return self._stepping.plan()

    def acknowledge(self, transfer_id: int, worker: int = 0) -> None:
        """Note that a worker has carried out a transfer; what was waiting for the last of them is freed.

        Repeated acknowledgements and unknown ids change nothing and are counted.

        Raises:
            PositionError: There is no such worker.
        """
        flight = self._books.flights.answer(transfer_id, worker, has_failed=False)
        if flight is not None:
            self._landing.land(flight)

    def fail_transfer(self, transfer_id: int, worker: int | None = None) -> None:
        """Note that a transfer failed: the page stays where it was, and is copied again while its request runs.

        Args:
            transfer_id: Which one; unknown ids change nothing and are counted.
            worker: The worker that failed, whose answer this is; None where no worker touches the pages any more.

        Raises:
            PositionError: There is no such worker.
        """
        flights = self._books.flights
        flight = flights.fail(transfer_id) if worker is None else flights.answer(transfer_id, worker, has_failed=True)
        if flight is not None:
            self._landing.land(flight)

    def finish(self, request_id: str, *, flush: bool = True) -> None:
        """End a request: its full pages are published once they are on the host, then everything is freed.

        Its id may be used again at once. With `flush` false, pages that are not on their way to the host are lost.

        Raises:
            StateError: No request of that name runs or waits.
        """
        record = self._known(request_id)
        del self._books.requests[request_id]
        self._leaving.leave(record, Phase.ENDING, flush=flush)

    def abort(self, request_id: str, *, flush: bool = True) -> None:
        """End a request as `finish` does; harmless for one that is not admitted, or not any more."""
        self._admitting.forget(request_id)
        if request_id in self._books.requests:
            self.finish(request_id, flush=flush)

    def fail(self, request_id: str) -> None:
        """End a request and copy nothing more of it; what is on the host already is published.

        Raises:
            StateError: No request of that name runs or waits.
        """
        self.finish(request_id, flush=False)

    def preempt(self, request_id: str, *, flush: bool = True) -> None:
        """Take a running request off the device; it keeps its pages in the host pool and waits for `resume`.

        With `flush`, full pages that are not on the host are spilled first; they give their device pages back as
        they land.

        Raises:
            StateError: No request of that name runs.
        """
        record = self._running(request_id)
        self._books.counters.preemptions += 1
        self._leaving.leave(record, Phase.WAITING, flush=flush)

    def resume(self, request_id: str) -> int:
        """Let a preempted request run again; returns its durable prefix, from which it has to be computed on.

        Raises:
            DevicePagesFullError: The device has too few free pages now; nothing was changed.
            StateError: No request of that name waits.
        """
        record = self._known(request_id)
        if record.phase != Phase.WAITING:
            raise StateError(f"request {request_id!r} runs; only a preempted request can be resumed")
        return self._leaving.resume(record)

    def reset(self) -> None:
        """Forget every key: nothing computed until now is found by a later request. Requests go on."""
        self._publishing.forget()

    def length_of(self, request_id: str) -> int:
        """Return the positions a request has.  Reads only.

        Raises:
            StateError: No request of that name runs or waits.
        """
        return self._known(request_id).length

    def durable_positions(self, request_id: str) -> int:
        """Return the positions whose pages are full and on the host, from the first on.  Reads only.

        Raises:
            StateError: No request of that name runs or waits.
        """
        return self._known(request_id).pages.durable * self._books.settings.page_rows

    def stats(self) -> CoordinatorStats:
        """Return levels and totals now.  Reads only."""
        return stats_of(self._books)

    def check(self) -> None:
        """Recount every page, pin, promise and transfer.  Reads only.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        check_books(self._books)

    def _known(self, request_id: str) -> RequestRecord:
        record = self._books.requests.get(request_id)
        if record is None:
            raise StateError(f"request {request_id!r} is not admitted; admit it first")
        return record

    def _running(self, request_id: str) -> RequestRecord:
        record = self._known(request_id)
        if record.phase != Phase.RUNNING:
            raise StateError(f"request {request_id!r} was preempted; resume it first")
        return record
