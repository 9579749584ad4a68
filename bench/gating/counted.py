"""What the process of instructions.py does: make cases, and have the instructions of their calls counted."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from bench.gating.orders import Doing, Message, Order, Over
from bench.model import Case, Policy, Status
from bench.session import made_for, set_process_state
from bench.task import Task
from bench.worker import describe_error
from layers import load

WARM = 6  # calls before counting starts: TorchScript's executor is not steady before the fourth
SETTLE = 2  # calls after that, uncounted
CALLS = 11  # that are counted, each by itself
FEWER = 3  # of calls that take longer than LONG seconds before: what varies between calls is nothing beside those
LONG = 0.1


def carry_out(order: Order) -> Iterator[Message]:
    """Count the cases of an order, telling what comes of each.

    First all that is not counted, for every case: once switched on, counting makes each call many times slower.
    """
    helper = ctypes.PyDLL(order.helper)
    helper.layerbench_count.argtypes = [ctypes.py_object, ctypes.c_char_p]
    helper.layerbench_count.restype = ctypes.py_object
    gc.disable()
    tasks: dict[int, tuple[Task, int]] = {}
    for number, case in enumerate(_cases(order)):
        yield Doing(number, "warm up")
        try:
            task = _warm(case, order.policy)
            start = time.perf_counter()
            _call(task, 1, task)
            tasks[number] = task, FEWER if time.perf_counter() - start > LONG else CALLS
        except Exception as error:
            yield Over(number, Status.FAILED, describe_error(error))
    helper.layerbench_start()
    for number, (task, calls) in tasks.items():
        yield Doing(number, "count")
        try:
            _call(task, SETTLE, task)
            _call(task, calls, partial(helper.layerbench_count, task, str(number).encode()))
            yield Over(number, Status.OK)
        except Exception as error:
            yield Over(number, Status.FAILED, describe_error(error))


def _warm(case: Case, policy: Policy) -> Task:
    set_process_state(case, policy)
    task = Task(made_for(case, policy, load(case.layer)), case.direction, input_gradients=policy.input_gradients)
    _call(task, WARM, task)
    return task


def _call(task: Task, times: int, call: Callable[[], object]) -> None:
    with task.grad_mode():
        for _ in range(times):
            task.prepare()
            call()


def _cases(order: Order) -> list[Case]:
    """The cases as this process finds them: on one thread, in the arm."""
    found = (order.arm.case(case) if order.arm else case for case in order.cases)
    return [msgspec.structs.replace(case, threads=1) for case in found]
