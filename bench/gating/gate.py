"""From results to an exit code. Pure; the meanings are those of `layerbench --help`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from bench.gating.verdicts import Finding, Outcome
from bench.model import Status, Verdict, is_surprise
from bench.stats import Comparison

if TYPE_CHECKING:
    from bench.table import Change


class Exit(enum.IntEnum):
    """Exit codes of the command."""

    OK = 0
    BAD = 1  # a regression, or a case incorrect or failed that should not be
    USAGE = 2  # usage or configuration
    INCONCLUSIVE = 3
    NOT_COMPARABLE = 4
    INTERNAL = 70
    INTERRUPTED = 130


def status_exit(found: Sequence[tuple[Status, Status]]) -> Exit:
    """Of the status of every case and the one that the suite expects: fine when they agree. A skipped case passes, but
    nothing but skipped cases says nothing, unless all are expected to be."""
    if any(is_surprise(status, expected) for status, expected in found):
        return Exit.BAD
    nothing = all(status is Status.SKIPPED for status, _ in found)
    return Exit.INCONCLUSIVE if nothing and any(expected is not Status.SKIPPED for _, expected in found) else Exit.OK


def comparison_exit(changes: Sequence[Change], *, alike: bool) -> Exit:
    """Not comparable beats a regression, a regression beats doubt: what cannot be trusted must not look decided."""
    if not alike or not changes or any(_lost(change) for change in changes):
        return Exit.NOT_COMPARABLE
    if any(_worse(change) for change in changes):
        return Exit.BAD
    compared = [change.comparison for change in changes if change.comparison]
    if not compared:
        return Exit.NOT_COMPARABLE
    return Exit.INCONCLUSIVE if any(one.verdict is Verdict.UNDECIDED for one in compared) else Exit.OK


def _lost(change: Change) -> bool:
    """In one run only, or measured in one and skipped in the other, or by other means: never a pass."""
    if change.new is None or change.old is None:
        return True
    if change.new.status is change.old.status is Status.OK and change.comparison is None:
        return True
    return (change.new.status is Status.SKIPPED) != (change.old.status is Status.SKIPPED)


def _worse(change: Change) -> bool:
    if change.comparison is not None:
        return change.comparison.verdict is Verdict.SLOWER
    assert change.new is not None
    assert change.old is not None
    return change.old.status is Status.OK and change.new.status in (Status.INCORRECT, Status.FAILED)


class Result(enum.StrEnum):
    """What the gate says of one case, worst first."""

    LOST = "not comparable"  # missing, renamed or skipped on one side
    BROKEN = "broken"  # incorrect or failed, and not expected to be
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    OK = "ok"
    NEW = "new"  # right, and the old side does not have it
    EXPECTED = "as expected"  # incorrect or failed, as the suite says
    SKIPPED = "skipped"  # on both sides


_CODES = {
    Result.LOST: Exit.NOT_COMPARABLE,
    Result.BROKEN: Exit.BAD,
    Result.REGRESSED: Exit.BAD,
    Result.INCONCLUSIVE: Exit.INCONCLUSIVE,
}
_FROM = {
    Outcome.REGRESSED: Result.REGRESSED,
    Outcome.IMPROVED: Result.IMPROVED,
    Outcome.OK: Result.OK,
    Outcome.INCONCLUSIVE: Result.INCONCLUSIVE,
}

_BY_VERDICT = {
    Verdict.SLOWER: Result.REGRESSED,
    Verdict.FASTER: Result.IMPROVED,
    Verdict.SAME: Result.OK,
    Verdict.UNDECIDED: Result.INCONCLUSIVE,
}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one case. Ratios are new / old: above 1 is slower."""

    metric: str
    unit: str
    result: Result
    ratio: float
    old: float  # lowest value of any generation
    new: float
    low: float | None = None  # 95 % interval of the ratio; None of a count, which has none
    high: float | None = None
    noise: float | None = None  # standard deviation of one generation's ratio
    sees: float | None = None  # slow-down that a run like this reports 95 times of 100
    needs: int | None = None  # generations that would decide
    generations: int = 0


