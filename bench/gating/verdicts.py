"""From log ratios of process pairs to a verdict for each case. Pure functions of numbers: no clock, no files, no torch.

The unit is the generation: one x a case, the log of new time over old time in one pair of fresh processes. Repeats
inside a process share its memory, and say nothing of the next process.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy import stats
from scipy.stats import mstats

TRIM = 0.2  # of the values at each end: one spiked generation in five moves nothing far
SUITE = "the whole suite"  # the name under which what all cases have in common is judged
LEAST = 5  # cases that have something in common: of fewer nothing is trimmed, and one of them would speak for all
MOST = 1000  # generations that a run may be advised to take


class Outcome(enum.StrEnum):
    """What the generations say of one case."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    OK = "ok"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """What counts as a change, and how often the gate may be wrong.

    `looks` are the numbers of generations after which cases are judged. The first look only acquits: what looks
    changed there goes on, and is convicted by the next look or not at all. That costs time where there is a change
    and none where there is none, and keeps out processes that for a few generations happened to lie badly.
    """

    looks: tuple[int, ...] = (8, 16, 24)
    bound: float = 0.05  # OK needs a slow-down of this much ruled out
    family: float = 0.01  # chance that a suite in which nothing changed has a case called regressed
    miss: float = 0.03  # chance that a case slower by `bound` is called ok

    def error_at(self, look: int) -> float:
        """The part of `family` that one look may spend."""
        return self.family / max(1, len(self.looks) - 1)

    @property
    def miss_at_look(self) -> float:
        return self.miss / len(self.looks)

    def convicts(self, look: int) -> bool:
        return look > 0 or len(self.looks) == 1


CPU = Rule()
GPU = Rule(looks=(6, 12))  # quieter
TAU = {"cpu": 0.02, "cuda": 0.01}  # changes up to this are none


@dataclass(frozen=True)
class Estimate:
    """A trimmed mean of log ratios with Yuen's standard error."""

    centre: float
    error: float
    n: int

    @property
    def freedom(self) -> int:
        return self.n - 2 * int(TRIM * self.n) - 1

    def p_above(self, log: float) -> float:
        """One-sided p of "the true centre is at most `log`"."""
        if self.error == 0:
            return 0.0 if self.centre > log else 1.0
        return float(stats.t.sf((self.centre - log) / self.error, self.freedom))

    def p_below(self, log: float) -> float:
        """One-sided p of "the true centre is at least `log`"."""
        return Estimate(-self.centre, self.error, self.n).p_above(-log)

    def upper(self, error: float) -> float:
        """What the true centre exceeds with a chance of `error` only."""
        return self.centre + float(stats.t.isf(error, self.freedom)) * self.error

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        half = self.upper((1 - confidence) / 2) - self.centre
        return self.centre - half, self.centre + half

    @property
    def noise(self) -> float:
        """Standard deviation of one generation's log ratio, spikes aside."""
        return self.error * math.sqrt(self.n)


def estimate(values: Sequence[float]) -> Estimate:
    """Of at least four values, else ValueError; infinite ones are extreme, NaN is an error."""
    if len(values) < 4 or np.isnan(values).any():
        raise ValueError(f"{len(values)} values, four needed" if len(values) < 4 else "NaN among the values")
    # A value that is infinite would make NaN of what it is trimmed from.
    logs = np.clip(np.asarray(values, dtype=float), -1e3, 1e3)
    centre = float(mstats.trimmed_mean(logs, limits=(TRIM, TRIM)))
    return Estimate(centre, float(mstats.trimmed_stde(logs, limits=(TRIM, TRIM))), len(values))


def holm(values: Mapping[str, float], error: float, family: int) -> set[str]:
    """The names whose p-values Holm's procedure rejects, out of `family` hypotheses still open."""
    rejected: set[str] = set()
    for name, p in sorted(values.items(), key=lambda item: item[1]):
        if p > error / (family - len(rejected)):
            break
        rejected.add(name)
    return rejected


@dataclass(frozen=True)
class Finding:
    """The verdict on one case, and what it rests on. Ratios are new time / old time: above 1 is slower."""

    outcome: Outcome
    estimate: Estimate
    tau: float
    sees: float  # slow-down, as a fraction, that this run would have reported 95 times of 100
    needs: int | None  # generations that would decide, where this many did not; None: none, or more than MOST
    suspect: bool = False  # seems changed, and the look could not convict

    @property
    def ratio(self) -> float:
        return math.exp(self.estimate.centre)

    @property
    def interval(self) -> tuple[float, float]:
        """95 %."""
        low, high = self.estimate.interval()
        return math.exp(low), math.exp(high)


def judge(
    data: Mapping[str, Sequence[float]],
    taus: Mapping[str, float],
    rule: Rule,
    look: int,
    convicted: int = 0,
    acquitted: int = 0,
) -> dict[str, Finding]:
    """Judge the cases still open at a look. `convicted` and `acquitted` are how many earlier looks did away with: what
    was convicted leaves the family (Holm), what was acquitted stays in it."""
    found = {name: estimate(values) for name, values in data.items()}
    family, error = len(data) + acquitted, rule.error_at(look)
    slower = holm({name: one.p_above(math.log1p(taus[name])) for name, one in found.items()}, error, family)
    faster = holm({name: one.p_below(-math.log1p(taus[name])) for name, one in found.items()}, error, family)
    findings: dict[str, Finding] = {}
    for name, one in found.items():
        suspect = name in slower or name in faster
        if suspect and rule.convicts(look):
            outcome = Outcome.REGRESSED if name in slower else Outcome.IMPROVED
        elif not suspect and one.upper(rule.miss_at_look) < math.log1p(rule.bound):
            outcome = Outcome.OK
        else:
            outcome = Outcome.INCONCLUSIVE
        needs = _needs(one, taus[name], rule, error / family) if outcome is Outcome.INCONCLUSIVE else None
        sees = _sees(one, taus[name], error / family)
        findings[name] = Finding(outcome, one, taus[name], sees, needs, suspect and outcome is Outcome.INCONCLUSIVE)
    return findings


