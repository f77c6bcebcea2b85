"""What all parts of a coordinator share."""

from dataclasses import dataclass, field

from hisparse.host.coordinator.budget import Budget
from hisparse.host.coordinator.counters import Counters
from hisparse.host.coordinator.device import DevicePages
from hisparse.host.coordinator.flights import Flights
from hisparse.host.coordinator.record import Census, RequestRecord, empty_census
from hisparse.host.coordinator.settings import CoordinatorSettings
from hisparse.host.coordinator.updates import Updates
from hisparse.host.ledger import PageLedger


@dataclass(slots=True)
class Books:
    """The state of a coordinator, one owner for each kind of thing.

    Attributes:
        settings: What it was told.
        ledger: Pages of the host pool.
        device: Pages of the device.
        budget: Promises on the device.
        flights: Transfers under way.
        counters: Totals.
        updates: What to tell the workers next.
        census: Pages of all requests by state.
        requests: Requests that run or wait, by id.
        arrivals: Running requests whose prefix has no place yet.
        leaving: Requests that do not run and have pages to spill, the longest gone first.
        backlog: Running requests with rows to spill, the longest waiting first.
    """

    settings: CoordinatorSettings
    ledger: PageLedger
    device: DevicePages
    budget: Budget
    flights: Flights
    counters: Counters
    updates: Updates = field(default_factory=Updates)
    census: Census = field(default_factory=empty_census)
    requests: dict[str, RequestRecord] = field(default_factory=dict)
    arrivals: dict[RequestRecord, None] = field(default_factory=dict)
    leaving: dict[RequestRecord, None] = field(default_factory=dict)
    backlog: dict[RequestRecord, None] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: CoordinatorSettings, ledger: PageLedger) -> "Books":
        """Return empty books."""
        counters = Counters()
        return cls(
            settings=settings,
            ledger=ledger,
            device=DevicePages(settings.device_pages),
            budget=Budget(settings.hot_pages, settings.floor_pages),
            flights=Flights(settings.workers, counters),
            counters=counters,
        )

    @property
    def spare_pages(self) -> int:
        """Device pages that can be taken and are not promised."""
        return self.device.available_pages - self.budget.promised
