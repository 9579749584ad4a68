"""A suite as pytest-benchmark tests: a case each, checked before it is timed, its set-up outside the timed part.

A test file of two lines, as `layerbench pytest-benchmark` writes it:

    from bench.pytest_suite import benchmarks
    test_shift = benchmarks("configs/shift.yaml")
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import layers
from bench import check, config
from bench.bounds import Wrong
from bench.machine import facts as machine
from bench.machine import memory
from bench.model import Planned, Policy, Status, Suite
from bench.remote import RemoteTask
from bench.session import Session
from bench.task import NoGradient
from layers.variants import VARIANTS


def benchmarks(path: str | Path) -> Callable[..., None]:
    """One parametrised test of all cases of a suite. Raises UserError for a mistake in the file."""
    suite = load(path)
    planned = suite.cases()

    def test(benchmark: Any, request: pytest.FixtureRequest, case: str) -> None:
        threads = torch.get_num_threads()
        try:
            _test(benchmark, float(request.config.getoption("benchmark_max_time")), planned[case], suite.policy)
        finally:
            torch.set_num_threads(threads)

    # As ids too: pytest calls what is longer than a line "case7", which the next case before it would rename.
    parametrised: Callable[..., None] = pytest.mark.parametrize("case", planned, ids=list(planned))(test)
    return parametrised


def load(path: str | Path) -> Suite:
    """The suite of a YAML file or a layer, with what is known in this process."""
    return config.load_suite(
        path, find_layer=layers.load, layers=layers.BUILTIN, variants=tuple(VARIANTS), cpus=machine.cpus()
    )


def _test(benchmark: Any, seconds: float, planned: Planned, policy: Policy) -> None:
    case = planned.case
    benchmark.group = case.setting
    _fix_allocator(policy.allocator)
    session = _checked(planned, policy)
    if isinstance(session.task, RemoteTask):
        pytest.skip("its calls are made and timed in a program of their own")
    session.warm_up()
    benchmark.extra_info.update(error=session.error, warnings=session.warnings, notes=session.made.notes)
    task = session.task
    with task.grad_mode():
        if task.fresh:
            prepare, call = (_synchronous(work, case.device) for work in (task.prepare, task))
            benchmark.pedantic(call, setup=prepare, rounds=_rounds(prepare, call, seconds, policy))
        else:  # what is called around the layer would be timed with it
            task.clear()
            task.returned = benchmark(_synchronous(session.made.call, case.device), *task.inputs)
    check.check_last(task, session.reference, case.direction, session.bound)


def _checked(planned: Planned, policy: Policy) -> Session:
    """The case made and found right; anything else ends the test, well where the suite expects it."""
    reason: str
    try:
        session = Session(planned.case, policy)
        session.error, told = session.check()
        session.warnings += told
        if planned.expect is Status.OK:
            return session
        status, reason = Status.OK, f"expected {planned.expect}"
    except layers.Unavailable as unavailable:
        pytest.skip(str(unavailable))
    except Wrong as wrong:
        status, reason = Status.INCORRECT, str(wrong)
    except NoGradient as error:
        status, reason = Status.FAILED, str(error)
    if status is planned.expect:
        pytest.xfail(f"{status}: {reason}")
    pytest.fail(f"{status}: {reason}", pytrace=False)


def _rounds(prepare: Callable[[], None], call: Callable[[], None], seconds: float, policy: Policy) -> int:
    """As many as fit into the seconds that --benchmark-max-time gives a test, preparing included."""
    start = time.perf_counter()
    prepare()
    call()
    return max(policy.min_rounds, int(seconds / (time.perf_counter() - start)))


def _synchronous(call: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The call and, on a GPU, the wait for it: one that is only enqueued is not over."""
    if device == "cpu":
        return call

    def complete(*inputs: Tensor) -> Any:
        output = call(*inputs)
        torch.cuda.synchronize(device)
        return output

    return complete


@functools.cache
def _fix_allocator(state: str) -> None:
    memory.fix_allocator(state)
