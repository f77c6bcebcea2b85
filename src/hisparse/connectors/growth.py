"""What a histogram grew by."""

from hisparse.telemetry import Histogram


def grown(now: Histogram, before: Histogram) -> Histogram:
    """Return the samples of `now` that are not in `before`, all where the bounds differ. Reads only.

    A count below 0 says that `before` had samples that `now` has not; the sum is never below 0.
    """
    if now.bounds != before.bounds:
        return now
    counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return Histogram(now.bounds, counts, max(0.0, now.sum - before.sum))
