"""The A/B run: generations of fresh workers, one per arm, that take short turns in random order, one case at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.gating.arms import Arm
from bench.gating.verdicts import CPU, GPU, Rule
from bench.model import Case, Direction, Policy, Status, UserError
from bench.protocol import (
    Answer,
    Describe,
    Described,
    Failed,
    Finish,
    Finished,
    Prepare,
    Prepared,
    Proof,
    Prove,
    Request,
    Sample,
    Turn,
)
from bench.workers import WorkerDied, Workers

CANARIES = ("bench.selftest_layers:ROLL", "bench.selftest_layers:CONV")  # code of the harness: the same in both arms
DISTURBED = 1.15  # times an arm's lowest so far, beyond which a case is measured once more in its generation


class Shot(msgspec.Struct, frozen=True, tag="shot"):
    """What one generation measured of one case and metric: the slots of each arm, in seconds a call."""

    generation: int
    case: str
    metric: str
    slots: dict[str, tuple[float, ...]]

    @property
    def key(self) -> str:
        return key(self.case, self.metric)

    def log(self, arm: str = "B") -> float:
        """The natural logarithm of the arm's lowest slot: interference only ever adds time.

        What takes none of a GPU's time at all is taken for a picosecond, in both arms.
        """
        return math.log(max(min(self.slots[arm]), 1e-12))

    @property
    def log_ratio(self) -> float:
        """Of the new time over the old one."""
        return self.log("B") - self.log("A")


class Broke(msgspec.Struct, frozen=True, tag="broke"):
    """A case that was right when it was checked came out otherwise in a generation."""

    generation: int
    case: str
    arm: str
    status: Status
    reason: str


class Ran(msgspec.Struct, frozen=True, tag="ran"):
    """The files that an arm's worker ran; generation -1 is the check."""

    generation: int
    arm: str
    files: dict[str, str]


class Warned(msgspec.Struct, frozen=True, tag="warned"):
    """What an arm has to say of its measurement of a case, in the first generation."""

    case: str
    arm: str
    warnings: tuple[str, ...]


Event = Shot | Broke | Ran | Warned


def key(case: str, metric: str) -> str:
    """The name of a case's metric: the case's own where it is the latency."""
    return case if metric == "latency" else f"{case} ({metric})"


def case_of(name: str) -> str:
    """The case that a key belongs to."""
    return name.removesuffix(" (device)")


def kind(name: str) -> str:
    """Whose noise a key's values have: "cuda" for the GPU's own time, "cpu" for what the host's clock says."""
    return "cpu" if case_of(name) == name else "cuda"


def beside(keys: Iterable[str]) -> frozenset[str]:
    """The keys that decide nothing: latencies where the device's own time is known, for a host is noisier by far."""
    known = set(keys)
    return frozenset(name for name in known if key(name, "device") in known)


