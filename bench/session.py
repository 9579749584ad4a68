"""One case in a worker's hands, from its making to its measurement: prepare, check, warm up, sample, finish."""

from __future__ import annotations

import inspect
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench import check, limits, measure
from bench.bounds import Wrong, bound_for
from bench.clocks import flush
from bench.clocks.timer import ClockUnavailable, Timer
from bench.clocks.timers import timers_for
from bench.machine import energy, environment, memory, monitor
from bench.model import Case, Direction, Measurement, Metric, Policy, Status
from bench.protocol import Prepared, Turn
from bench.reference import Reference
from bench.remote import RemoteTask, RemoteTimer
from bench.task import Task
from layers import Layer, Unavailable, load
from layers.program import Program
from layers.variants import Made, make

LONG = 0.5  # s: calls that take longer are not made again to see who keeps their outputs


@dataclass
class Session:
    """One case from its making to its measurement."""

    case: Case
    policy: Policy
    metrics: tuple[str, ...] = ()  # that are taken; all where empty
    error: float = 0.0
    once: list[Metric] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        case, policy = self.case, self.policy
        device = _device(case)
        set_process_state(case, policy)
        self.layer = load(case.layer)
        self.params: dict[str, Any] = dict(case.params)
        start = time.perf_counter()
        self.made = made_for(case, policy, self.layer)
        built = getattr(self.made, "built", 0.0)  # an arm's layers may be older than this
        about = (
            "building the variant: scripting, tracing, loading the operator; without compiling ours, which comes once"
        )
        set_process_state(case, policy)  # again: a layer's file may have switches of its own
        self._took("make", time.perf_counter() - start - built, about)
        self.task = self._task()
        self.reference = Reference.of(self.layer, self.params, self.made, device)
        clocks = (RemoteTimer(),) if isinstance(self.task, RemoteTask) else self._timers(device)
        self.timers = tuple(timer for timer in clocks if not self.metrics or timer.metric in self.metrics)
        self.bound = bound_for(case.dtype, tf32=policy.tf32)
        self._rounds: dict[str, list[tuple[float, ...]]] = {}
        self._graphs = 0
        self._plans: list[measure.Plan] = []
        self._uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
        self._monitor = monitor.Monitor(case.device, self._uuid, process=self.task.process)
        with self.task.grad_mode():
            self._took(
                "first_call",
                self.timers[0].window(self.task, 1),
                "the first call, with what it compiles that neither an earlier case nor a cache on disk has",
            )

    def check(self) -> tuple[float, list[str]]:
        """Largest relative error, and what there is to say of it; raises Wrong."""
        told = []
        error = check.check(
            self.made,
            self.reference,
            variant=self.case.variant,
            dtype=self.case.dtype,
            bound=self.bound,
            direction=self.case.direction,
            input_gradients=self.task.input_gradients,
        )
        if error > self.bound:
            told.append(
                f"its error of {error:.2g} is over {self.bound:g}, and passes since rounding takes eager itself as "
                "far: no sharper check there"
            )
        if check.shares_its_input(self.made, self.reference):
            told.append(
                "gives back its input's memory, where eager gives memory of its own: who writes into one changes both"
            )
        if self.case.variant == "eager":
            told += check.eager_warnings(self.reference, self.made.inputs, self.case.direction.needs_gradient)
        return error, told

    def warm_up(self) -> None:
        with self.task.grad_mode():
            warm = measure.warm_up(self.timers[0], self.task, self.policy)
            self._plans = [plan for timer in self.timers if (plan := self._plan(timer))]
        self._graphs = graphs()
        self._took("warmup", warm.seconds, "warm-up until a plateau")
        count = ((float(warm.calls),),)
        self.once.append(Metric("warmup_calls", "calls", count, about="calls until a plateau", hidden=True))
        if not warm.steady:
            self.warnings.append(f"not steady after {warm.calls} calls and {warm.seconds:.1f} s of warm-up")

    def _task(self) -> Task:
        if isinstance(self.made.call, Program):
            return RemoteTask(self.made, self.case.direction, self.policy)
        return Task(self.made, self.case.direction, input_gradients=self.policy.input_gradients)

    def _timers(self, device: torch.device) -> tuple[Timer, ...]:
        clock, cache = self.policy.device_clock, self.policy.cache
        try:
            return timers_for(device, device_clock=clock, cache=cache)
        except ClockUnavailable as reason:  # never another clock instead
            self.warnings.append(f"no device time: {reason}")
            return timers_for(device, device_clock=None, cache=cache)

    def _plan(self, timer: Timer) -> measure.Plan | None:
        try:
            return measure.plan(timer, self.task, self.policy, self.task.now)
        except ClockUnavailable as reason:
            self.warnings.append(f"no {timer.metric} time: {reason}")
            return None

    def prepared(self) -> Prepared:
        return Prepared(
            Status.OK,
            error=self.error,
            bound=self.bound,
            warnings=tuple(self.warnings),
            notes=self.made.notes,
        )

    def sample(self, number: int) -> Turn:
        rng = random.Random(f"{self.policy.seed} {number} {self.case.id}")
        self._monitor.begin()  # anew every turn: what happens in other variants' turns is theirs
        with self.task.grad_mode():
            values = measure.turn(self._plans, self.task, rng, self.task.page_faults)
        self._monitor.round_done()
        for metric, taken in values.items():
            self._rounds.setdefault(metric, []).append(taken)
        return Turn({metric: taken for metric, taken in values.items() if metric != "page_faults"})

    def finish(self) -> Measurement:
        case = self.case
        self.task.collect()
        try:
            check.check_last(self.task, self.reference, case.direction, self.bound)
        except Wrong as wrong:
            notes = self.made.notes
            return Measurement(case, Status.INCORRECT, str(wrong), notes=notes, error=wrong.error, bound=self.bound)
        sampled = {
            timer.metric: Metric(timer.metric, "s", tuple(self._rounds[timer.metric]), timer.clock, timer.about)
            for timer in (plan.timer for plan in self._plans)
        }
        about = "page faults a call, while it was timed"
        sampled["page_faults"] = Metric("page_faults", "1", tuple(self._rounds["page_faults"]), about=about)
        size = ((float(self._output_bytes()),),)
        fault_seconds = memory.page_fault_seconds()
        watched = self._monitor.end()
        return Measurement(
            case,
            Status.OK,
            metrics=(
                *sampled.values(),
                Metric("output_bytes", "B", size, about="size of the output", hidden=True),
                *self._zeros(),
                *self.once,
                *self._memory(),
                *self._energy(),
                *watched.metrics,
            ),
            warnings=(
                *self.warnings,
                *self._doubts(sampled),
                *watched.warnings,
                *limits.allocator_warning(sampled, self.policy.allocator, fault_seconds),
            ),
            notes=(*self.made.notes, *self._allocator_note(sampled["latency"], fault_seconds)),
            error=self.error,
            bound=self.bound,
            limit=limits.limit(sampled, fault_seconds),
        )

    def _allocator_note(self, latency: Metric, fault_seconds: float) -> tuple[str, ...]:
        if self.case.device != "cpu":
            return ()
        return limits.allocator_note(self._output_bytes(), min(latency.lows), self.policy.allocator, fault_seconds)

    def _doubts(self, sampled: dict[str, Metric]) -> list[str]:
        """What a reader must know before believing the times."""
        latency = sampled["latency"]
        doubts = [doubt for timer in self.timers for doubt in timer.doubts]
        doubts += resolution_warnings(latency, self._plans[0].calls)
        if len(latency.lows) >= 12 and measure.falling(latency.lows, by=0.05):
            doubts.append("got faster while it was sampled: too short a warm-up, or a machine settling down")
        if (threads := torch.get_num_threads()) != self.case.threads:
            doubts.append(f"the layer set {threads} thread(s) while it was timed with {self.case.threads}")
        if graphs() > self._graphs:
            doubts.append(f"torch.compile compiled {graphs() - self._graphs} more graph(s) while it was sampled")
        if min(latency.lows) < LONG:
            doubts += limits.growth_warning(self._kept())
        device = self.made.inputs[0].device
        if self.case.device == "cpu":
            share = memory.denormal_share([*self.made.inputs, *self.made.module.parameters()])
            if share > 0.01:
                doubts.append(
                    f"{100 * share:.0f} % of an input or weight are denormal numbers: CPUs are many times slower then"
                )
        if self.layer.cost is not None and self.case.direction in (Direction.INFERENCE, Direction.FORWARD):
            moved = self.layer.cost(self.made.inputs[0].element_size(), **self.params).bytes
            if moved > 4 * flush.cache_bytes(device):  # less may lie in the cache
                seconds = min(sampled.get("device", latency).lows)
                doubts += limits.roofline_warning(seconds, moved, memory.bandwidth(device, self.case.threads))
        return doubts

    def _kept(self) -> int:
        def call() -> Tensor | None:
            self.task.prepare()
            self.task()
            return next(iter(self.task.tensors), None)

        with self.task.grad_mode():
            return memory.kept(call)

    def _memory(self) -> list[Metric]:
        if not self.case.device.startswith("cuda") or isinstance(self.task, RemoteTask):
            return []
        self.task.clear()
        with self.task.grad_mode():
            peak = float(memory.needed(self.task.touch, self.made.inputs[0].device))
        about = "GPU memory that a call takes at once beyond its inputs and weights: output, temporaries, gradients"
        return [Metric("peak_memory", "B", ((peak,),), about=about)]

    def _zeros(self) -> list[Metric]:
        """What the device clocks subtract, so that their raw readings can be had again."""
        zeros = [zero for plan in self._plans if (zero := getattr(plan.timer, "zero", None)) is not None]
        about = "an empty kernel's time, already subtracted from the device time"
        return [Metric("empty_kernel", "s", ((zero,),), about=about, hidden=True) for zero in zeros]

    def _energy(self) -> list[Metric]:
        if not self.policy.energy or not self.case.device.startswith("cuda"):
            return []
        if isinstance(self.task, RemoteTask):
            self.warnings.append("no energy: the C++ program makes the calls")
            return []

        def run(calls: int) -> None:
            for _ in range(calls):
                self.task.prepare()
                self.task()
            torch.cuda.synchronize(self.case.device)

        meter = energy.Energy(self.case.device, self._uuid)
        with self.task.grad_mode():
            metric = meter.per_call(run)
        if metric is None:
            self.warnings.append(f"no energy: {meter.state}")
        return [metric] if metric else []

    def _output_bytes(self) -> int:
        """What the outputs take in memory: an expanded one less than its elements would."""
        sizes = ((one.numel() * one.element_size(), one.untyped_storage().nbytes()) for one in self.task.tensors)
        return sum(map(min, sizes))

    def _took(self, name: str, seconds: float, about: str) -> None:
        self.once.append(Metric(name, "s", ((seconds,),), "host", about))


