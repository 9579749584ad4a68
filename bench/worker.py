"""One process that prepares a case, checks it and samples it on request. Started by the runner, one per variant."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench import check, environment, measure, timers
from bench.model import Case, Measurement, Metric, Policy, Status
from bench.protocol import (
    Answer,
    Describe,
    Described,
    Failed,
    Finish,
    Finished,
    Prepare,
    Prepared,
    Request,
    Sample,
    Turn,
)
from bench.task import NoGradient, Task
from layers import Unavailable, load
from layers.variants import make


def serve(connection: Connection, log: str, allocator: str) -> None:
    """Answer requests until the other side closes. Never returns an exception: it becomes a Failed answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it saves, then stops us
    _redirect_output(log)
    allocator_state = fix_allocator(allocator)
    worker = Worker(allocator_state)
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            return
        connection.send(worker.answer(request))


class Worker:
    """Holds the one case in hand between requests."""

    def __init__(self, allocator: str = "default") -> None:
        self._allocator = allocator
        self._session: Session | None = None
        self._checked: dict[tuple[object, ...], float] = {}  # what passed already, by everything but the direction

    def answer(self, request: Request) -> Answer:
        try:
            match request:
                case Describe():
                    return Described(environment.describe() | {"allocator": self._allocator})
                case Prepare(case, policy, check_only):
                    self._session = None  # frees the last case first
                    return self._prepare(case, policy, check_only)
                case Sample(number):
                    assert self._session is not None
                    return self._session.sample(number)
                case Finish():
                    assert self._session is not None
                    session, self._session = self._session, None
                    return Finished(session.finish())
        except Exception as error:
            self._session = None
            return Failed(describe_error(error))

    def _prepare(self, case: Case, policy: Policy, check_only: bool) -> Prepared:
        try:
            session = Session(case, policy)
            key = (case.layer, case.variant, case.params, case.dtype, case.device, case.direction.needs_gradient)
            if key not in self._checked:
                self._checked[key] = session.check()
            session.error = self._checked[key]
            if not check_only:
                session.warm_up()
                self._session = session
        except Unavailable as reason:
            return Prepared(Status.SKIPPED, str(reason))
        except check.Wrong as wrong:
            bound = check.bound_for(case.dtype, tf32=policy.tf32)
            return Prepared(Status.INCORRECT, str(wrong), error=wrong.error, bound=bound, notes=session.made.notes)
        except NoGradient as error:
            return Prepared(Status.FAILED, str(error))
        return session.prepared()