def canaries(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Two for every device of the suite, on one thread."""
    devices = dict.fromkeys(case.device for case in cases)
    direction = Direction.INFERENCE
    return tuple(Case(layer, "eager", (), "float32", device, 1, direction) for device in devices for layer in CANARIES)


@dataclass(frozen=True)
class Effort:
    """How a generation measures a case, and when cases are judged."""

    rule: Rule
    blocks: int  # ABBA or BAAB, each of two turns of `policy.slots` slots an arm
    warm_up: float  # s at most: of many slots the lowest counts, so that the first may be slow
    slot: float = 0.004  # s at most
    metrics: tuple[str, ...] = ("latency", "device")


def effort_for(cases: Sequence[Case]) -> Effort:
    """A GPU is quieter than a CPU: fewer generations and slots do, and the device's own time is judged too."""
    if all(case.device.startswith("cuda") for case in cases):
        return Effort(GPU, 1, 0.05, 0.002)
    return Effort(CPU, 2, 0.15)


@dataclass(frozen=True)
class Pairs:
    """Fresh workers for each pass over the cases. `log` is the file for what they print."""

    arms: tuple[Arm, ...]
    policy: Policy
    effort: Effort
    log: Path
    _lows: dict[tuple[str, str], float] = field(default_factory=dict)  # of each metric and arm, over generations

    def environment(self) -> dict[str, Any]:
        """See environment.describe. Raises UserError where no worker can start."""
        with self._workers() as workers:
            answer = self._ask(workers, self.arms[-1], Describe())
        if not isinstance(answer, Described):
            raise UserError(f"no worker can start: {_words(answer)}", remedy=f"see {self.log}")
        return answer.environment

    def check(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Arm, Prepared] | Ran]:
        """Make and check every case in each arm, which also builds what is yet to be built."""
        with self._workers() as workers:
            for case in cases:
                for arm, answer in self._at_once(workers, self._make(case)):
                    yield case, arm, answer if isinstance(answer, Prepared) else Prepared(Status.FAILED, _words(answer))
            for arm in self.arms:
                yield self._ran(workers, arm, -1)

    def generation(self, number: int, cases: Sequence[Case]) -> Iterator[Event]:
        """One pair of fresh processes, a case at a time in random order; last, what they ran.

        A case that somebody else's work seems to have slowed is measured again at the end, when that may be over: in
        both arms, and all slots count.
        """
        rng = random.Random(f"{self.policy.seed} {number}")
        todo = rng.sample(list(cases), len(cases))
        before: dict[str, list[Shot]] = {}
        with self._workers() as workers:
            if todo:  # the start of a process takes long on a GPU
                self._at_once(workers, self._make(todo[0], trusted=True))
            for place, case in enumerate(todo):
                events = list(self._case(workers, case, 1000 * number + 500 * (case.id in before), rng))
                shots = [joined(before.get(case.id, ()), event) for event in events if isinstance(event, Shot)]
                aside = beside(shot.key for shot in shots)
                if place < len(cases) and any(self._disturbed(shot) for shot in shots if shot.key not in aside):
                    before[case.id] = shots
                    todo.append(case)
                    continue
                yield from (event for event in events if not isinstance(event, Shot))
                for shot in shots:
                    self._lows.update({(shot.key, arm): self._low(shot, arm) for arm in shot.slots})
                    yield shot
            for arm in self.arms:
                yield self._ran(workers, arm, number)

    def _low(self, shot: Shot, arm: str) -> float:
        return min(*shot.slots[arm], self._lows.get((shot.key, arm), math.inf))

    def _disturbed(self, shot: Shot) -> bool:
        lows = {arm: min(values) for arm, values in shot.slots.items()}
        known = {arm: self._lows.get((shot.key, arm), min(lows.values())) for arm in lows}
        return any(low > DISTURBED * known[arm] for arm, low in lows.items())

    def _case(self, workers: Workers, case: Case, turns: int, rng: random.Random) -> Iterator[Shot | Broke | Warned]:
        """`turns` is the number of the first: another one puts the inputs elsewhere."""
        number = turns // 1000
        policy = msgspec.structs.replace(
            self.policy,
            warmup_seconds=min(self.effort.warm_up, self.policy.warmup_seconds),
            slot=min(self.effort.slot, self.policy.slot),
        )
        arms = {arm.name: arm for arm in self.arms}
        for name in rng.sample(list(arms), len(arms)):
            request = Prepare(arms[name].case(case), policy, trusted=True, metrics=self.effort.metrics)
            answer = self._ask(workers, arms[name], request)
            if not isinstance(answer, Prepared) or answer.status is not Status.OK:
                yield _broke(number, case, name, answer)
                return
        slots = self._slots(workers, case, turns, rng)
        if isinstance(slots, Broke):
            yield slots
            return
        if number == 0:  # a layer may be right at first and wrong later
            for name, arm in arms.items():
                answer = self._ask(workers, arm, Finish())
                if not isinstance(answer, Finished) or answer.measurement.status is not Status.OK:
                    yield _broke(number, case, name, answer)
                    return
                yield Warned(case.id, name, answer.measurement.warnings)
        yield from (Shot(number, case.id, metric, taken) for metric, taken in slots.items())

    def _slots(
        self, workers: Workers, case: Case, turns: int, rng: random.Random
    ) -> dict[str, dict[str, tuple[float, ...]]] | Broke:
        """By metric and arm; none where an arm lacks what the other has."""
        number, slots = turns // 1000, dict[str, dict[str, tuple[float, ...]]]()
        arms = {arm.name: arm for arm in self.arms}
        for turn, name in enumerate(name for _ in range(self.effort.blocks) for name in block(list(arms), rng)):
            answer = self._ask(workers, arms[name], Sample(turns + turn))
            if not isinstance(answer, Turn):
                return _broke(number, case, name, answer)
            for metric, values in answer.values.items():
                of_arm = slots.setdefault(metric, {})
                of_arm[name] = of_arm.get(name, ()) + values
        for metric, taken in slots.items():
            if lacking := next((name for name in arms if name not in taken), None):
                return Broke(number, case.id, lacking, Status.FAILED, f"no {metric} time, which the other revision has")
        return slots

    def _make(self, case: Case, *, trusted: bool = False) -> Callable[[Arm], Request]:
        return lambda arm: Prepare(arm.case(case), self.policy, check_only=True, trusted=trusted)

    def _at_once(self, workers: Workers, request: Callable[[Arm], Request]) -> list[tuple[Arm, Answer]]:
        """The answers of all arms, which work side by side: never where anything is timed."""
        with ThreadPoolExecutor(len(self.arms)) as pool:
            answers = pool.map(lambda arm: self._ask(workers, arm, request(arm)), self.arms)
            try:
                return list(zip(self.arms, answers, strict=True))
            except BaseException:  # Ctrl-C: the threads end when their workers do
                workers.kill()
                raise

    def _ask(self, workers: Workers, arm: Arm, request: Request) -> Answer:
        try:
            return workers.ask(arm.name, request, self.policy.timeout)
        except WorkerDied as death:
            return Failed(str(death))

    def _ran(self, workers: Workers, arm: Arm, number: int) -> Ran:
        answer = self._ask(workers, arm, Prove())
        return Ran(number, arm.name, answer.files if isinstance(answer, Proof) else {})

    def _workers(self) -> Workers:
        return Workers(self.log, self.policy.allocator, {arm.name: arm for arm in self.arms})