def made_for(case: Case, policy: Policy, layer: Layer) -> Made:
    """The case's variant, in training mode but for inference."""
    mode = {"training": case.direction is not Direction.INFERENCE}
    if "training" not in inspect.signature(make).parameters:
        mode = {}  # an arm's layers may be older than this
    dtype = getattr(torch, case.dtype)
    return make(layer, case.variant, dict(case.params), dtype=dtype, device=case.device, seed=policy.seed, **mode)


def resolution_warnings(metric: Metric, calls: int) -> tuple[str, ...]:
    """A time of a few clock ticks, or no longer than an empty loop around a call, says little."""
    low = min(metric.lows)
    if low < 200e-9:
        return (f"{low * 1e9:.0f} ns a call is near the cost of calling anything from Python; mind the resolution",)
    if calls == 1 and low < 2e-6:
        return ("single calls of under 2 us are near the clock's own cost",)
    return ()


def graphs() -> int:
    """How many graphs torch.compile has made in this process; 0 where it was never used."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils else 0


def _device(case: Case) -> torch.device:
    device = torch.device(case.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise Unavailable("no CUDA device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise Unavailable(f"no {case.device}: this machine has {torch.cuda.device_count()} CUDA device(s)")
    cpus = environment.cpus()
    if case.threads > cpus:
        raise Unavailable(f"{case.threads} threads on {cpus} CPU(s): they would wait for one another")
    return device


def set_process_state(case: Case, policy: Policy) -> None:
    """Threads and torch's switches as the case and the suite have them."""
    torch.set_num_threads(case.threads)
    torch.backends.cuda.matmul.allow_tf32 = policy.tf32
    torch.backends.cudnn.allow_tf32 = policy.tf32
    torch.backends.cudnn.benchmark = policy.cudnn_benchmark
    # As they are when a process starts: an earlier case's layer may have set them, and one worker makes all of a
    # variant's cases.
    torch.backends.mkldnn.set_flags(True)
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.autograd.set_detect_anomaly(False)
    if policy.deterministic != torch.are_deterministic_algorithms_enabled():  # setting it imports all of inductor
        torch.use_deterministic_algorithms(policy.deterministic)
