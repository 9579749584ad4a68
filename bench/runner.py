"""Runs a suite: interleaves the variants of each block, times out, appends results as cases end."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from bench import __version__
from bench.model import (
    SCHEMA,
    Block,
    Case,
    Header,
    Measurement,
    Metric,
    Policy,
    Run,
    Status,
    Suite,
    UserError,
    encode_line,
    layer_path,
    run_file,
)
from bench.protocol import Describe, Described, Failed, Finish, Finished, Prepare, Prepared, Sample, Turn
from bench.workers import WorkerDied, Workers

# (a variant's metric, the baseline's or None, policy) -> enough is known; stats.settled in real runs
StopRule = Callable[[Metric, Metric | None, Policy], bool]


class Progress(Protocol):
    """Who wants to know how far a run is."""

    def preparing(self, case: Case) -> None:
        """A worker makes, checks and warms this case up."""

    def sampled(self, block: Block, rounds: int, lows: dict[str, float]) -> None:
        """A round of the block is complete; `lows` are its variants' times so far, in seconds."""

    def finished(self, measurement: Measurement) -> None:
        """A case ended and is on disk."""


def run(suite: Suite, folder: Path, *, stop_rule: StopRule, progress: Progress, before: Run | None = None) -> None:
    """Measure every case into `folder`/run.jsonl. With `before`, blocks that it holds whole are not run again;
    others are, as wholes: a variant is only compared within rounds that it shared with its baseline."""
    missing = {case.id for case in before.missing()} if before else set()
    with Workers(folder / "workers.log", suite.policy.allocator) as workers, _Results(folder) as results:
        header = _header(suite, workers)
        if before is None:
            results.append(header)
        else:
            _same_conditions(before.header, header, folder)
        for block in suite.blocks:
            if before and not any(planned.case.id in missing for planned in block.cases):
                continue
            for measurement in _BlockRun(block, suite.policy, workers, stop_rule, progress).measurements():
                results.append(measurement)
                progress.finished(measurement)


def check(suite: Suite, folder: Path, *, progress: Progress) -> Iterator[tuple[Case, Prepared]]:
    """Make and check every case without timing it; what `layerbench check` shows."""
    with Workers(folder / "workers.log", suite.policy.allocator) as workers:
        for block in suite.blocks:
            for planned in block.cases:
                progress.preparing(planned.case)
                yield planned.case, _prepare(workers, planned.case, suite.policy, check_only=True)


@dataclass(frozen=True)
class _BlockRun:
    block: Block
    policy: Policy
    workers: Workers
    stop_rule: StopRule
    progress: Progress

    def measurements(self) -> Iterator[Measurement]:
        """Each case's result as soon as it is final."""
        live: dict[str, Case] = {}
        for planned in self.block.cases:
            case = planned.case
            self.progress.preparing(case)
            prepared = _prepare(self.workers, case, self.policy)
            if prepared.status is Status.OK:
                live[case.variant] = case
            else:
                yield prepared.measurement(case)
        ending = yield from self._rounds(live)
        for case in live.values():
            yield self._finish(case, ending)

    def _rounds(self, live: dict[str, Case]) -> Generator[Measurement, None, str]:
        """Sample round by round. Yields the failure of a case that leaves `live`; returns why sampling ended."""
        rounds: dict[str, list[Turn]] = {variant: [] for variant in live}
        order = random.Random(f"{self.policy.seed} {self.block.setting}")
        deadline = time.monotonic() + self.policy.seconds * len(live)
        number = 0
        while live:
            for variant in order.sample(list(live), len(live)):
                try:
                    answer = self.workers.ask(variant, Sample(number), self.policy.timeout)
                except WorkerDied as death:
                    answer = Failed(str(death))
                if isinstance(answer, Turn):
                    rounds[variant].append(answer)
                else:
                    yield _failure(live.pop(variant), answer)
                    del rounds[variant]
            number += 1
            self.progress.sampled(self.block, number, {variant: _low(turns) for variant, turns in rounds.items()})
            if live and self._settled(rounds):
                return "target"
            if time.monotonic() >= deadline:
                return "time limit"
        return ""

    def _settled(self, rounds: dict[str, list[Turn]]) -> bool:
        """Whether the stop rule holds for every metric of every variant; one without a clock lacks its metric."""
        for name in dict.fromkeys(name for turns in rounds.values() for name in turns[0].values):
            metrics = {
                variant: Metric(name, "s", tuple(turn.values[name] for turn in turns))
                for variant, turns in rounds.items()
                if name in turns[0].values
            }
            baseline = metrics.get(self.block.baseline)
            if not all(
                self.stop_rule(metric, None if metric is baseline else baseline, self.policy)
                for metric in metrics.values()
            ):
                return False
        return True

    def _finish(self, case: Case, ending: str) -> Measurement:
        try:
            answer = self.workers.ask(case.variant, Finish(), self.policy.timeout)
        except WorkerDied as death:
            answer = Failed(str(death))
        if not isinstance(answer, Finished):
            return _failure(case, answer)
        return msgspec.structs.replace(answer.measurement, stopped=ending)