class Line(msgspec.Struct, frozen=True):
    """One case."""

    case: str
    result: Result
    reason: str = ""
    entries: tuple[Entry, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gate found; what its formats show."""

    suite: str
    old: str  # what the old and the new side are, in words
    new: str
    started: str  # ISO 8601, UTC
    seconds: float
    lines: tuple[Line, ...]
    canaries: tuple[Line, ...] = ()
    whole: Entry | None = None  # what all cases have in common
    problems: tuple[str, ...] = ()  # why nothing here can be compared; empty where it can
    notes: tuple[str, ...] = ()
    limit: float = 0.05  # slow-down that "ok" rules out

    @property
    def exit(self) -> Exit:
        """Not comparable beats a regression, a regression beats doubt; nothing compared is no pass, unless what there
        is is new: then nothing can be slower than it was, and all was checked."""
        results = {line.result for line in self.lines} | ({self.whole.result} if self.whole else set())
        if self.problems or not results & {Result.OK, Result.IMPROVED, Result.NEW, *_CODES}:
            return Exit.NOT_COMPARABLE
        codes = {_CODES[result] for result in results if result in _CODES}
        return next((code for code in (Exit.NOT_COMPARABLE, Exit.BAD, Exit.INCONCLUSIVE) if code in codes), Exit.OK)

    @property
    def unprecedented(self) -> bool:
        """Whether it passes although nothing was there to compare with."""
        return self.exit is Exit.OK and not any(self.count(result) for result in (Result.OK, Result.IMPROVED))

    def count(self, result: Result) -> int:
        return sum(line.result is result for line in self.lines)


def line_of(case: str, entries: Sequence[Entry], reason: str = "") -> Line:
    """A case measured on both sides: as bad as its worst metric, but for excused doubt."""
    told = [entry.result for entry in entries if not excused(entry, entries)]
    return Line(case, min(told, key=list(Result).index), reason, tuple(entries))


def excused(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether doubt about a metric is none about the case: about a latency, where the device's own time is known."""
    doubtful = entry.result is Result.INCONCLUSIVE and entry.metric == "latency"
    return doubtful and any(one.metric == "device" for one in entries)


def merged(lines: Sequence[Line]) -> Line:
    """One case out of several ways to measure it; where one had to skip it, the others' word stands."""
    told = [line for line in lines if line.result is not Result.SKIPPED] or list(lines[:1])
    worst = min(told, key=lambda line: list(Result).index(line.result))
    return Line(worst.case, worst.result, worst.reason, tuple(entry for line in told for entry in line.entries))


class State(Protocol):
    """What came of making and checking a case."""

    @property
    def status(self) -> Status:
        """Ok: it was measured."""

    @property
    def reason(self) -> str:
        """Why not; empty when ok."""

    @property
    def lacks(self) -> str:
        """What is not there at all, in words that follow "has no"; empty where it is there, right or wrong."""


def unmeasured(case: str, old: State, new: State, expected: Status, before: str = "the old revision") -> Line | None:
    """The line of a case that is not right on both sides; None for one that is. New failures are never a pass.

    What `before`, the old side, does not have is new and no failure of it, but has to be right all the same.
    """
    if new.status is Status.OK and expected is not Status.OK and (old.status is Status.OK or old.lacks):
        return Line(case, Result.BROKEN, f"ok, expected {expected}")
    if old.status is new.status is Status.OK:
        return None
    if new.status is Status.SKIPPED and (old.status is Status.SKIPPED or old.lacks):
        return Line(case, Result.SKIPPED, new.reason)
    if new.status in (Status.INCORRECT, Status.FAILED):
        if new.status is expected:
            return Line(case, Result.EXPECTED, f"{new.status}: {new.reason}")
        return Line(case, Result.BROKEN, f"{new.status}: {new.reason}")
    if old.lacks:
        return Line(case, Result.NEW, f"{before} has no {old.lacks}; nothing to compare with")
    if old.status is Status.INCORRECT and new.status is Status.OK:
        return Line(case, Result.OK, f"was incorrect: {old.reason}")
    side, one = ("old", old) if old.status is not Status.OK else ("new", new)
    return Line(case, Result.LOST, f"{side} side {one.status}: {one.reason}")


def entry_of(finding: Finding, metric: str, old: float, new: float) -> Entry:
    """What generations say of one metric."""
    low, high = finding.interval
    return Entry(
        metric=metric,
        unit="s",
        result=_FROM[finding.outcome],
        ratio=finding.ratio,
        old=old,
        new=new,
        low=low,
        high=high,
        noise=finding.estimate.noise,
        sees=finding.sees,
        needs=finding.needs,
        generations=finding.estimate.n,
    )


def entry_of_counts(old: int, new: int, comparison: Comparison) -> Entry:
    """What instructions of one call say; the comparison's speed-up is old / new."""
    low, high = comparison.interval or (comparison.speedup, comparison.speedup)
    return Entry(
        metric="instructions",
        unit="1",
        result=_BY_VERDICT[comparison.verdict],
        ratio=1 / comparison.speedup,
        old=old,
        new=new,
        low=1 / high,
        high=1 / low,
        generations=comparison.n,
    )
