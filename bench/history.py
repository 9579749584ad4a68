"""Many runs of one machine -> how the time of each case went, and where it stepped. Needs no torch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from bench.model import Case, Run, UserError, no_case, run_file
from bench.rows import COMPARED, checked_summary
from bench.stats import LEAST, Summary

SIDE = 2  # runs that the newest level has lasted, at least: one odd run is no step
LASTS = 4  # runs that any other level lasts: two odd runs near one another are none
CHANCE = 0.01  # of seeing a step anywhere in a case whose runs differ by noise alone
NOISE = 0.002  # least that runs are taken to differ by, as the standard deviation of the log


@dataclass(frozen=True)
class Point:
    """A case in one run."""

    started: str
    commit: str
    summary: Summary


@dataclass(frozen=True)
class Step:
    """From run number `at` on, the time is `change` times what it was: 1.05 is 5 % slower."""

    at: int
    change: float


@dataclass(frozen=True)
class Series:
    """One metric of one case through the runs that have it, the oldest first."""

    case: Case
    metric: str
    points: tuple[Point, ...]
    steps: tuple[Step, ...]
    trend: float | None  # times so much from the first to the last run by the slope; None: not sure that there is one

    @property
    def centres(self) -> list[float]:
        """Seconds a call, run by run."""
        return [point.summary.centre for point in self.points]


@dataclass(frozen=True)
class History:
    """Of one machine. `left_out` says which runs are not in it, and why."""

    machine: str
    runs: int
    series: tuple[Series, ...]
    left_out: tuple[str, ...]


def history(runs: Sequence[Run], machine: str = "", only: Sequence[str] = ()) -> History:
    """The runs of the machine whose fingerprint contains `machine`; without, of the newest run's machine. Of cases
    whose ids contain all of `only`.

    Runs measured under other conditions than the newest one are left out as well: their times answer another
    question. Raises UserError when no run is of that machine.
    """
    ordered = sorted(runs, key=lambda run: run.header.started)
    fitting = [run for run in ordered if machine in _machine(run)]
    if not fitting:
        known = "; ".join(sorted({_machine(run) for run in ordered})) or "none"
        raise UserError(f"no run of a machine with {machine!r} in its fingerprint", remedy=f"those found: {known}")
    newest = fitting[-1]
    same_machine = [run for run in ordered if _machine(run) == _machine(newest)]
    kept = [run for run in same_machine if _conditions(run) == _conditions(newest)]
    others = Counter(_machine(run) for run in ordered if _machine(run) != _machine(newest))
    left_out = [f"{count} of another machine: {name}" for name, count in others.items()]
    if len(kept) < len(same_machine):
        left_out.append(f"{len(same_machine) - len(kept)} measured otherwise ({', '.join(_otherwise(same_machine))})")
    series = list(_all_series(kept, newest.header.suite.policy.same_within))
    found = tuple(one for one in series if all(text in one.case.id for text in only))
    if series and not found:
        raise no_case(only, series[0].case.id)
    return History(_machine(newest), len(kept), found, tuple(left_out))


def run_files(place: Path) -> list[Path]:
    """The run files meant by a path: that of a run, else all below a folder. Raises UserError where there is none."""
    if run_file(place).is_file():
        return [run_file(place).resolve()]
    found = sorted(file.resolve() for file in place.rglob("run.jsonl"))
    if not found:
        raise UserError("no run here", place=str(place), remedy="name a run's folder, or one that holds some")
    return found


def steps(values: Sequence[float], within: float) -> list[Step]:
    """Where positive values step by more than `within`.

    Stretches are halved where the distances to the medians of both halves add up to least, as long as there is anything
    to halve; then the least certain cuts are taken back, those around a level that did not last first, until all that
    are left are certain: both sides differ by more standard errors than chance reaches in one of a hundred such series
    (Student's t, Bonferroni over all places). The noise is that of neighbours, so that a step adds nothing to it.
    """
    logs = np.log(values)
    # A scale taken from the median distance of n values is about as sure as a standard deviation of n / 2 values.
    errors = float(stats.t.isf(CHANCE / 2 / len(logs), max(2, len(logs) / 2)))
    noise = _noise(logs)
    edges = [0, *sorted(_cuts(logs, 0)), len(logs)]
    while len(edges) > 2:
        parts = [logs[start:end] for start, end in itertools.pairwise(edges)]
        brief = [len(part) < LASTS for part in parts[:-1]] + [False]
        certainties = [
            (not (brief[number] or brief[number + 1]), _certainty(left, right, errors * noise, math.log1p(within)))
            for number, (left, right) in enumerate(itertools.pairwise(parts))
        ]
        if min(certainties) > (True, 1.0):
            break
        del edges[1 + certainties.index(min(certainties))]
    levels = [float(np.median(logs[start:end])) for start, end in itertools.pairwise(edges)]
    return [
        Step(at, math.exp(new - old)) for at, (old, new) in zip(edges[1:], itertools.pairwise(levels), strict=False)
    ]


def trend(values: Sequence[float]) -> float | None:
    """What positive values change by from first to last, as a factor by the median slope (Theil and Sen) of their
    logs. None for fewer than six, or where the 95 % interval of the slope holds no change."""
    if len(values) < LEAST:
        return None
    slope, _, low, high = stats.theilslopes(np.log(values), alpha=0.95)
    return math.exp(slope * (len(values) - 1)) if low > 0 or high < 0 else None


def _noise(logs: np.ndarray) -> float:
    if len(logs) < 2:
        return NOISE
    return max(NOISE, float(stats.median_abs_deviation(np.diff(logs), scale="normal")) / math.sqrt(2))


def _cuts(logs: np.ndarray, offset: int) -> Iterator[int]:
    places = range(SIDE, len(logs) - SIDE + 1)
    if places:
        cut = min(places, key=lambda place: _distance(logs[:place]) + _distance(logs[place:]))
        yield offset + cut
        yield from _cuts(logs[:cut], offset)
        yield from _cuts(logs[cut:], offset + cut)


def _certainty(left: np.ndarray, right: np.ndarray, noise: float, least: float) -> float:
    """How far two sides lie apart, over what they must."""
    error = noise * math.sqrt(math.pi / 2 * (1 / len(left) + 1 / len(right)))  # of a difference of medians
    return min(_shift(left, right), _shift(right, left)) / max(least, error)


def _shift(side: np.ndarray, other: np.ndarray) -> float:
    """How far a side lies from the median of the other: the lower median, so that of two runs both must lie so far."""
    distances = side - np.median(other)
    return float(np.sort(distances if np.median(distances) > 0 else -distances)[(len(side) - 1) // 2])


def _distance(logs: np.ndarray) -> float:
    return float(np.abs(logs - np.median(logs)).sum())


def _all_series(runs: Sequence[Run], within: float) -> Iterator[Series]:
    cases = {name: planned.case for run in runs for name, planned in run.header.suite.cases().items()}
    measured = [({one.case.id: one for one in run.measurements}, run) for run in runs]
    for name, case in cases.items():
        for metric in COMPARED:
            points = tuple(
                Point(run.header.started, _commit(run), summary)
                for found, run in measured
                if name in found and (taken := found[name].metric(metric))
                if (summary := checked_summary(taken)[0]) and summary.centre > 0
            )
            if points:
                values = [point.summary.centre for point in points]
                yield Series(case, metric, points, tuple(steps(values, within)), trend(values))


def _machine(run: Run) -> str:
    return str(run.header.environment.get("fingerprint"))


def _commit(run: Run) -> str:
    git = run.header.environment.get("git") or {}
    return str(git.get("commit") or "")[:7]


def _conditions(run: Run) -> dict[str, object]:
    return run.header.suite.policy.conditions()


def _otherwise(runs: Sequence[Run]) -> list[str]:
    """Which conditions are not the same in all."""
    return [name for name in _conditions(runs[0]) if len({_conditions(run)[name] for run in runs}) > 1]
