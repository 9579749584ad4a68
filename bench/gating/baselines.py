"""Stored baselines: the times of a suite on one machine, and the comparison of that machine with itself later.

Between the two lie days, another load and another placement of everything, which no repeats in one session show. So the
limits are wide, canaries tell whether the machine is still as it was, and other machines' files decide nothing.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy import stats as scipy_stats

from bench.gating import ab, gate, gaterun
from bench.gating.ab import Broke, Pairs, Shot
from bench.gating.arms import Arm
from bench.gating.gate import Entry, Line, Report, Result
from bench.gating.verdicts import TAU, TRIM
from bench.model import SCHEMA, Case, Status, Suite, UserError
from bench.protocol import Prepared

LIMIT = {"cpu": 0.15, "cuda": 0.05}  # slow-down that fails; a canary may move by half of it
FAMILY = 0.01  # chance that a suite in which nothing changed has a case called regressed
FOLDER = Path("results/baselines")
UNKNOWN = Prepared(Status.FAILED, lacks="such case")


class BaselineHeader(msgspec.Struct, frozen=True, tag="baseline"):
    """First line of a baseline."""

    schema: int
    started: str
    suite: str
    fingerprint: str
    code: str  # revision and commit, in words
    conditions: dict[str, Any] = {}  # see Policy.conditions


class Stored(msgspec.Struct, frozen=True, tag="case"):
    """One metric of one case: the lowest slot of each generation in seconds, or why there is none."""

    case: str
    metric: str = "latency"
    lows: tuple[float, ...] = ()
    noise: float = 0.0  # standard deviation of their logarithms
    status: Status = Status.OK
    reason: str = ""

    @property
    def key(self) -> str:
        return ab.key(self.case, self.metric)


@dataclass
class Baseline:
    """What a file holds, or what was just measured to be compared with one."""

    header: BaselineHeader
    stored: list[Stored] = field(default_factory=list)

    def states(self) -> dict[str, Prepared]:
        """By case; those whose status is ok have times."""
        return {one.case: Prepared(one.status, one.reason) for one in self.stored}

    def lows(self) -> dict[str, tuple[float, ...]]:
        return {one.key: one.lows for one in self.stored if one.status is Status.OK}


def path_of(fingerprint: str, suite: str, folder: Path = FOLDER) -> Path:
    """Where the baseline of a machine and suite is kept."""
    name, _, digest = fingerprint.rpartition("#")
    short = re.sub(r"[^a-z0-9]+", "-", name.partition(";")[0].lower()).strip("-")
    return folder / f"{short}-{digest}" / f"{suite}.jsonl"


def save(baseline: Baseline, path: Path) -> None:
    """Write it, whole or not at all. Raises UserError."""
    lines = [msgspec.json.encode(record) + b"\n" for record in (baseline.header, *baseline.stored)]
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"".join(lines))
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", place=str(path)) from None


def load(path: Path) -> Baseline:
    """Read a baseline. Raises UserError: no such file, another schema, a broken line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        remedy = "make one with: layerbench baseline update --suite SUITE"
        raise UserError(f"cannot read it: {error.strerror}", place=str(path), remedy=remedy) from None
    records = []
    for number, text in enumerate(lines, start=1):
        try:
            records.append(msgspec.json.decode(text, type=BaselineHeader if number == 1 else Stored))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"not a baseline: {error}", place=f"{path}:{number}", remedy="make it anew") from None
    if not records or not isinstance(records[0], BaselineHeader) or records[0].schema != SCHEMA:
        raise UserError("not a baseline of this schema", place=f"{path}:1", remedy="make it anew") from None
    return Baseline(records[0], [record for record in records[1:] if isinstance(record, Stored)])


def fingerprint(suite: Suite, arm: Arm, folder: Path) -> str:
    """This machine's, as a worker sees it."""
    cases = [planned.case for planned in suite.cases().values()]
    pairs = Pairs((arm,), suite.policy, ab.effort_for(cases), folder / "workers.log")
    return str(pairs.environment()["fingerprint"])


