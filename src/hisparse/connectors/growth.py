"""What a histogram grew by."""

from hisparse.telemetry import Histogram


def grown(now: Histogram, before: Histogram) -> Histogram | None:
    """Return the samples of `now` that are not in `before`, all where the bounds differ. Reads only.

    None where `before` had samples that `now` has not: then one is not what the other became. The sum is never
    below 0.
    """
    if now.bounds != before.bounds:
        return now
    counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return None if min(counts) < 0 else Histogram(now.bounds, counts, max(0.0, now.sum - before.sum))
