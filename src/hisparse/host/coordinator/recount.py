"""Counting everything a coordinator keeps again, and telling it."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from hisparse.errors import AccountingError
from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.budget import given_by, is_over, promised_to
from hisparse.host.coordinator.counters import CoordinatorStats, HostLevel
from hisparse.host.coordinator.moves import DURABLE, PINNED, PageState
from hisparse.host.coordinator.record import NOWHERE, Phase, RequestRecord


def records_of(books: Books) -> list[RequestRecord]:
    """Return every request that has pages, those that end included.  Reads only."""
    return list(dict.fromkeys([*books.requests.values(), *books.leaving]))


def device_uses(books: Books) -> dict[str, int]:
    """Return the pages of the device by use; they add up to all of them.  Reads only."""
    blank, loose = books.device.blank_pages, books.device.loose_pages
    open_shares = [record.share for record in books.requests.values() if record.share.is_open]
    hot = sum(len(share.hot) for share in open_shares)
    held = sum(share.held for share in open_shares)
    uses = {"blank": blank, "loose": loose, "resident": held - hot, "hot": hot}
    return uses | {"leaving": books.device.pages - sum(uses.values())}


def stats_of(books: Books) -> CoordinatorStats:
    """Return levels and totals now.  Reads only."""
    ledger = books.ledger
    running = sum(record.phase == Phase.RUNNING for record in books.requests.values())
    ending = sum(record.phase == Phase.ENDING for record in books.leaving)
    return CoordinatorStats(
        requests={"running": running, "waiting": len(books.requests) - running, "ending": ending},
        pages_by_state={state.word: books.census[state] for state in PageState if state is not PageState.ABSENT},
        device_pages=device_uses(books),
        host=HostLevel(
            pages=ledger.pages, pinned=ledger.used_pages, cached=ledger.cached_pages, reserved=ledger.reserved_pages
        ),
        pending_transfers=len(books.flights),
        page_bytes=books.settings.page_bytes,
        prefix_queried_tokens=ledger.index.queried_tokens,
        prefix_hit_tokens=ledger.index.hit_tokens,
        totals=books.counters.copy(),
    )


def check_books(books: Books) -> None:
    """Recount everything.  Reads only.

    Raises:
        AccountingError: A sum does not hold; the message prints it.
    """
    records = records_of(books)
    for record in records:
        check_record(record, books.settings.page_rows)
    _check_census(books, records)
    _check_device(books, records)
    _check_promises(books, records)
    _check_transfers(books, records)
    books.ledger.check()


def check_record(record: RequestRecord, page_rows: int) -> None:
    """Recount one request's own numbers.  Reads only.

    Raises:
        AccountingError: They do not agree.
    """
    pages, copying, name = record.pages, record.copying, record.request_id
    held = sum(PINNED[state] for state in pages.states) + len(record.share.hot)
    if held != record.share.held:
        raise AccountingError(f"request {name!r} pins {held} device pages, {record.share.held} were kept")
    durable = next((page for page, state in enumerate(pages.states) if not DURABLE[state]), len(pages))
    if durable != pages.durable:
        raise AccountingError(f"request {name!r} has {durable} durable pages, {pages.durable} were kept")
    for page, state in enumerate(pages.states):
        if (pages.device[page] == NOWHERE) != (state == PageState.HOST):
            raise AccountingError(
                f"page {page} of {name!r} is {PageState(state).word} in device page {pages.device[page]}"
            )
        sent = page < copying.sent // page_rows and page not in copying.again
        if state == PageState.SPILLING and page not in copying.open:
            raise AccountingError(f"page {page} of {name!r} is spilling and no copy of it is in flight")
        if DURABLE[state] and (not sent or page in copying.open):
            raise AccountingError(f"page {page} of {name!r} is durable, of {copying.sent} positions sent")
    flights = Counter((f.page, f.is_stale) for f in record.flights.values() if f.is_stale or f.transfer.kind == "spill")
    kept = {(page, False): n for page, n in copying.open.items()} | {
        (page, True): n for page, n in copying.stale.items()
    }
    if flights != kept or len(pages) > record.claim.held:
        raise AccountingError(
            f"request {name!r} has {dict(flights)} copies in flight, {kept} were kept; {len(pages)} of "
            f"{record.claim.held} host pages are in use"
        )


def _check_census(books: Books, records: Iterable[RequestRecord]) -> None:
    counted = Counter(state for record in records for state in record.pages.states)
    kept = {state.value: count for state, count in zip(PageState, books.census, strict=True) if count}
    if counted != kept:
        raise AccountingError(f"pages by state are {dict(counted)}, {kept} were kept")


def _check_device(books: Books, records: Iterable[RequestRecord]) -> None:
    device = books.device
    pins: Counter[int] = Counter(flight.transfer.device_page for flight in books.flights.values())
    in_flight = set(pins)
    readers: dict[int, dict[RequestRecord, int]] = {}
    resident, hot = set[int](), set[int]()
    for record in records:
        hot.update(record.share.hot)
        pins.update(record.share.hot)
        for page, state in enumerate(record.pages.states):
            device_page = record.pages.device[page]
            if PINNED[state]:
                pins[device_page] += 1
                if device_page in resident:
                    raise AccountingError(f"device page {device_page} is pinned by two requests")
                resident.add(device_page)
            elif state == PageState.LOOSE:
                readers.setdefault(device_page, {})[record] = page
    blank, loose = device.free_lists()
    only_in_flight = in_flight - resident - hot
    total = len(blank) + len(loose) + len(resident) + len(hot) + len(only_in_flight)
    if total != device.pages or resident & hot:
        raise AccountingError(
            f"blank {len(blank)} + loose {len(loose)} + resident {len(resident)} + hot {len(hot)} + in flight "
            f"{len(only_in_flight)} != {device.pages} device pages"
        )
    wrong = [page for page in range(device.pages) if device.pins[page] != pins[page]]
    if wrong:
        raise AccountingError(f"device page {wrong[0]} has {pins[wrong[0]]} pins, {device.pins[wrong[0]]} were kept")
    named = device.named()
    wanted = {page for page in {*readers, *named.values()} if not pins[page]}
    if wanted != set(loose) or len(named) != len(set(named.values())) or readers != device.readers():
        raise AccountingError(f"{len(wanted)} free device pages are worth reading, {len(loose)} were kept as loose")


def _check_promises(books: Books, records: Iterable[RequestRecord]) -> None:
    budget = books.budget
    promised = sum(promised_to(record.share) for record in records)
    giving = sum(given_by(record.share) for record in records)
    if (promised, giving) != (budget.promised, budget.giving):
        raise AccountingError(
            f"{promised} device pages are promised and {giving} to be given up, "
            f"{budget.promised} and {budget.giving} were kept"
        )
    if promised > books.device.available_pages:
        raise AccountingError(f"{promised} device pages are promised, {books.device.available_pages} can be taken")
    if set(budget.over) != {record for record in records if is_over(record.share)}:
        raise AccountingError("the requests above their floor are not those that were kept")
    whole = {record for record in records if record.share.is_open and record.share.is_whole}
    if set(budget.whole) != {record for record in whole if record.share.promised >= books.settings.floor_pages}:
        raise AccountingError("the requests that are promised all their pages are not those that were kept")
    if any(record.share.is_open != (record.phase == Phase.RUNNING) for record in records):
        raise AccountingError("a request runs without a promise, or has one and does not run")


def _check_transfers(books: Books, records: Iterable[RequestRecord]) -> None:
    owned = sum(len(record.flights) for record in records)
    orphans = [flight for flight in books.flights.values() if flight.record is None]
    if owned + len(orphans) != len(books.flights):
        raise AccountingError(f"owned {owned} + orphaned {len(orphans)} != {len(books.flights)} transfers in flight")
    if any(not flight.missing for flight in books.flights.values()):
        raise AccountingError("a transfer that every worker has answered is still in flight")
    pins = np.bincount([flight.transfer.host_page for flight in orphans], minlength=books.ledger.pages)
    wrong = np.flatnonzero(pins > books.ledger.pins)  # others may pin pages of the same pool
    if wrong.size:
        page = int(wrong[0])
        raise AccountingError(
            f"host page {page} has {pins[page]} transfers without a request, {books.ledger.pins[page]} pins"
        )
