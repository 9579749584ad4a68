"""What the self-test found, and how its figures are judged. Pure functions of numbers: no clock, no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
from scipy import stats

from bench.units import percent, show

CLAIM = 1 / 200  # verdicts that may call a process faster or slower than its twin
QUIET = 0.03  # standard deviation of the log ratio of twins, up to which a machine counts as quiet
OVERHEAD = 100e-9  # s a call that the harness may add inside a window
RARE = 0.01  # probability below which chance is no explanation
POWER = 0.95  # share of the runs in which a detectable change is detected


Outcome = Literal["pass", "warn", "fail", "skip"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Finding(msgspec.Struct, frozen=True):
    """One row of the self-test. `warn` is a property of the machine worth knowing; only `fail` sets the exit code."""

    name: str
    status: Outcome
    figure: str = ""  # what was found, with its unit
    bound: str = ""  # what passes
    detail: str = ""  # why it was skipped, what failed, what it means


class Twins(msgspec.Struct, frozen=True):
    """The A/A result of one case: identical variants in processes of their own, compared with one of them."""

    name: str
    metric: str
    seconds: float  # a call
    ratios: tuple[float, ...]  # log of each speed-up; 0 is the truth
    half_widths: tuple[float | None, ...]  # of their 95 % intervals, in logs; None: too few rounds for one
    verdicts: int
    false: int  # verdicts faster or slower
    blocks: int  # with one baseline each
    false_blocks: int  # with a false verdict or more


class Report(msgspec.Struct, frozen=True):
    """The self-test's record; `environment` as in a run's header, its fingerprint included."""

    version: str
    started: str  # ISO 8601, UTC
    seconds: float
    environment: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    twins: tuple[Twins, ...] = ()
    same_within: float = 0.0  # the policy's, behind the verdicts

    @property
    def failed(self) -> bool:
        return any(finding.status == "fail" for finding in self.findings)


class Reading(msgspec.Struct, frozen=True):
    """One way of measuring a known delay: both in seconds per call."""

    label: str
    measured: float
    truth: float


def recovered(name: str, readings: Sequence[Reading], *, relative: float, absolute: float) -> Finding:
    """Every reading lies within the larger of the two bounds of its truth; the worst is shown."""
    worst = max(readings, key=lambda one: abs(one.measured - one.truth) / max(relative * one.truth, absolute))
    most = max(relative * worst.truth, absolute)
    fine = abs(worst.measured - worst.truth) <= most  # so that NaN fails
    return Finding(
        name,
        "pass" if fine else "fail",
        f"{show(worst.measured, 's')} for {show(worst.truth, 's')}",
        f"± {show(most, 's')}",
        worst.label if len(readings) == 1 else f"the worst of {len(readings)} readings: {worst.label}",
    )


def agreement(name: str, rounds: Sequence[Mapping[str, float]], *, relative: float, absolute: float) -> Finding:
    """In each round the clocks, by name, lie within the larger bound of one another (seconds); the worst is shown."""
    clocks = list(rounds[0])
    if len(clocks) < 2:
        return Finding(name, "skip", detail=f"only one clock: {clocks[0]}")

    def bound(values: Mapping[str, float]) -> float:
        return max(relative * min(values.values()), absolute)

    def apart(values: Mapping[str, float]) -> float:
        return max(values.values()) - min(values.values())

    worst = max(rounds, key=lambda values: apart(values) / bound(values))
    return Finding(
        name,
        "pass" if apart(worst) <= bound(worst) else "fail",
        f"{show(apart(worst), 's')} apart",
        f"≤ {show(bound(worst), 's')}",
        ", ".join(f"{clock} {show(value, 's')}" for clock, value in worst.items()),
    )


def overhead(seconds: float) -> Finding:
    """What the harness adds to a call inside the window, given in seconds a call."""
    return Finding(
        "harness overhead a call",
        "pass" if seconds <= OVERHEAD else "fail",
        show(seconds, "s"),
        f"≤ {show(OVERHEAD, 's')}",
        "a window over a layer that returns its input, less a bare loop that calls its module",
    )


def clock_steps(step: float, backwards: int) -> Finding:
    """The smallest step of the host clock in seconds, and how often it went backwards."""
    fine = 0 < step <= 1e-6 and not backwards
    figure = f"steps of {show(step, 's')}" + (f", {backwards} backwards" if backwards else "")
    return Finding("host clock", "pass" if fine else "fail", figure, f"≤ {show(1e-6, 's')}", "never backwards")


def clock_rates(ratio: float) -> Finding:
    """The speed of the timers' clock against the kernel's undisciplined one; time servers bend it by 0.05 % at most."""
    apart = abs(ratio - 1)
    return Finding(
        "host clock against raw clock",
        "pass" if apart <= 1e-3 else "fail",
        f"{percent(apart)} apart",
        "≤ 0.1 %",
        "perf_counter over CLOCK_MONOTONIC_RAW, during the probes",
    )


def cpu_share(share: float, longest: float) -> Finding:
    """How much of the wall time a spinning process was given, and the longest stop in seconds. Never a failure:
    neighbours are no fault of the clocks, and low estimators are there for them."""
    return Finding(
        "CPU time while spinning",
        "pass" if share >= 0.95 else "warn",
        f"{percent(share)}, longest stop {show(longest, 's')}",
        "≥ 95 %",
        "the rest went to other processes or machines: expect wide intervals",
    )


def fault_cost(seconds: float | None, page: int) -> Finding:
    """What the first touch of a page of `page` bytes costs; None where faults are not counted. A fact: no bound."""
    name = "cost of a page fault"
    if seconds is None:
        return Finding(name, "skip", detail="this kernel counts no page faults")
    fresh = show(2**20 / page * seconds, "s")
    return Finding(name, "pass", show(seconds, "s"), detail=f"an output on 1 MiB of fresh pages costs {fresh} more")


def warm_faults(per_call: float) -> Finding:
    """Page faults a call of a case with a large output, under `allocator: warm`."""
    return Finding(
        "page faults, allocator: warm",
        "pass" if per_call < 0.5 else "fail",
        f"{per_call:.3g} a call",
        "0",
        "a copy of 4 MiB; outputs on fresh pages would be timed with the kernel's clearing of them",
    )


def deviation(twins: Twins) -> float:
    """Standard deviation of the log ratio of identical processes, about its true mean of 0."""
    return math.sqrt(statistics.fmean(ratio**2 for ratio in twins.ratios))


def detectable(twins: Twins, same_within: float) -> float | None:
    """The smallest change, relative, that gets its verdict in 95 % of the runs; None where none does.

    It must carry the interval past the margin from wherever the twins' ratio lay, in either direction: counted over
    the ratios and intervals as they were, since their outliers follow no normal distribution.
    """
    needed = sorted(
        math.inf if half is None else half + side
        for ratio, half in zip(twins.ratios, twins.half_widths, strict=True)
        for side in (ratio, -ratio)
    )
    most = needed[math.ceil(POWER * len(needed)) - 1]
    return math.expm1(math.log1p(same_within) + most) if most < math.inf else None


def noise(twins: Twins, same_within: float) -> Finding:
    """How far twins differ, and what change can be told from that."""
    spread, change = deviation(twins), detectable(twins, same_within)
    seen = "sees no change" if change is None else f"sees changes of {percent(change)}"
    low, high = (math.expm1(end(twins.ratios)) for end in (min, max))
    return Finding(
        f"A/A {twins.name}",
        "pass" if spread <= QUIET and change is not None else "warn",
        f"sd {percent(spread)}, {seen}",
        f"sd ≤ {percent(QUIET)}",
        f"{len(twins.ratios)} comparisons of identical processes, {show(twins.seconds, 's')} of {twins.metric} a call, "
        f"found differences from {percent(low)} to {percent(high)}",
    )


def false_verdicts(twins: Sequence[Twins]) -> Finding:
    """Whether more twins were called faster or slower than the claim of 1 in 200 explains.

    Counted by blocks: the verdicts of one share their baseline, and an odd baseline makes them all false at once.
    """
    verdicts, false = sum(one.verdicts for one in twins), sum(one.false for one in twins)
    blocks, false_blocks = sum(one.blocks for one in twins), sum(one.false_blocks for one in twins)
    name, guilty = "false verdicts", ", ".join(f"{one.name}: {one.false}" for one in twins if one.false)
    if not blocks:
        return Finding(name, "skip", detail="no case of the A/A run was measured")
    chance = 1 - (1 - CLAIM) ** (verdicts / blocks)
    probability = float(stats.binom.sf(false_blocks - 1, blocks, chance))
    most = int(stats.binom.isf(RARE, blocks, chance))
    return Finding(
        name,
        "pass" if probability >= RARE else "fail",
        f"{false} of {verdicts}, in {false_blocks} of {blocks} blocks",
        f"≤ {most} block{'s' * (most != 1)}",
        f"identical processes called faster or slower ({guilty or 'none'}); at 1 in 200 chance gives as many with "
        f"probability {probability:.2g}. Let nothing else run and test again, or set a larger same_within",
    )


def statement(twins: Sequence[Twins], same_within: float, change: float = 0.05) -> str:
    """What this machine can tell apart, in a sentence."""
    found = {one.name: detectable(one, same_within) for one in twins}
    if not found:
        return ""
    seen = [name for name, least in found.items() if least is not None and least <= change]
    others = {name: least for name, least in found.items() if name not in seen}
    needs = [f"{name} needs {'more rounds' if least is None else percent(least)}" for name, least in others.items()]
    whose = "every case" if len(seen) == len(found) else ", ".join(seen) or "no case"
    return "; ".join([f"on this machine a change of {100 * change:g} % is detectable for {whose}", *needs])