def _prepare(workers: Workers, case: Case, policy: Policy, *, check_only: bool = False) -> Prepared:
    try:
        answer = workers.ask(case.variant, Prepare(case, policy, check_only), policy.timeout)
    except WorkerDied as death:
        answer = Failed(str(death))
    if isinstance(answer, Prepared):
        return answer
    return Prepared(Status.FAILED, answer.reason if isinstance(answer, Failed) else f"unexpected answer {answer!r}")


def _low(turns: list[Turn]) -> float:
    """Lowest time so far; the device's own where there is one."""
    return min(min(turn.values.get("device") or turn.values["latency"]) for turn in turns)


def _failure(case: Case, answer: object) -> Measurement:
    reason = answer.reason if isinstance(answer, Failed) else f"unexpected answer {answer!r}"
    return Measurement(case, Status.FAILED, reason)


def _header(suite: Suite, workers: Workers) -> Header:
    try:
        answer = workers.ask("environment", Describe(), suite.policy.timeout)
    except WorkerDied as death:
        answer = Failed(str(death))
    if not isinstance(answer, Described):
        reason = answer.reason if isinstance(answer, Failed) else repr(answer)
        raise UserError(f"no worker can start: {reason}", remedy="try `python -c 'import torch'`; see workers.log")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Header(SCHEMA, __version__, started, suite, answer.environment | {"layers": _sources(suite)})


def _same_conditions(before: Header, now: Header, folder: Path) -> None:
    """Raises UserError where a run would go on elsewhere than it began, or with other code."""
    machines = [one.environment.get("fingerprint") for one in (before, now)]
    if machines[0] != machines[1]:
        message = f"began on another machine or with other software:\n  {machines[0]}\n  {machines[1]}"
        raise UserError(message, place=str(folder), remedy="go on there, or start a new run here")
    for layer, digest in before.environment.get("layers", {}).items():
        if now.environment["layers"].get(layer) != digest:
            message = f"the file of {layer} is not what it was when this run began"
            raise UserError(message, place=str(folder), remedy="put it back, or start a new run")


def _sources(suite: Suite) -> dict[str, str]:
    """SHA-256 of the file of each layer that is named by its file. Raises UserError where there is none."""
    found = {}
    for layer in dict.fromkeys(case.case.layer for case in suite.cases().values()):
        if file := layer_path(layer):
            try:
                found[layer] = hashlib.sha256(file.read_bytes()).hexdigest()
            except OSError as error:
                remedy = "run it from the folder in which the run began"
                raise UserError(
                    f"cannot read the layer's file: {error.strerror}", place=str(file), remedy=remedy
                ) from None
    return found


class _Results:
    """run.jsonl, opened for appending; every line is on disk before the next case starts."""

    def __init__(self, folder: Path) -> None:
        self._path = run_file(folder)

    def __enter__(self) -> _Results:
        try:
            self._file = self._path.open("ab")
            self._drop_cut_line()
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", place=str(self._path)) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, record: Header | Measurement) -> None:
        try:
            self._file.write(encode_line(record))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            remedy = f"mend that, then: layerbench run --resume {self._path.parent}"
            raise UserError(f"cannot write: {error.strerror}", place=str(self._path), remedy=remedy) from None

    def _drop_cut_line(self) -> None:
        """What a kill left without its newline; load_run has told the user."""
        content = self._path.read_bytes()
        if content and not content.endswith(b"\n"):
            self._file.truncate(content.rfind(b"\n") + 1)
