"""Samples -> summary, pairs -> comparison. Pure functions of numbers: no clock, no files, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.stats import mstats

from bench.model import Metric, Policy, Verdict

CONFIDENCE = 0.95  # of every interval that is shown
CERTAINTY = 0.995  # of a verdict that two variants differ: by 95 % intervals, much noise alone gives one in 25
JUDGED = ("latency", "device")  # metrics whose verdict a reader looks for: sampling goes on until there is one
WIDE = 1.5  # medians: an upper quartile from here on is worth a warning
LEAST = 6  # values: with fewer no distribution-free 95 % interval of a median exists


@dataclass(frozen=True)
class Summary:
    """A centre and how sure it is. The interval is None when there are too few values to have one."""

    centre: float  # median
    interval: tuple[float, float] | None  # 95 %, distribution-free
    n: int
    outliers: int = 0  # values far above the rest: counted, and kept in all that is computed
    modes: tuple[float, float] | None = None  # the two centres, where the values are two groups
    wide: float = 0.0  # how many times the median a quarter of the values are at least; 0 where that is little

    @property
    def half_width(self) -> float | None:
        """Of the interval, relative to the centre."""
        if self.interval is None:
            return None
        width = self.interval[1] - self.interval[0]
        return 0.0 if not width else width / 2 / self.centre if self.centre else None


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline: speedup is baseline time / variant time, above 1 is faster."""

    speedup: float
    interval: tuple[float, float] | None  # 95 %
    verdict: Verdict
    n: int  # pairs behind it


def summarise(values: Sequence[float]) -> Summary:
    """Median and its order-statistics interval. Raises ValueError on no values."""
    if not values:
        raise ValueError("no values to summarise")
    interval = None
    if len(values) >= LEAST:
        low, high = stats.quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
        interval = (float(low), float(high))
    modes = two_modes(values)
    return Summary(float(np.median(values)), interval, len(values), far_above(values), modes, wide(values))


def far_above(values: Sequence[float]) -> int:
    """How many values lie more than three interquartile ranges above the upper quartile (Tukey's "far out")."""
    if len(values) < LEAST or not np.isfinite(values).all():
        return 0
    lower, upper = np.quantile(values, [0.25, 0.75])
    return int(np.sum(np.asarray(values) > upper + 3 * (upper - lower)))


def wide(values: Sequence[float]) -> float:
    """The upper quartile in medians, from WIDE on; else 0. What varies so has a median that few of its turns took."""
    if len(values) < LEAST or not np.isfinite(values).all():
        return 0.0
    centre, upper = np.quantile(values, [0.5, 0.75])
    return float(upper / centre) if centre > 0 and upper >= WIDE * centre else 0.0