def _sees(one: Estimate, tau: float, error: float) -> float:
    quantiles = float(stats.t.isf(error, one.freedom)) + float(stats.t.isf(0.05, one.freedom))
    return math.expm1(min(math.log1p(tau) + quantiles * one.error, 50.0))


def _needs(one: Estimate, tau: float, rule: Rule, error: float) -> int | None:
    """How many generations would decide if their centre and noise stayed these."""
    n = np.arange(one.n + 1, MOST + 1)
    freedom, errors = n - 2 * (TRIM * n).astype(int) - 1, one.noise / np.sqrt(n)
    beyond = abs(one.centre) - math.log1p(tau)
    acquits = one.centre + stats.t.isf(rule.miss_at_look, freedom) * errors < math.log1p(rule.bound)
    decides = acquits | (beyond > stats.t.isf(error, freedom) * errors)
    return int(n[decides.argmax()]) if decides.any() else None


@dataclass
class Verdicts:
    """All cases of a suite over the generations of a run. `taus` names them; canaries are identical in both arms.

    What is measured `beside` a case's deciding metric (the latency of a GPU case, which a busy host may make too noisy
    ever to be decided) may be found changed, but is not waited for, and has no part in what all cases have in common.
    """

    rule: Rule
    taus: Mapping[str, float]
    canaries: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    findings: dict[str, Finding] = field(default_factory=dict)
    _data: dict[str, list[float]] = field(default_factory=dict)

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(name for name in self.taus if name not in self.canaries)

    def add(self, generation: Mapping[str, float]) -> None:
        """One generation's log ratios; what all cases have in common is their trimmed mean, while half of them run."""
        for name, x in generation.items():
            self._data.setdefault(name, []).append(x)
        values = [x for name, x in generation.items() if name not in self.canaries | self.beside]
        if len(values) >= max(LEAST, len(self._deciding()) / 2):
            self._data.setdefault(SUITE, []).append(float(stats.trim_mean(values, TRIM)))

    def drop(self, name: str) -> None:
        """Judge this case no more: it broke."""
        self.taus = {key: tau for key, tau in self.taus.items() if key != name}
        self.__dict__.pop("cases", None)
        self._data.pop(name, None)
        self.findings.pop(name, None)

    def open(self) -> tuple[str, ...]:
        """The cases that are to run on: undecided ones, and whatever seems changed and is yet to be convicted."""
        return tuple(name for name in self._undecided() if name not in self.beside or self._suspect(name))

    def look(self, number: int) -> None:
        """Judge what is open after a planned number of generations, or after the last there was time for.

        Where the canaries or the suite as a whole seem changed and this look may not convict, nothing is decided.
        """
        canaries = judge(self._of(self.canaries), self.taus, self.rule, number)
        outcomes = [self._outcome(name) for name in self.cases]
        convicted = sum(one in (Outcome.REGRESSED, Outcome.IMPROVED) for one in outcomes)
        open_ = tuple(name for name in self._undecided() if self._length(name) > self._judged(name))
        longest = max(map(self._length, open_), default=-1)
        whole = {SUITE: self._data[SUITE]} if self._length(SUITE) == longest else {}
        taus = {**self.taus, SUITE: max((self.taus[name] for name in self._deciding()), default=0.0)}
        acquitted = len(self.cases) - len(open_) - convicted  # or no longer measured
        found = judge(self._of(open_) | whole, taus, self.rule, number, convicted, acquitted)
        if any(one.suspect for one in [*canaries.values(), *(found[name] for name in whole)]):
            found = {name: replace(one, outcome=Outcome.INCONCLUSIVE) for name, one in found.items()}
        self.findings |= canaries | found

    def broken_canaries(self) -> dict[str, Finding]:
        """Those that differ although both arms run the same code: then nothing here can be believed."""
        changed = (Outcome.REGRESSED, Outcome.IMPROVED)
        return {name: self.findings[name] for name in self.canaries if self._outcome(name) in changed}

    def _outcome(self, name: str) -> Outcome:
        return self.findings[name].outcome if name in self.findings else Outcome.INCONCLUSIVE

    def _of(self, names: Iterable[str]) -> dict[str, Sequence[float]]:
        return {name: self._data[name] for name in names if len(self._data.get(name, ())) >= 4}

    def _length(self, name: str) -> int:
        return len(self._data.get(name, ()))

    def _judged(self, name: str) -> int:
        """How many generations its finding rests on: another look at no more would be the same look."""
        return self.findings[name].estimate.n if name in self.findings else 0

    def _deciding(self) -> tuple[str, ...]:
        return tuple(name for name in self.cases if name not in self.beside)

    def _undecided(self) -> tuple[str, ...]:
        return tuple(name for name in self.cases if self._outcome(name) is Outcome.INCONCLUSIVE)

    def _suspect(self, name: str) -> bool:
        return name not in self.findings or self.findings[name].suspect
