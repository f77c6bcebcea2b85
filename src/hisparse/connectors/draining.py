"""The hand-over of one step's statistics out of a container that others go on recording in."""

from hisparse.telemetry import OffloadingConnectorStats


def drained(stats: OffloadingConnectorStats) -> OffloadingConnectorStats:
    """Return what `stats` holds, as a container of its own, and forget it there.

    The container stays, so that handles taken from it (`OffloadingConnectorStats.counter`) go on counting.
    """
    errors, examples = stats.errors, stats.examples
    # Counted below: merged, they would lose the sentence about what was wrong.
    stats.errors = {}
    taken = stats.fresh().aggregate(stats)
    for reason, count in errors.items():
        taken.skip(reason, examples.get(reason, "reported by the sender of the statistics"), count)
    stats.reset()
    return taken
