"""What does the host pay to call an operator of ours?  python -m experiments.dispatch [cpu|cuda]

Tensors of a few bytes, so that the call is all there is. Each of our operators beside the function of torch that is
most like it, and beside itself by the other bindings, in turns; lowest of many windows each, since whatever disturbs a
window only adds time. On a GPU nothing is waited for inside a window: what it takes to enqueue is what is paid.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.clocks.timer import no_gc
from experiments.common import Quiet, record
from ext import build, ops

WINDOWS, CALLS = {"cpu": 150, "cuda": 30}, 300
BINDINGS = {"custom_op": "layerbench", "custom_op_py": "layerbench_py", "stable_abi": "layerbench_stable"}
Calls = dict[str, Callable[..., Any]]


def low(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Seconds a call of each, the lowest of the windows."""
    best = dict.fromkeys(calls, float("inf"))
    with no_gc():
        for _ in range(WINDOWS[device]):
            for name, call in calls.items():
                if device == "cuda":
                    torch.cuda.synchronize()  # the queue must not fill up
                start = time.perf_counter_ns()
                for _ in itertools.repeat(None, CALLS):
                    call()
                best[name] = min(best[name], (time.perf_counter_ns() - start) / CALLS * 1e-9)
    return best


def operators() -> dict[str, Calls]:
    """The functions to compare by operator, `torch` first; all of an operator take the same arguments."""
    for library in build.LIBRARIES:
        ops.load(library)
    from ext import pybind

    bound = {binding: getattr(torch.ops, namespace) for binding, namespace in BINDINGS.items()}
    window = ((3, 3), (1, 1), (0, 0), (1, 1))
    named: dict[str, Calls] = {
        "shift": {
            "torch": lambda x: torch.roll(x, 3, -1),
            **{name: (lambda x, op=of.shift: op(x, 3)) for name, of in bound.items()},
            "pybind": lambda x: pybind.shift(x, 3),
        },
        "vecadd": {
            "torch": torch.add,
            **{name: of.vecadd for name, of in bound.items()},
            # Without the Python function that torch.ops puts in front of every operator, and not of its own.
            "custom_op below torch.ops": bound["custom_op"].vecadd.default._op,
            "pybind": pybind.vecadd,
        },
        "unfold_conv2d": {
            "torch": lambda x, w, b: F.conv2d(x, w, b),
            **{name: (lambda x, w, b, op=of.unfold_conv2d: op(x, w, b, *window)) for name, of in bound.items()},
        },
    }
    return named


def arguments(operator: str, function: str, device: str) -> tuple[Tensor, ...]:
    """Arguments that want gradients."""
    weight = (1, 1, 3, 3) if function == "torch" else (1, 1, 9)
    shapes: dict[str, list[tuple[int, ...]]] = {
        "shift": [(16,)],
        "vecadd": [(16,), (16,)],
        "unfold_conv2d": [(1, 1, 4, 4), weight, (1,)],
    }
    return tuple(torch.randn(shape, device=device, requires_grad=True) for shape in shapes[operator])


def measure(functions: Calls, inputs: dict[str, tuple[Tensor, ...]], mode: str, device: str) -> dict[str, float]:
    """Seconds a call of each function in one way of calling it."""
    plain = {name: tuple(x.detach() for x in given) for name, given in inputs.items()}
    given = plain if mode == "no gradient wanted" else inputs
    calls: dict[str, Callable[[], Any]] = {name: (lambda f=f, xs=given[name]: f(*xs)) for name, f in functions.items()}
    if mode == "forward and backward":
        grads = {name: torch.ones_like(call()) for name, call in calls.items()}
        calls = {
            name: (lambda call=call, xs=given[name], grad=grads[name]: torch.autograd.grad(call(), xs, grad))
            for name, call in calls.items()
        }
    with (
        torch.inference_mode(mode == "inference_mode"),
        torch.set_grad_enabled(mode not in ("inference_mode", "no_grad")),
    ):
        return low(calls, device)


MODES = ("inference_mode", "no_grad", "no gradient wanted", "forward", "forward and backward")


def main(device: str = "cpu") -> None:
    """Every operator by every binding, with and without a gradient."""
    quiet, rows = Quiet(), list[dict[str, Any]]()
    torch.set_num_threads(1)
    for operator, functions in operators().items():
        inputs = {name: arguments(operator, name, device) for name in functions}
        for mode in MODES:
            best = quiet.take(lambda: measure(functions, inputs, mode, device))  # noqa: B023  (called at once)
            for name, seconds in best.items():
                rows.append(
                    {"operator": operator, "mode": mode, "binding": name, "us": seconds * 1e6,
                     "over torch": seconds / best["torch"]}
                )  # fmt: skip
    record("dispatch" if device == "cpu" else f"dispatch-{device}", quiet, rows, windows=WINDOWS[device], calls=CALLS)


if __name__ == "__main__":
    main(*sys.argv[1:])