@dataclass
class Session:
    """One case from its making to its measurement."""

    case: Case
    policy: Policy
    error: float = 0.0
    once: list[Metric] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        case, policy = self.case, self.policy
        device = _device(case)
        _set_process_state(case, policy)
        self.layer = load(case.layer)
        self.params: dict[str, Any] = dict(case.params)
        start = time.perf_counter()
        dtype = getattr(torch, case.dtype)
        self.made = make(self.layer, case.variant, self.params, dtype=dtype, device=device, seed=policy.seed)
        self._took(
            "make", time.perf_counter() - start, "building the variant: scripting, tracing, loading the operator"
        )
        self.task = Task(self.made, case.direction, input_gradients=policy.input_gradients)
        self.reference = check.Reference.of(self.layer, self.params, self.made, device)
        self.timers = timers.timers_for(device)
        self.bound = check.bound_for(case.dtype, tf32=policy.tf32)
        self._rounds: dict[str, list[tuple[float, ...]]] = {timer.metric: [] for timer in self.timers}
        self._faults: list[tuple[float, ...]] = []
        self._plans: list[measure.Plan] = []
        with self.task.grad_mode():
            self._took("first_call", self.timers[0].window(self.task, 1), "the first call, what it compiles included")

    def check(self) -> float:
        """Largest relative error; raises check.Wrong."""
        return check.check(
            self.made,
            self.reference,
            variant=self.case.variant,
            dtype=self.case.dtype,
            bound=self.bound,
            gradients=self.case.direction.needs_gradient,
        )

    def warm_up(self) -> None:
        with self.task.grad_mode():
            warm = measure.warm_up(self.timers[0], self.task, self.policy)
            self._plans = [measure.plan(timer, self.task, self.policy) for timer in self.timers]
        self._took("warmup", warm.seconds, "warm-up until a plateau")
        self.once.append(Metric("warmup_calls", "calls", ((float(warm.calls),),), about="calls until a plateau"))
        if not warm.steady:
            self.warnings.append(f"not steady after {warm.calls} calls and {warm.seconds:.1f} s of warm-up")

    def prepared(self) -> Prepared:
        return Prepared(
            Status.OK,
            error=self.error,
            bound=self.bound,
            warnings=tuple(self.warnings),
            notes=self.made.notes,
            metrics=tuple(self.once),
        )

    def sample(self, number: int) -> Turn:
        rng = random.Random(f"{self.policy.seed} {number} {self.case.id}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with self.task.grad_mode():
            values = measure.turn(self._plans, self.task, rng)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        calls = sum(len(values[plan.timer.metric]) * plan.calls for plan in self._plans)
        self._faults.append((faults / calls,))
        for metric, taken in values.items():
            self._rounds[metric].append(taken)
        return Turn(values)

    def finish(self) -> Measurement:
        case, facts = self.case, self.made.notes
        try:
            check.check_last(self.task, self.reference, case.direction, self.bound)
        except check.Wrong as wrong:
            return Measurement(case, Status.INCORRECT, str(wrong), notes=facts, error=wrong.error, bound=self.bound)
        sampled = [
            Metric(timer.metric, "s", tuple(self._rounds[timer.metric]), timer.clock, timer.about)
            for timer in self.timers
        ]
        faults = Metric(
            "page_faults", "1", tuple(self._faults), about="page faults a call, placing the inputs included"
        )
        doubts = [doubt for timer in self.timers for doubt in timer.doubts]
        if len(sampled[0].lows) >= 12 and measure.falling(sampled[0].lows, by=0.05):
            doubts.append("got faster while it was sampled: too short a warm-up, or a machine settling down")
        return Measurement(
            case,
            Status.OK,
            metrics=(*sampled, *self.once, faults, *self._memory()),
            warnings=(*self.warnings, *doubts, *resolution_warnings(sampled[0], self._plans[0].calls)),
            notes=facts,
            error=self.error,
            bound=self.bound,
        )

    def _memory(self) -> list[Metric]:
        if not self.case.device.startswith("cuda"):
            return []
        peak = float(torch.cuda.max_memory_allocated(self.case.device))
        return [Metric("peak_memory", "B", ((peak,),), about="most GPU memory allocated at once")]

    def _took(self, name: str, seconds: float, about: str) -> None:
        self.once.append(Metric(name, "s", ((seconds,),), "host", about))


def resolution_warnings(metric: Metric, calls: int) -> tuple[str, ...]:
    """A time of a few clock ticks, or no longer than an empty loop around a call, says little."""
    low = min(metric.lows)
    if low < 200e-9:
        return (f"{low * 1e9:.0f} ns a call is near the cost of calling anything from Python; mind the resolution",)
    if calls == 1 and low < 2e-6:
        return ("single calls of under 2 us are near the clock's own cost",)
    return ()


def fix_allocator(state: str) -> str:
    """Make glibc keep freed pages (`warm`) or leave it alone (`default`); what was done is recorded.

    Left alone, outputs above its moving mmap threshold get fresh pages on every call or none, depending on what was
    freed before: the same convolution took 2 or 16 ms in one process.
    """
    if state == "default":
        return "default"
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return "default (no glibc: cannot be warmed)"
    m_trim_threshold, m_mmap_max = -1, -4
    ok = mallopt(m_mmap_max, 0) and mallopt(m_trim_threshold, 2**31 - 1)
    return "warm (mallopt: no mmap, no trim)" if ok else "default (mallopt refused)"


def describe_error(error: BaseException) -> str:
    """`Type: first lines`, with the place in the user's code where there is one."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()][:8]
    text = f"{type(error).__name__}: " + "\n".join(lines) if lines else type(error).__name__
    traceback, place = error.__traceback__, ""
    ours = os.path.dirname(__file__)  # noqa: PTH120 - as the frames spell it
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(ours) and f"{os.sep}torch{os.sep}" not in code.co_filename:
            place = f" (at {os.path.relpath(code.co_filename)}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return text + place


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


def _set_process_state(case: Case, policy: Policy) -> None:
    torch.set_num_threads(case.threads)
    torch.backends.cuda.matmul.allow_tf32 = policy.tf32
    torch.backends.cudnn.allow_tf32 = policy.tf32
    torch.backends.cudnn.benchmark = policy.cudnn_benchmark
    if policy.deterministic != torch.are_deterministic_algorithms_enabled():  # setting it imports all of inductor
        torch.use_deterministic_algorithms(policy.deterministic)
    if case.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(case.device)


def _redirect_output(log: str) -> None:
    """What layers print goes to the run's log: the terminal shows progress, and a pipe nobody reads would block."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
