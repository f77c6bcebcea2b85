"""What changed on the device since the last plan."""

from hisparse.host.coordinator.messages import Activation, ResidencyUpdate
from hisparse.host.coordinator.moves import PageState
from hisparse.host.coordinator.record import NOWHERE, RequestRecord


class Updates:
    """Changes to tell with the next plan; only requests that run are told of.

    Attributes:
        step: Number of the plan they go with, from 1 on.
    """

    def __init__(self) -> None:
        """Start with nothing to tell."""
        self.step = 1
        self._full: dict[RequestRecord, None] = {}
        self._changed: dict[RequestRecord, dict[int, None]] = {}
        self._activations: dict[RequestRecord, None] = {}
        self._released: list[str] = []

    def admit(self, record: RequestRecord) -> None:
        """Tell the whole row of a request that begins to run."""
        self._full[record] = None

    def change(self, record: RequestRecord, page: int) -> None:
        """Tell where one page of a request is."""
        if record.share.is_open and record not in self._full:
            self._changed.setdefault(record, {})[page] = None

    def activate(self, record: RequestRecord) -> None:
        """Tell that a request got a hot buffer."""
        self._activations[record] = None

    def release(self, record: RequestRecord) -> None:
        """Tell that a request gave up its place, unless the workers never heard of it."""
        if self._full.pop(record, record) is record:
            self._released.append(record.request_id)
        self._changed.pop(record, None)
        self._activations.pop(record, None)

    def take_released(self) -> list[str]:
        """Return and forget who gave up a place."""
        released, self._released = self._released, []
        return released

    def take_activations(self) -> list[Activation]:
        """Return and forget who got a hot buffer."""
        taken, self._activations = self._activations, {}
        return [Activation(record.request_id, list(record.share.hot)) for record in taken]

    def take_residency(self) -> list[ResidencyUpdate]:
        """Return and forget whole rows and changed pages, as they are now."""
        full, self._full = self._full, {}
        changed, self._changed = self._changed, {}
        told = [ResidencyUpdate(record.request_id, None, _row(record)) for record in full]
        told += [
            ResidencyUpdate(record.request_id, [*pages], [readable(record, page) for page in pages])
            for record, pages in changed.items()
        ]
        return told


def readable(record: RequestRecord, page: int) -> int:
    """Return the device page that a page of a request can be read from now, or `NOWHERE`.  Reads only."""
    if record.pages.states[page] == PageState.RESTORING:
        return NOWHERE
    return record.pages.device[page]


def _row(record: RequestRecord) -> list[int]:
    row = record.pages.device.tolist()
    for page in record.pages.pages_in(PageState.RESTORING):
        row[page] = NOWHERE
    return row
