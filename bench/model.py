"""The words of layerbench as frozen types, and their JSON.

Everything that crosses a process or a file is one of these. Times are seconds per call everywhere;
units appear only when something is shown. Importing this module costs milliseconds and needs no torch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SCHEMA = 1  # of run.jsonl; raise it when an older file would be misread

Value = int | float | bool | str | tuple[int, ...]


class UserError(Exception):
    """A mistake of the user's: shown as one line, `place: message (remedy)`, never as a traceback."""

    def __init__(self, message: str, *, place: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.place, self.remedy = message, place, remedy

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{place}{self.message}{remedy}"


class Direction(enum.StrEnum):
    """What one call does."""

    INFERENCE = "inference"  # no graph recorded (torch.no_grad), in eval mode; the others are in training mode
    FORWARD = "forward"  # graph recorded
    BACKWARD = "backward"  # the backward pass alone
    FORWARD_BACKWARD = "forward_backward"  # forward, mean(), backward: one training step

    @property
    def needs_gradient(self) -> bool:
        return self in (Direction.BACKWARD, Direction.FORWARD_BACKWARD)


class Status(enum.StrEnum):
    """What came of a case."""

    OK = "ok"
    SKIPPED = "skipped"  # cannot run here; the reason says why
    INCORRECT = "incorrect"  # ran, gave wrong results, so it gets no time
    FAILED = "failed"  # raised, crashed or timed out


def is_surprise(status: Status, expected: Status) -> bool:
    """Whether a status is not the expected one. Skipped is never a surprise."""
    return status not in (Status.SKIPPED, expected)


class Verdict(enum.StrEnum):
    """What paired rounds say of one variant against the baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


class Case(msgspec.Struct, frozen=True):
    """One thing to measure. The only key by which results are joined; hashable."""

    layer: str
    variant: str
    params: tuple[tuple[str, Value], ...]
    dtype: str
    device: str
    threads: int
    direction: Direction

    @property
    def setting(self) -> str:
        """All that cases compared with one another have in common: the id without the variant."""
        params = ",".join(f"{name}={show_value(value)}" for name, value in self.params)
        return f"{self.layer}[{params}]/{self.dtype}/{self.device}/{self.threads}t/{self.direction}"

    @property
    def id(self) -> str:
        """Stable text that names this case in files, tables and messages."""
        return f"{self.setting}/{self.variant}"


def show_value(value: Value) -> str:
    """A parameter value as it reads in a case id: 3, 0.5, true, reflect, 3x5."""
    if isinstance(value, bool):
        return str(value).lower()
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


class Planned(msgspec.Struct, frozen=True):
    """A case and the status that the suite expects of it."""

    case: Case
    expect: Status = Status.OK


class Block(msgspec.Struct, frozen=True):
    """Cases alike in all but the variant: interleaved round by round and compared with `baseline`."""

    baseline: str
    cases: tuple[Planned, ...]

    @property
    def setting(self) -> str:
        return self.cases[0].case.setting


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to measure; the same for every variant of a suite. Times in seconds."""

    seed: Annotated[int, Meta(description="of weights and inputs")] = 0
    target: Annotated[
        float | None, Meta(description="wanted half-width of the 95 % interval, relative; null: 2 %, device time 1 %")
    ] = None
    min_rounds: Annotated[int, Meta(description="least number of rounds")] = 8
    seconds: Annotated[float, Meta(description="sampling time a block may take for each of its variants")] = 5.0
    timeout: Annotated[float, Meta(description="longest wait for one answer of a worker")] = 600.0
    input_gradients: Annotated[bool, Meta(description="whether inputs want a gradient, as inside a network")] = True
    slot: Annotated[float, Meta(description="length of one timed slot")] = 0.004
    slots: Annotated[int, Meta(description="slots a turn; the lowest is the turn's value")] = 5
    warmup_calls: Annotated[int, Meta(description="least calls before times may be called steady")] = 5
    warmup_seconds: Annotated[float, Meta(description="most seconds of warm-up")] = 5.0
    same_within: Annotated[float, Meta(description="ratios inside 1 +- this are the same in practice")] = 0.03
    allocator: Annotated[
        Literal["warm", "default"], Meta(description="warm: outputs get memory that is there; default: as glibc does")
    ] = "warm"
    cache: Annotated[
        Literal["warm", "cold"], Meta(description="cold: the last-level cache is emptied before every call")
    ] = "warm"
    device_clock: Annotated[Literal["events", "graph", "cupti"], Meta(description="what times the GPU")] = "events"
    energy: Annotated[bool, Meta(description="joules a call on a GPU, by half a second of calls more")] = False
    tf32: Annotated[bool, Meta(description="let float32 products use TF32")] = False
    cudnn_benchmark: Annotated[bool, Meta(description="let cuDNN try its algorithms first")] = False
    deterministic: Annotated[bool, Meta(description="torch.use_deterministic_algorithms")] = False

    def __post_init__(self) -> None:
        for name in ("min_rounds", "slots", "warmup_calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1")
        for name in ("seconds", "timeout", "slot", "warmup_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; more than 0, and finite")
        for name in ("target", "same_within"):
            if (value := getattr(self, name)) is not None and not 0 < value < 1:
                raise ValueError(f"{name} is {value}; between 0 and 1")

    def conditions(self) -> dict[str, object]:
        """What makes times answer another question: under other conditions they compare with nothing."""
        names = ("allocator", "cache", "device_clock", "tf32", "cudnn_benchmark", "deterministic", "input_gradients")
        return {name: getattr(self, name) for name in names}

    def target_of(self, metric: str) -> float:
        if self.target is not None:
            return self.target
        return 0.01 if metric == "device" else 0.02


def no_case(texts: Sequence[str], example: str) -> UserError:
    """What to tell somebody who asked for the cases whose ids contain the texts, of which `example` is none."""
    return UserError(f"no case has {' and '.join(map(repr, texts))} in its id", remedy=f"ids look like {example}")


class Suite(msgspec.Struct, frozen=True):
    """A YAML suite as resolved: every block, every case."""

    name: str
    policy: Policy
    blocks: tuple[Block, ...]

    def only(self, texts: Sequence[str]) -> Suite:
        """The part whose case ids contain every one of the texts. Raises UserError where that is nothing."""
        part = self.keeping(lambda case: all(text in case.id for text in texts))
        if not part.blocks:
            raise no_case(texts, self.blocks[0].cases[0].case.id)
        return part

    def keeping(self, wanted: Callable[[Case], bool]) -> Suite:
        """The part whose cases are wanted; a block of none is left out."""
        blocks = (Block(one.baseline, tuple(each for each in one.cases if wanted(each.case))) for one in self.blocks)
        return Suite(self.name, self.policy, tuple(block for block in blocks if block.cases))

    def cases(self) -> dict[str, Planned]:
        return {planned.case.id: planned for block in self.blocks for planned in block.cases}


class Metric(msgspec.Struct, frozen=True):
    """One measured quantity, describing itself so that formats can show metrics they have never heard of.

    `samples[r]` holds round r's values in the order they were taken (an empty round: not sampled then).
    A quantity measured once has one round of one value. Raw samples are never dropped.
    """

    name: str
    unit: str  # "s" (a call), "B", "1", "calls"
    samples: tuple[tuple[float, ...], ...]
    clock: str = ""  # which timer made it: "host", "events"
    about: str = ""  # one line for a legend
    hidden: bool = False  # in the run file and the CSV, not in tables

    @property
    def lows(self) -> tuple[float, ...]:
        """The lowest value of each round: interference only ever adds time."""
        return tuple(min(values) for values in self.samples if values)


class Measurement(msgspec.Struct, frozen=True):
    """What came of one case. Has samples exactly when it is ok: a number never stands beside a failure."""

    case: Case
    status: Status
    reason: str = ""  # why not ok; empty when ok
    metrics: tuple[Metric, ...] = ()
    warnings: tuple[str, ...] = ()  # doubts about the number; shown wherever it is
    notes: tuple[str, ...] = ()  # what a reader may want to know, no doubt implied
    error: float | None = None  # largest relative error against the float64 reference
    bound: float | None = None  # the largest that passes for this dtype
    stopped: str = ""  # which of the two ended the sampling: "target" or "time limit"
    limit: str = ""  # what the time is limited by, and the figures: "launch-bound: ..."

    def __post_init__(self) -> None:
        timed = any(metric.name == "latency" and metric.lows for metric in self.metrics)
        if self.status is Status.OK and not timed:
            raise ValueError(f"{self.case.id}: ok but without latency samples")
        if self.status is not Status.OK and self.metrics:
            raise ValueError(f"{self.case.id}: {self.status} but with metrics")
        if (self.status is Status.OK) == bool(self.reason):
            raise ValueError(f"{self.case.id}: {self.status} needs {'no' if self.reason else 'a'} reason")

    def metric(self, name: str) -> Metric | None:
        return next((metric for metric in self.metrics if metric.name == name), None)


class Header(msgspec.Struct, frozen=True):
    """First line of run.jsonl."""

    schema: int
    version: str  # of layerbench
    started: str  # ISO 8601, UTC
    suite: Suite
    environment: dict[str, Any]  # see machine/environment.py; "fingerprint" names the machine and software


class Run(msgspec.Struct, frozen=True):
    """A header and what has been measured so far, in the order of the suite."""

    header: Header
    measurements: tuple[Measurement, ...]
    problems: tuple[str, ...] = ()  # what reading the file had to put right

    def missing(self) -> tuple[Case, ...]:
        done = {measurement.case.id for measurement in self.measurements}
        return tuple(planned.case for planned in self.header.suite.cases().values() if planned.case.id not in done)

    def measured(self) -> Run:
        """The same without the cases that are missing."""
        done = {measurement.case.id for measurement in self.measurements}
        suite = self.header.suite.keeping(lambda case: case.id in done)
        return msgspec.structs.replace(self, header=msgspec.structs.replace(self.header, suite=suite))

    def surprises(self) -> tuple[tuple[Measurement, Status], ...]:
        """Measurements whose status is a surprise, with the one expected."""
        plan = self.header.suite.cases()
        return tuple(
            (measurement, plan[measurement.case.id].expect)
            for measurement in self.measurements
            if is_surprise(measurement.status, plan[measurement.case.id].expect)
        )


def encode_line(record: Header | Measurement) -> bytes:
    """One line of run.jsonl: strict JSON, UTF-8."""
    return msgspec.json.encode(record) + b"\n"


def run_file(path: str | Path) -> Path:
    """The run.jsonl meant by a run folder or by the file itself."""
    path = Path(path)
    return path / "run.jsonl" if path.is_dir() else path


def load_run(path: str | Path) -> Run:
    """Read a run. A last line cut short by a kill is dropped and named in `problems`; later lines of a case win.

    Raises UserError: no such file, no header, another schema, a broken line with more behind it.
    """
    file = run_file(path)
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        below = sorted(Path(path).glob("*/run.jsonl"), key=lambda one: one.stat().st_mtime)
        remedy = f"the newest run there is {below[-1].parent}" if below else "name a run folder or run.jsonl"
        raise UserError(f"cannot read it: {error.strerror}", place=str(file), remedy=remedy) from None
    header = _decode_header(lines[0], str(file))
    plan = header.suite.cases()
    found: dict[str, Measurement] = {}
    problems: list[str] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        place = f"{file}:{number}"
        try:
            measurement = msgspec.json.decode(line, type=Measurement)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if any(lines[number:]):
                raise UserError(
                    f"broken line: {error}", place=place, remedy="restore the file or delete that line"
                ) from None
            problems.append(f"{place}: the last line is cut off ({len(line)} bytes); the lines before it are kept")
            continue
        if measurement.case.id not in plan:
            raise UserError(
                f"case {measurement.case.id!r} is not in the header's suite",
                place=place,
                remedy="the file mixes two runs",
            )
        found[measurement.case.id] = measurement
    return Run(header, tuple(found[name] for name in plan if name in found), tuple(problems))


def layer_path(name: str) -> Path | None:
    """The file of a layer that is named by it: path.py:NAME, or path.py alone; None of other names."""
    source = name if name.endswith(".py") else name.rpartition(":")[0]
    return Path(source) if source.endswith(".py") else None


class _Schema(msgspec.Struct):
    schema: Any  # alone: of a suite of many cases the rest takes seconds


def _decode_header(line: bytes, place: str) -> Header:
    remedy = "not a layerbench run, or cut off in its first line"
    try:
        schema = msgspec.json.decode(line, type=_Schema).schema
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UserError("no header", place=f"{place}:1", remedy=remedy) from None
    if schema != SCHEMA:
        raise UserError(
            f"schema {schema}, this layerbench reads {SCHEMA}",
            place=f"{place}:1",
            remedy="use the layerbench that wrote it",
        )
    try:
        return msgspec.json.decode(line, type=Header)
    except msgspec.ValidationError as error:
        raise UserError(f"unreadable header: {error}", place=f"{place}:1", remedy=remedy) from None
