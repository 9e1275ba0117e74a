"""Times as histograms: buckets that grow by the square root of two, and percentiles read back from them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

#: Histogram buckets: bucket n holds times up to 2 ** (n / 2) milliseconds, from 1 ms to about 12 days. Longer times are
#: in the bucket of this number.
BUCKETS = 60


def upper_bound(number: int) -> float:
    """The longest time in a bucket, in seconds."""
    return float(2 ** (number / 2)) / 1000


_BOUNDS = [upper_bound(number) for number in range(BUCKETS)]


def bucket(seconds: float) -> int:
    """The histogram bucket of a time."""
    return bisect_left(_BOUNDS, seconds)


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The time in seconds that `share` (0 to 1) of a histogram does not exceed, or None if it is empty.

    Inside its bucket a time is interpolated on a logarithmic scale. It is off by a factor of 1.41 at most, which is the
    width of a bucket, and as a rule by a few per cent.
    """
    total = sum(histogram.values())
    seen = 0
    for number in sorted(histogram):
        count = histogram[number]
        if count and seen + count >= share * total:
            return _within(number, (share * total - seen) / count)
        seen += count
    return None


def _within(number: int, fraction: float) -> float:
    """The time at a fraction of a bucket; the first bucket begins at 0, and the last has no end."""
    if number == 0:
        return upper_bound(0) * fraction
    lower = upper_bound(number - 1)
    return lower if number >= BUCKETS else lower * float(2 ** (fraction / 2))
