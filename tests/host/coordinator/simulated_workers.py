"""A coordinator with workers that keep real rows: what is read is compared with what was computed.

Rows are plain values. Workers carry out transfers as late as they are acknowledged and in any order, write garbage
where a transfer fails, where drafts are rejected and where hot buffers lie: a page that is freed too early, published
too early or copied too early shows as a wrong value.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hisparse.errors import CapacityError, DevicePagesFullError, HostPoolFullError
from hisparse.host.coordinator import HiSparseCoordinator, StepPlan, Transfer
from hisparse.host.ledger import PageLedger
from hisparse.layout import pages_for

GARBAGE = "garbage"
PAGE_ROWS = 4
SHARED_PAGES = 2
Value = Any


def family_keys(family: int, num_pages: int) -> list[bytes]:
    """Return the keys of a family of prompts; all families begin alike."""
    return [f"{family if page >= SHARED_PAGES else 0}.{page}".encode().ljust(32, b"-") for page in range(num_pages)]


@dataclass
class Model:
    """One request as its owner sees it: the value of every row, and how many of them are computed."""

    name: str
    max_positions: int
    keys: list[bytes]
    birth: int = 0
    late_keys: list[bytes] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    computed: int = 0
    lookahead: int = 0
    lives: int = 0
    is_running: bool = True
    is_placed: bool = False

    def value(self, position: int) -> Value:
        """Return what is computed at a position: the same under the same key, never the same twice elsewhere."""
        page, row = divmod(position, PAGE_ROWS)
        return (self.keys[page], row) if page < len(self.keys) else (self.birth, self.lives, position)


@dataclass
class Worker:
    """Rows of one worker, and what it was told."""

    device: list[list[Value]]
    host: list[list[Value]]
    rows: dict[str, list[int]] = field(default_factory=dict)
    hot: dict[str, list[int]] = field(default_factory=dict)

    def follow(self, plan: StepPlan) -> None:
        """Change places as the plan says; hot buffers fill with what nobody may take for rows."""
        for name in plan.released:
            del self.rows[name]
            self.hot.pop(name, None)
        for activation in plan.activations:
            self.hot[activation.request] = activation.device_pages
        for update in plan.residency:
            if update.pages is None:
                self.rows[update.request] = list(update.device_pages)
                continue
            row = self.rows[update.request]
            for page, device_page in zip(update.pages, update.device_pages, strict=True):
                row += [-1] * (page + 1 - len(row))
                row[page] = device_page
        for pages in self.hot.values():
            for page in pages:
                self.device[page] = [GARBAGE] * PAGE_ROWS

    def compute(self, model: Model) -> None:
        """Write the rows of a step, and rejected drafts behind them."""
        for position in range(model.computed, len(model.values) + model.lookahead):
            page, row = divmod(position, PAGE_ROWS)
            is_draft = position >= len(model.values)
            if is_draft and page >= len(self.rows[model.name]):
                return
            self.device[self.rows[model.name][page]][row] = GARBAGE if is_draft else model.values[position]
            assert self.rows[model.name][page] >= 0

    def copy(self, transfer: Transfer, *, is_good: bool) -> None:
        """Carry out a transfer, or spoil what it was to write."""
        source, target = self.device[transfer.device_page], self.host[transfer.host_page]
        if transfer.kind == "restore":
            source, target = target, source
        rows = slice(transfer.first_row, transfer.first_row + transfer.rows)
        target[rows] = source[rows] if is_good else [GARBAGE] * transfer.rows

    def read(self, model: Model) -> Iterator[Value]:
        """Yield every computed row, from where the request would read it."""
        for position in range(model.computed):
            page, row = divmod(position, PAGE_ROWS)
            device_page = self.rows[model.name][page]
            if device_page >= 0:
                yield self.device[device_page][row]
            else:
                assert model.name in self.hot, f"page {page} of {model.name} is nowhere on the device"
                yield ("host", page, row)


class World:
    """A coordinator, its workers and what requests should read."""

    def __init__(self, *, host_pages: int = 24, device_pages: int = 14, workers: int = 2, **settings: Any) -> None:
        self.ledger = PageLedger(host_pages, PAGE_ROWS)
        options: dict[str, Any] = {"hot_pages": 2, "max_spill_pages": 3, **settings}
        self.coordinator = HiSparseCoordinator(
            ledger=self.ledger, device_pages=device_pages, page_rows=PAGE_ROWS, workers=workers, **options
        )
        self.workers = [
            Worker([[None] * PAGE_ROWS for _ in range(device_pages)], [[None] * PAGE_ROWS for _ in range(host_pages)])
            for _ in range(workers)
        ]
        self.models: dict[str, Model] = {}
        self.in_flight: dict[int, tuple[Transfer, set[int]]] = {}
        self.given = 0
        self.births = 0
        self.waiting: set[str] = set()

    def running(self) -> list[str]:
        """Return who runs."""
        return [name for name, model in self.models.items() if model.is_running]

    def preempted(self) -> list[str]:
        """Return who waits."""
        return [name for name, model in self.models.items() if not model.is_running]

    def unchanged_if_refused(self, error: CapacityError, before: bytes) -> None:
        """A refusal names what is needed, free and the knob, and has changed nothing."""
        assert self.fingerprint() == before
        assert " needed, " in str(error) or "promised; raise max_positions" in str(error)
        assert "raise " in str(error)

    def fingerprint(self) -> bytes:
        """Return everything that a refusal may not change."""
        stats = self.coordinator.stats()
        return repr((stats.requests, stats.pages_by_state, stats.device_pages, stats.host)).encode()

    def admit(self, name: str, max_positions: int, keys: list[bytes], *, told: int | None = None) -> bool:
        """Ask for admission; keys after the first `told` are told with later rows."""
        before = self.fingerprint()
        try:
            admission = self.coordinator.admit(name, max_positions=max_positions, keys=keys[:told])
        except (DevicePagesFullError, HostPoolFullError) as error:
            self.unchanged_if_refused(error, before)
            if isinstance(error, HostPoolFullError):
                assert self.ledger.free_pages < pages_for(max_positions, PAGE_ROWS)
            return False
        model = self.models[name] = Model(name, max_positions, keys, birth=self.births)
        model.late_keys = [] if told is None else keys
        self.births += 1
        model.values = [model.value(position) for position in range(admission.prefix_positions)]
        model.computed = len(model.values)
        return True

    def append(self, name: str, num_rows: int, lookahead: int = 0, *, tells_keys: bool = True) -> bool:
        """Let a request have more rows, computed in the next step; late keys may be told with them."""
        model, before = self.models[name], self.fingerprint()
        length = min(len(model.values) + num_rows, model.max_positions)
        try:
            self.coordinator.append(name, length, lookahead=lookahead, keys=model.late_keys if tells_keys else ())
        except DevicePagesFullError as error:
            self.unchanged_if_refused(error, before)
            return False
        model.values += [model.value(position) for position in range(len(model.values), length)]
        model.lookahead = min(lookahead, model.max_positions - length)
        return True

    def step(self) -> StepPlan:
        """Plan, and let every worker compute."""
        plan = StepPlan.decode(self.coordinator.plan_step().encode())
        self.waiting = set(plan.waiting)
        for worker in self.workers:
            worker.follow(plan)
            for name in self.running():
                if name not in self.waiting:
                    worker.compute(self.models[name])
        for name in self.running():
            if name not in self.waiting:
                self.models[name].computed = len(self.models[name].values)
                self.models[name].lookahead = 0
                self.models[name].is_placed = True
        for transfer in plan.transfers:
            assert transfer.id >= self.given
            self.given = transfer.id + 1
            self.in_flight[transfer.id] = (transfer, set(range(len(self.workers))))
        return plan

    def answer(self, transfer_id: int, worker: int, *, is_good: bool = True) -> None:
        """Let one worker carry out one transfer, or fail to, and say so."""
        transfer, missing = self.in_flight[transfer_id]
        if worker in missing:
            self.workers[worker].copy(transfer, is_good=is_good)
            missing.discard(worker)
            if not missing:
                del self.in_flight[transfer_id]
        if is_good:
            self.coordinator.acknowledge(transfer_id, worker)
        else:
            self.coordinator.fail_transfer(transfer_id, worker)

    def answer_all(self, *, newest_first: bool = False) -> None:
        """Let every worker carry out everything."""
        for transfer_id, (_, missing) in sorted(self.in_flight.items(), reverse=newest_first):
            for worker in sorted(missing):
                self.answer(transfer_id, worker)

    def fail_for_all(self, transfer_id: int) -> None:
        """End a transfer for all workers at once."""
        transfer, missing = self.in_flight.pop(transfer_id)
        for worker in missing:
            self.workers[worker].copy(transfer, is_good=False)
        self.coordinator.fail_transfer(transfer_id)

    def preempt(self, name: str, *, flush: bool) -> None:
        """Take a request off the device."""
        self.coordinator.preempt(name, flush=flush)
        model = self.models[name]
        model.is_running = model.is_placed = False
        del model.values[model.computed :]

    def resume(self, name: str) -> bool:
        """Let a request run again: rows behind its durable prefix are computed anew, with other values."""
        before, durable = self.fingerprint(), self.coordinator.durable_positions(name)
        try:
            length = self.coordinator.resume(name)
        except DevicePagesFullError as error:
            self.unchanged_if_refused(error, before)
            return False
        model = self.models[name]
        assert length == durable <= model.computed
        assert length % PAGE_ROWS == 0
        del model.values[length:]
        model.computed, model.is_running, model.lookahead = length, True, 0
        model.lives += 1
        return True

    def end(self, name: str, how: str, *, flush: bool) -> None:
        """Finish, abort or fail a request."""
        del self.models[name]
        if how == "fail":
            self.coordinator.fail(name)
        else:
            getattr(self.coordinator, how)(name, flush=flush)

    def go_on(self, name: str) -> None:
        """A running request gets its next page within a few steps, if only copies land."""
        model = self.models[name]
        for _ in range(60):
            if self.append(name, PAGE_ROWS):
                break
            self.step()
            self.answer_all()
        else:
            raise AssertionError(f"{name} waits for ever: {self.coordinator.stats()}")
        for _ in range(60):
            self.step()
            self.answer_all()
            if model.computed == len(model.values):
                return
        raise AssertionError(f"{name} is never restored: {self.coordinator.stats()}")

    def check(self) -> None:
        """Recount, and compare every row that anybody could read."""
        self.coordinator.check()
        self.check_in_flight()
        for worker in self.workers:
            for keys, pages, _ in self.ledger.index.entries():
                for key, page in zip(keys, pages.tolist(), strict=True):
                    assert worker.host[page] == [(key, row) for row in range(PAGE_ROWS)]
            for key, page in self.coordinator._books.device.named().items():
                assert worker.device[page] == [(key, row) for row in range(PAGE_ROWS)]
            for name, model in self.models.items():
                self.check_rows(worker, name, model)

    def check_rows(self, worker: Worker, name: str, model: Model) -> None:
        """What one worker reads for one request is what was computed, on the device or on the host."""
        record = self.coordinator._books.requests[name]
        table = record.claim.pages.tolist()
        for position in range(self.coordinator.durable_positions(name)):
            page, row = divmod(position, PAGE_ROWS)
            assert worker.host[table[page]][row] == model.values[position]
        if model.is_placed:
            for position, value in enumerate(worker.read(model)):
                at_host = isinstance(value, tuple) and value[0] == "host"
                found = worker.host[table[value[1]]][value[2]] if at_host else value
                assert found == model.values[position], (name, position)

    def check_in_flight(self) -> None:
        """Neither end of a transfer under way is free."""
        free = {page for pages in self.coordinator._books.device.free_lists() for page in pages}
        for transfer, _ in self.in_flight.values():
            assert transfer.device_page not in free
            assert self.ledger.references[transfer.host_page] + self.ledger.pins[transfer.host_page] > 0

    def close(self) -> None:
        """End everything: nothing is left, in a bounded number of steps."""
        for name in list(self.models):
            self.end(name, "abort", flush=True)
        for _ in range(100):
            self.answer_all()
            if not self.step().transfers and not self.in_flight:
                break
        self.check()
        stats = self.coordinator.stats()
        assert not any(stats.pages_by_state.values())
        assert not any(stats.requests.values())
        assert stats.device_pages == stats.device_pages | {"resident": 0, "hot": 0, "leaving": 0}
        assert (stats.pending_transfers, stats.host.pinned, stats.host.reserved) == (0, 0, 0)
