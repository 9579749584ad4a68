"""Carries a gate out: checks both arms, measures generation by generation, judges at every look, keeps a record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench import footnotes
from bench.gating import ab, arms, gate, instructions
from bench.gating.ab import Broke, Effort, Event, Pairs, Ran, Shot, Warned
from bench.gating.arms import Arm
from bench.gating.gate import Entry, Line, Report, Result
from bench.gating.verdicts import SUITE, TAU, Finding, Verdicts
from bench.model import SCHEMA, Case, Policy, Status, Suite, UserError
from bench.protocol import Prepared

FILE = "gate.jsonl"
SECONDS = 300.0  # that the generations may take

Tell = Callable[[str, float, str], None]  # what is being done, the share of the work that is done, details
States = dict[str, dict[str, Prepared]]  # by case and arm


class GateHeader(msgspec.Struct, frozen=True, tag="gate"):
    """First line of gate.jsonl."""

    schema: int
    started: str
    suite: Suite
    arms: dict[str, str]


class Record:
    """gate.jsonl: every event is in it as soon as it is known. Use with `with`. Raises UserError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", place=str(path), remedy="another --out") from None

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, event: GateHeader | Event) -> None:
        try:
            self._file.write(msgspec.json.encode(event) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", place=str(self._path)) from None


class Part(msgspec.Struct, frozen=True):
    """What one way of measuring found: times, or instructions."""

    lines: dict[str, Line]
    canaries: tuple[Line, ...] = ()
    whole: Entry | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def run(
    suite: Suite,
    pair: tuple[Arm, Arm],
    folder: Path,
    tell: Tell,
    *,
    metrics: Sequence[str] = ("latency",),
    seconds: float = SECONDS,
    identical: bool = False,
    effort: Effort | None = None,
) -> Report:
    """Compare two arms on a suite; the record goes into `folder`. Raises UserError.

    `metrics` are "latency" (on a GPU device time too) and "instructions". `identical` measures arms that ran the same
    files too, which gives the noise itself. `effort` is by device.
    """
    started, begin = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    cases = [planned.case for planned in suite.cases().values()]
    canaries = ab.canaries(cases) if "latency" in metrics else ()
    pairs = Pairs(pair, suite.policy, effort or ab.effort_for(cases), folder / "workers.log")
    with Record(folder / FILE) as record:
        record.append(GateHeader(SCHEMA, started, suite, {arm.name: arm.label for arm in pair}))
        states, files = check(pairs, [*cases, *canaries], record, tell)
        _forget_strangers(states, pair[0], cases, files["A"])
        settled = _settled(suite, states)
        running = [case for case in cases if case.id not in settled]
        problems = [*_broken(canaries, states), *proof(pair, files, running)]
        unlike, idle = _same(pair, files, states) if running and not identical else ([], False)
        problems += unlike
        parts = []
        if problems or not running:
            pass  # there is nothing to measure, or no sense in it
        elif idle:
            parts.append(_unchanged(running, files["B"]))
        else:
            if "instructions" in metrics:
                parts.append(counted(running, suite.policy, pair, files, tell))
            if "latency" in metrics:
                guards = [case for case in canaries if states[case.id]["A"].status is Status.OK]
                parts.append(Times(pairs, record, tell, seconds, files, running, guards).part())
    lines = [settled.get(case.id) or _merged(case.id, [part.lines[case.id] for part in parts]) for case in cases]
    return Report(
        suite=suite.name,
        old=pair[0].label,
        new=pair[1].label,
        started=started,
        seconds=time.monotonic() - begin,
        lines=tuple(lines),
        canaries=tuple(line for part in parts for line in part.canaries),
        whole=next((part.whole for part in parts if part.whole), None),
        problems=tuple(dict.fromkeys([*problems, *(problem for part in parts for problem in part.problems)])),
        notes=tuple(note for part in parts for note in part.notes),
    )


def _forget_strangers(states: States, old: Arm, cases: Sequence[Case], files: Mapping[str, str]) -> None:
    """A module that the old revision does not have was found in the working tree, which is on the path too."""
    for case in cases:
        file = arms.layer_file(case.layer)
        if file is None or not file.is_relative_to(old.repository):
            continue
        module = case.layer.rpartition(":")[0].replace(".", "/")
        own = files.keys() - set(old.strays(files))
        moved = any(name.endswith((f"{module}.py", f"{module}/__init__.py")) for name in own)
        if not moved and not (old.root / file.relative_to(old.repository)).exists():
            states[case.id]["A"] = Prepared(Status.FAILED, lacks="such layer")


def _settled(suite: Suite, states: States) -> dict[str, Line]:
    """The cases of which the check has already told all."""
    found = {
        name: gate.unmeasured(name, states[name]["A"], states[name]["B"], planned.expect)
        for name, planned in suite.cases().items()
    }
    return {name: line for name, line in found.items() if line}


def _broken(canaries: Sequence[Case], states: States) -> list[str]:
    return [
        f"canary {case.id} in {side}: {state.status}: {state.reason}"
        for case in canaries
        for side, state in states[case.id].items()
        if state.status not in (Status.OK, Status.SKIPPED)
    ]


def _same(pair: tuple[Arm, Arm], files: Mapping[str, Mapping[str, str]], states: States) -> tuple[list[str], bool]:
    """Of arms that ran the same files: why they are no two revisions, and whether nothing that runs has changed."""
    old, new = pair
    if old.commit == new.commit and not new.dirty:  # an operator's library may differ by the folder it was built in
        return [f"identical arms: {old.label} and {new.label} are the same commit"], False
    if files["A"] != files["B"]:
        return [], False
    changed = arms.changes(*pair)
    # A worker that died took with it what it had loaded.
    died = any(one.status is Status.FAILED and not one.lacks for by_arm in states.values() for one in by_arm.values())
    return mistaken(pair, files["B"], changed), all(map(arms.inert, changed)) and not died


def _unchanged(cases: Sequence[Case], files: Mapping[str, str]) -> Part:
    words = f"nothing was measured: every file that was run ({len(files)}) is the same in both revisions"
    return Part({case.id: Line(case.id, Result.OK) for case in cases}, notes=(words,))


def _merged(case: str, lines: Sequence[Line]) -> Line:
    return gate.merged(lines) if lines else Line(case, Result.LOST, "not measured")


def counted(
    cases: Sequence[Case], policy: Policy, pair: tuple[Arm, Arm], files: Mapping[str, Mapping[str, str]], tell: Tell
) -> Part:
    """The comparison of instruction counts, of cases that were checked. Raises UserError where none can be had."""
    old, new = instructions.count_both(
        cases, policy, *pair, progress=lambda text, share: tell("count instructions", share, text)
    )
    lines: dict[str, Line] = {}
    for case in cases:
        before, now = old.cases[case.id], new.cases[case.id]
        if before.status is now.status is Status.OK:
            change = instructions.compare(now, before)
            lines[case.id] = gate.line_of(case.id, [gate.entry_of_counts(before.value, now.value, change)])
            continue
        # The case was right when it was checked: what went wrong since is of the counting.
        why = "; ".join(dict.fromkeys(one.reason for one in (before, now) if one.reason))
        skipped = before.status is now.status is Status.SKIPPED
        lines[case.id] = Line(case.id, Result.SKIPPED if skipped else Result.LOST, why)
    problems = [
        f"{changed} of {arm.name} changed while it was measured"
        for arm, counts in zip(pair, (old, new), strict=True)
        if (changed := _changed(files[arm.name], counts.ran))
    ]
    return Part(lines, problems=tuple(problems))


@dataclass
class Times:
    """The A/B of times, of cases and canaries that were checked."""

    pairs: Pairs
    record: Record
    tell: Tell
    seconds: float
    files: Mapping[str, Mapping[str, str]]
    cases: Sequence[Case]
    canaries: Sequence[Case]
    _lines: dict[str, Line] = field(default_factory=dict)
    _problems: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _shots: dict[str, list[Shot]] = field(default_factory=dict)
    _warnings: dict[str, dict[str, None]] = field(default_factory=dict)  # by case, each once

    def part(self) -> Part:
        """Measure and judge."""
        verdicts = self._measure()
        lines = {case.id: self._line(case, verdicts) for case in self.cases}
        return Part(
            lines,
            tuple(self._line(case, verdicts) for case in self.canaries),
            self._whole(verdicts, {line.result for line in lines.values()}),
            tuple(self._problems),
            tuple(self._notes),
        )

    def _measure(self) -> Verdicts | None:
        begin, longest = time.monotonic(), 0.0
        rule, verdicts, look = self.pairs.effort.rule, None, 0
        going, number = list(self.cases), 0
        while going and look < len(rule.looks) and not self._problems:
            start = time.monotonic()
            self.tell(
                f"generation {number + 1} of at most {rule.looks[-1]}: {len(going)} cases",
                0.1 + 0.9 * number / rule.looks[-1],
                "",
            )
            values = self._generation(number, [*going, *self.canaries])
            going = [case for case in going if case.id not in self._lines]
            if verdicts is None:
                verdicts = self._verdicts(values)
            for name in [name for name in verdicts.taus if ab.case_of(name) in self._lines]:
                verdicts.drop(name)
            verdicts.add({name: x for name, x in values.items() if name in verdicts.taus})
            number += 1
            longest = max(longest, time.monotonic() - start)
            late = time.monotonic() - begin + longest > self.seconds
            if number == rule.looks[look] or (late and number >= 4):
                verdicts.look(look)
                look = len(rule.looks) if late else look + 1
                for name, one in verdicts.broken_canaries().items():
                    self._problems.append(f"canary {name}, the same code in both arms, differs: {one.ratio:.3f}")
                if number < rule.looks[-1] and late and verdicts.open():
                    self._notes.append(f"stopped after {number} generations: the time of {self.seconds:g} s was over")
                left = {ab.case_of(name) for name in verdicts.open()}
                going = [case for case in going if case.id in left]
        return verdicts

    def _verdicts(self, values: Mapping[str, float]) -> Verdicts:
        names = {case.id for case in self.canaries}
        taus = {name: TAU[ab.kind(name)] for name in values}
        guards = frozenset(name for name in values if ab.case_of(name) in names)
        return Verdicts(self.pairs.effort.rule, taus, guards, ab.beside(values) - guards)

    def _generation(self, number: int, cases: Sequence[Case]) -> Mapping[str, float]:
        names = {case.id for case in self.canaries}
        shots: list[Shot] = []
        for event in self.pairs.generation(number, cases):
            self.record.append(event)
            if isinstance(event, Shot):
                shots.append(event)
                self._shots.setdefault(event.key, []).append(event)
            elif isinstance(event, Warned):
                self._warnings.setdefault(event.case, {}).update(dict.fromkeys(event.warnings))
            elif isinstance(event, Broke) and event.case in names:
                self._problems.append(f"canary {event.case} in {event.arm}: {event.status}: {event.reason}")
            elif isinstance(event, Broke):
                result = Result.BROKEN if event.arm == "B" else Result.LOST
                self._lines[event.case] = Line(event.case, result, f"{event.arm} {event.status}: {event.reason}")
            elif changed := _changed(self.files[event.arm], event.files):
                self._problems.append(f"{changed} of {event.arm} changed while it was measured")
        return ab.ratios(shots)

    def _line(self, case: Case, verdicts: Verdicts | None) -> Line:
        if case.id in self._lines:
            return self._lines[case.id]
        keys = [name for name in (verdicts.findings if verdicts else {}) if ab.case_of(name) == case.id]
        if verdicts is None or not keys:
            return Line(case.id, Result.LOST, "not measured")
        line = gate.line_of(case.id, [self._entry(name, verdicts.findings[name]) for name in keys])
        why = "; ".join(footnotes.merge(self._warnings.get(case.id, ()))[0]) if line.result is not Result.OK else ""
        return msgspec.structs.replace(line, reason=why)

    def _entry(self, name: str, finding: Finding) -> Entry:
        shots = self._shots[name]
        old, new = (min(min(shot.slots[arm.name]) for shot in shots) for arm in self.pairs.arms)
        return gate.entry_of(finding, shots[0].metric, old, new)

    def _whole(self, verdicts: Verdicts | None, told: set[Result]) -> Entry | None:
        """Only a regression or an improvement of all is news, and only where no case has `told` of it by itself: of a
        few cases one that regressed is most of what they have in common."""
        finding = verdicts.findings.get(SUITE) if verdicts else None
        if finding is None:
            return None
        entry = gate.entry_of(finding, "all", 1.0, finding.ratio)
        return (
            msgspec.structs.replace(entry, result=Result.OK) if entry.result in {Result.INCONCLUSIVE, *told} else entry
        )


def check(pairs: Pairs, cases: Sequence[Case], record: Record, tell: Tell) -> tuple[States, dict[str, dict[str, str]]]:
    """Build and check every case in every arm; what came of it, and the files that each arm ran."""
    states: States = {case.id: {} for case in cases}
    files: dict[str, dict[str, str]] = {}
    done, total = 0, len(pairs.arms) * len(cases)
    what = "build and check " + " and ".join(arm.label for arm in pairs.arms)
    for event in pairs.check(cases):
        if isinstance(event, Ran):
            record.append(event)
            files[event.arm] = event.files
            continue
        case, arm, prepared = event
        states[case.id][arm.name] = prepared
        done += 1
        tell(what, 0.1 * done / total, case.id)
    return states, files


def proof(pair: tuple[Arm, Arm], files: Mapping[str, Mapping[str, str]], running: Sequence[Case]) -> list[str]:
    """What speaks against each arm having run its own revision: the code came from elsewhere."""
    problems = []
    for arm in pair if running else ():
        problems += [
            f"{arm.label} ran {Path(stray).relative_to(arm.repository)} of the checkout: {arms.OWN_BUILD}"
            for stray in arm.strays(files.get(arm.name, {}))
        ]
        for layer in dict.fromkeys(case.layer for case in running):
            file = arms.layer_file(layer)
            if file is None or not file.is_relative_to(arm.repository):
                continue  # not the repository's: the same in both arms
            if str(file.relative_to(arm.repository)) not in files.get(arm.name, {}):
                problems.append(f"{arm.name} did not run {layer} from {arm.label}: it came from elsewhere")
    return problems


def mistaken(pair: tuple[Arm, Arm], files: Mapping[str, str], changed: Sequence[str]) -> list[str]:
    """Why arms that ran the same files are no two revisions, of which `changed` are the files that differ."""
    old = pair[0]
    if not files:
        return [f"identical arms: no file of {old.repository} was run"]
    found = {name: place for name in changed if (place := arms.loaded_from_elsewhere(old.repository, name))}
    return [f"identical arms: {name} has changed, but both ran {place}" for name, place in found.items()]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A file that both ran and that is no longer the same; later workers may run fewer files, never others."""
    return next((file for file, digest in after.items() if before.get(file, digest) != digest), "")