def measure(suite: Suite, arm: Arm, folder: Path, tell: gaterun.Tell, machine: str) -> Baseline:
    """Take the times of a suite, canaries included: fresh processes, as many as at the first look of an A/B."""
    cases = [planned.case for planned in suite.cases().values()]
    everything = [*cases, *ab.canaries(cases)]
    pairs = Pairs((arm,), suite.policy, ab.effort_for(cases), folder / "workers.log")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    taken: dict[str, list[Shot]] = {}
    with gaterun.Record(folder / gaterun.FILE) as record:
        record.append(gaterun.GateHeader(SCHEMA, started, suite, {arm.name: arm.label}))
        states, _ = gaterun.check(pairs, everything, record, tell)
        found = {name: of_arm[arm.name] for name, of_arm in states.items()}
        generations = pairs.effort.rule.looks[0]
        for number in range(generations):
            going = [case for case in everything if found[case.id].status is Status.OK]
            tell(f"generation {number + 1} of {generations}: {len(going)} cases", 0.1 + 0.9 * number / generations, "")
            for event in pairs.generation(number, going):
                record.append(event)
                if isinstance(event, Shot):
                    taken.setdefault(event.key, []).append(event)
                elif isinstance(event, Broke):
                    found[event.case] = Prepared(event.status, event.reason)
    header = BaselineHeader(SCHEMA, started, suite.name, machine, arm.label, suite.policy.conditions())
    stored = [_stored(shots, arm.name) for name, shots in taken.items() if found[ab.case_of(name)].status is Status.OK]
    stored += [Stored(name, status=one.status, reason=one.reason) for name, one in found.items() if one.reason]
    return Baseline(header, stored)


def _stored(shots: Sequence[Shot], arm: str) -> Stored:
    logs = [shot.log(arm) for shot in shots]
    noise = statistics.stdev(logs) if len(logs) > 1 else 0.0
    return Stored(shots[0].case, shots[0].metric, tuple(math.exp(log) for log in logs), noise)


def refusal(old: Baseline, suite: Suite, machine: str) -> str:
    """Why a file cannot be a baseline here; empty where it can."""
    if old.header.suite != suite.name:
        return f"the baseline is of suite {old.header.suite}, not {suite.name}"
    other = [name for name, value in suite.policy.conditions().items() if old.header.conditions.get(name) != value]
    if other:
        return f"the baseline was made under other conditions ({', '.join(other)}): make it anew"
    if old.header.fingerprint != machine:
        return f"the baseline is of another machine: {old.header.fingerprint}; this is {machine}"
    return ""


def compare(old: Baseline, new: Baseline, suite: Suite, seconds: float) -> Report:
    """The gate's report on a stored baseline of this machine."""
    lows, older = new.lows(), old.lows()
    names = [name for name in lows if name in older]
    entries = {name: _entry(name, older[name], lows[name], len(names)) for name in names}
    problems = []
    for name, entry in entries.items():
        half = LIMIT[ab.kind(name)] / 2
        if ab.case_of(name) not in suite.cases() and not 1 / (1 + half) < entry.ratio < 1 + half:
            moved = f"canary {name} took {entry.ratio:.2f} times as long as when the baseline was made"
            problems.append(f"{moved}: this machine is not as it was")
    lines = tuple(_line(case, old, new, entries, suite.cases()[case.id].expect) for case in _cases(suite))
    known = {ab.case_of(one.case) for one in new.stored}
    gone = sorted({one.case for one in old.stored} - known)
    lines += tuple(Line(name, Result.LOST, "only in the baseline: removed or renamed") for name in gone)
    return _report(old, new, lines, seconds, problems=tuple(problems))