def block(names: list[str], rng: random.Random) -> list[str]:
    """The order of turns: ABBA or BAAB, so that drift within a block cancels; two turns where there is one arm."""
    first, *others = rng.sample(names, len(names))
    return [first, *others, *others, first] if others else [first, first]


def joined(before: Sequence[Shot], shot: Shot) -> Shot:
    """The shot with the slots of an earlier one of its metric."""
    earlier = next((one.slots for one in before if one.metric == shot.metric), {})
    slots = {arm: earlier.get(arm, ()) + values for arm, values in shot.slots.items()}
    return msgspec.structs.replace(shot, slots=slots)


def _broke(number: int, case: Case, arm: str, answer: Answer) -> Broke:
    status = Status.FAILED
    if isinstance(answer, Prepared):
        status = answer.status
    elif isinstance(answer, Finished):
        status = answer.measurement.status
    return Broke(number, case.id, arm, status, _words(answer))


def _words(answer: Answer) -> str:
    match answer:
        case Failed(reason) | Prepared(_, reason):
            return reason
        case Finished(measurement):
            return measurement.reason
    return f"unexpected answer {answer!r}"


def ratios(shots: Sequence[Shot]) -> Mapping[str, float]:
    """A generation's log ratios by case and metric."""
    return {shot.key: shot.log_ratio for shot in shots}
