"""One step: relieve pressure, place who arrived, spill, and tell what changed."""

from hisparse.host.coordinator.arriving import Arriving
from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.messages import StepPlan
from hisparse.host.coordinator.publishing import Publishing
from hisparse.host.coordinator.room import Room
from hisparse.host.coordinator.spilling import Spilling

# Steps in a row in which somebody was refused, after which pages that should come free soon are not waited for.
PATIENCE_STEPS = 4


class Stepping:
    """Makes the plan of a step."""

    def __init__(
        self, books: Books, *, room: Room, spilling: Spilling, publishing: Publishing, arriving: Arriving
    ) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room
        self._spilling = spilling
        self._publishing = publishing
        self._arriving = arriving
        self._refused_steps = 0

    def plan(self) -> StepPlan:
        """Return the plan of the next step."""
        books = self._books
        self._publishing.publish_queued()
        self._relieve()
        transfers = self._arriving.plan()
        transfers += self._spilling.plan()
        step = books.updates.step
        books.updates.step += 1
        return StepPlan(
            step=step,
            released=books.updates.take_released(),
            activations=books.updates.take_activations(),
            residency=books.updates.take_residency(),
            transfers=transfers,
            waiting=[record.request_id for record in books.arrivals],
        )

    def _relieve(self) -> None:
        """Move requests to hot buffers while fewer pages are spare than the watermark, or than somebody asked for."""
        books, budget = self._books, self._books.budget
        asking = budget.take_asking()
        self._refused_steps = self._refused_steps + 1 if asking else 0
        not_counted = 0 if self._refused_steps <= PATIENCE_STEPS else budget.giving
        asked = max(asking.values(), default=0)
        for record in list(budget.whole) if asked else ():
            if books.spare_pages + budget.giving - not_counted < asked:
                self._room.cut_promise(record)
        wanted = max(books.settings.watermark_pages, asked)
        while budget.over and books.spare_pages + budget.giving - not_counted < wanted:
            if not self._room.activate(next(iter(budget.over))):
                break
        for asker, num_pages in asking.items():
            if asker is not None and books.spare_pages + budget.giving - not_counted < num_pages:
                self._room.activate(asker)