def two_modes(values: Sequence[float]) -> tuple[float, float] | None:
    """The medians of two groups, if the values are two: each at least a fifth of them, and between them a gap of
    over 5 % that is four times as wide as either group spreads. A median between two modes is nobody's time."""
    if len(values) < 2 * LEAST or min(values) <= 0 or not np.isfinite(values).all():
        return None
    logs = np.sort(np.log(values))
    least = max(2, len(logs) // 5)
    gaps = np.diff(logs)[least - 1 : len(logs) - least]
    cut = int(np.argmax(gaps)) + least
    low, high = logs[:cut], logs[cut:]
    if not gaps.max() > max(math.log(1.05), 4 * low.std(), 4 * high.std()):
        return None
    return math.exp(float(np.median(low))), math.exp(float(np.median(high)))


def pays_after(extra: float, comparison: Comparison | None, baseline: float) -> float | None:
    """Calls after which `extra` seconds spent beforehand are won back; 0 at once, inf never.

    None where the comparison does not say that the variant is faster or slower. `baseline` is its time a call.
    """
    if comparison is None or comparison.verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return None
    saved = baseline * (1 - 1 / comparison.speedup)
    if saved <= 0:
        return math.inf
    return max(extra, 0.0) / saved


def compare(variant: Metric, baseline: Metric, same_within: float) -> Comparison | None:
    """Compare round by round, so that drift common to both cancels. None when no round holds both, or where one takes
    no time at all, as what launches nothing takes none of a GPU.

    The centre is the 20 % trimmed mean of the log ratios, the interval Yuen's: a few spiked rounds cannot move either
    far. It is widened where rounds resemble their neighbours. Faster or slower needs the whole 99.5 % interval beyond
    `same_within`: a difference that is real but too small to matter, or as large as what two identical processes show,
    is not announced.
    """
    pairs = [(min(v), min(b)) for v, b in zip(variant.samples, baseline.samples, strict=False) if v and b]
    if not pairs or not all(v > 0 and b > 0 for v, b in pairs):
        return None
    logs = np.log([b / v for v, b in pairs])
    centre, wider = float(stats.trim_mean(logs, 0.2)), _dependence(logs)

    def interval(alpha: float) -> tuple[float, float]:
        low, high = mstats.trimmed_mean_ci(logs, (0.2, 0.2), alpha=alpha)
        return centre - wider * (centre - low), centre + wider * (high - centre)

    return _comparison(centre, interval, len(pairs), same_within)


def _dependence(logs: NDArray[np.float64]) -> float:
    """How many times as wide an interval must be for rounds that resemble those before them: a disturbance that lasts
    over rounds says less than its rounds seem to. 1 where there is none (by the autocorrelation of neighbours)."""
    away = logs - np.median(logs)
    limit = 3 * float(np.median(np.abs(away)))
    away = np.clip(away, -limit, limit)  # one spike would hide it
    power, n = float(np.sum(away * away)), len(logs)
    if n < LEAST or not power:
        return 1.0
    seen = float(np.sum(away[1:] * away[:-1])) / power
    rho = min(seen + (1 + 3 * seen) / n, 0.95)  # of so few, it comes out too low
    return math.sqrt((1 + rho) / (1 - rho)) if rho > 1 / math.sqrt(n) else 1.0  # less is what chance alone makes


def compare_unpaired(new: Sequence[float], old: Sequence[float], same_within: float) -> Comparison:
    """Compare two runs that shared no rounds (Yuen-Welch on the logs). Blind to what differs between processes."""
    new_logs, old_logs = np.log(new), np.log(old)
    centre = float(stats.trim_mean(old_logs, 0.2) - stats.trim_mean(new_logs, 0.2))
    n = min(len(new), len(old))
    if np.ptp(new_logs) == np.ptp(old_logs) == 0:  # nothing varies: scipy would answer nan
        return _comparison(centre, lambda alpha: (centre, centre), n, same_within)

    def interval(alpha: float) -> tuple[float, float]:
        test = stats.ttest_ind(old_logs, new_logs, equal_var=False, trim=0.2)
        # The test's own interval belongs to the trimmed means, which is what `centre` is.
        found = test.confidence_interval(1 - alpha)
        return found.low, found.high

    return _comparison(centre, interval, n, same_within)


def shared(
    logs: Sequence[float], layers: Sequence[str], variants: Sequence[str], same_within: float
) -> tuple[float, list[bool]]:
    """What log ratios of two runs have in common, and which of them say no more than that; 0 and none where nothing.

    In common is their median, where three quarters of them, three at least and of several variants, are nearer to it
    than to no change. But a slow machine spares no layer and no variant: where most cases of one stayed as they were,
    it is the others' code. No more is said by what moved the same way and, beyond what is common, by no more than half
    of it or `same_within`.
    """
    nothing, margin = (0.0, [False] * len(logs)), math.log1p(same_within)
    shift = float(np.median(logs)) if logs else 0.0
    if abs(shift) <= margin / 2:  # so little moves no verdict
        return nothing
    shares, most = np.asarray(logs) / shift, 1 + max(0.5, margin / abs(shift))
    along = (shares >= 0.5) & (shares <= most)
    if along.sum() < max(3, 0.75 * len(logs)) or len(set(np.asarray(variants)[along])) < 2:
        return nothing
    stayed = (np.abs(shares) < 0.25) & (np.abs(logs) <= margin)
    for names in map(np.asarray, (layers, variants)):
        if any(stayed[names == name].mean() > 0.5 for name in set(names)):
            return nothing
    return shift, [bool(0 < share <= most) for share in shares]


def settled(metric: Metric, baseline: Metric | None, policy: Policy) -> bool:
    """The stop rule for one variant: its interval, and that of its speed-up, is within the target, and the verdict on
    what a reader compares is one."""
    lows = metric.lows
    if len(lows) < max(policy.min_rounds, LEAST):
        return False
    target = policy.target_of(metric.name)
    if baseline is not None and min(*lows, *baseline.lows) <= 0:
        return True  # more rounds would not make it comparable
    if max(lows) <= 0:
        return True
    half_width = summarise(lows).half_width
    if half_width is None or not half_width <= target:  # so that NaN never settles
        return False
    if baseline is None:
        return True
    comparison = compare(metric, baseline, policy.same_within)
    if comparison is None or comparison.interval is None:
        return False
    narrow = math.log(comparison.interval[1] / comparison.interval[0]) / 2 <= target
    return narrow and not (metric.name in JUDGED and comparison.verdict is Verdict.UNDECIDED)


def _comparison(log: float, interval: Callable[[float], tuple[float, float]], n: int, same_within: float) -> Comparison:
    """`interval` gives that of an error probability."""
    if n < LEAST:
        return Comparison(math.exp(log), None, Verdict.UNDECIDED, n)
    (low, high), (lowest, highest) = interval(1 - CONFIDENCE), interval(1 - CERTAINTY)
    margin = math.log1p(same_within)
    if lowest > margin:
        verdict = Verdict.FASTER
    elif highest < -margin:
        verdict = Verdict.SLOWER
    elif -margin <= low and high <= margin:
        verdict = Verdict.SAME
    else:
        verdict = Verdict.UNDECIDED
    return Comparison(math.exp(log), (math.exp(low), math.exp(high)), verdict, n)