def ratios(old: Baseline, new: Baseline, suite: Suite, seconds: float) -> Report:
    """Another machine's baseline as times relative to the variant that each block compares with: it can only warn."""
    lines, notes = [], [f"ratios to each block's baseline variant only, from another machine: {old.header.fingerprint}"]
    states = new.states()
    for block in suite.blocks:
        base = f"{block.setting}/{block.baseline}"
        for planned in block.cases:
            name = planned.case.id
            change = _relative(old.lows(), new.lows(), name, base)
            state = states.get(name, Prepared(Status.FAILED, "not measured"))
            before = state if name in old.states() else UNKNOWN
            if line := gate.unmeasured(name, before, state, planned.expect, "the baseline"):
                lines.append(line)
                continue
            lines.append(Line(name, Result.OK, "" if change is not None else f"no ratio to {block.baseline} there"))
            if change is not None and abs(math.log(change)) > math.log1p(LIMIT["cpu"]):
                notes.append(
                    f"warning: {name} takes {change:.2f} times as long beside {block.baseline} as it did there"
                )
    return _report(old, new, tuple(lines), seconds, notes=tuple(notes))


def _relative(
    old: Mapping[str, tuple[float, ...]], new: Mapping[str, tuple[float, ...]], name: str, base: str
) -> float | None:
    if any(key not in side for side in (old, new) for key in (name, base)):
        return None
    now, then = (statistics.median(side[name]) / statistics.median(side[base]) for side in (new, old))
    return now / then


def _cases(suite: Suite) -> list[Case]:
    return [planned.case for planned in suite.cases().values()]


def _line(case: Case, old: Baseline, new: Baseline, entries: Mapping[str, Entry], expected: Status) -> Line:
    before, now = old.states().get(case.id, UNKNOWN), new.states().get(case.id)
    if now is None:
        return Line(case.id, Result.LOST, "not measured")
    if line := gate.unmeasured(case.id, before, now, expected, "the baseline"):
        return line
    found = [entry for name, entry in entries.items() if ab.case_of(name) == case.id]
    return gate.line_of(case.id, found) if found else Line(case.id, Result.LOST, "no metric in common")


def _entry(name: str, old: Sequence[float], new: Sequence[float], family: int) -> Entry:
    """Regressed: beyond the limit, and surely beyond what is no change. Ok: surely within the limit."""
    limit, tau = math.log1p(LIMIT[ab.kind(name)]), math.log1p(TAU[ab.kind(name)])
    older, newer = np.log(old), np.log(new)
    if np.ptp(older) == np.ptp(newer) == 0:  # nothing varies: scipy would answer nan
        newer = newer + 1e-9 * np.arange(len(newer))
    test = scipy_stats.ttest_ind(newer, older, equal_var=False, trim=TRIM)
    centre = float(scipy_stats.trim_mean(newer, TRIM) - scipy_stats.trim_mean(older, TRIM))
    low, high = map(float, test.confidence_interval(0.95))
    sure, _ = map(float, test.confidence_interval(1 - 2 * FAMILY / max(1, family)))
    most = 2 * centre - sure
    if centre > limit and sure > tau:
        result = Result.REGRESSED
    elif centre < -limit and most < -tau:
        result = Result.IMPROVED
    else:
        result = Result.OK if high < limit else Result.INCONCLUSIVE
    return Entry(
        metric="device" if ab.kind(name) == "cuda" else "latency",
        unit="s",
        result=result,
        ratio=math.exp(centre),
        old=min(old),
        new=min(new),
        low=math.exp(low),
        high=math.exp(high),
        noise=math.hypot(float(older.std(ddof=1)), float(newer.std(ddof=1))),
        sees=math.expm1(limit + high - centre),
        generations=len(new),
    )


def _report(
    old: Baseline,
    new: Baseline,
    lines: tuple[Line, ...],
    seconds: float,
    *,
    problems: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Report:
    return Report(
        suite=new.header.suite,
        old=f"baseline of {old.header.started[:10]}, {old.header.code}",
        new=new.header.code,
        started=new.header.started,
        seconds=seconds,
        lines=lines,
        problems=problems,
        notes=notes,
        limit=LIMIT["cpu"],
    )


def refused(old: Baseline, suite: str, why: str) -> Report:
    """The report where nothing was measured."""
    empty = Baseline(msgspec.structs.replace(old.header, suite=suite, started=_now(), code="not measured"))
    return _report(old, empty, (), 0.0, problems=(why,))


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
