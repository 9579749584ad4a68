"""A saved module in a C++ process of its own (ext/runner): callable like the module, and timed by its own clock."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from layers import Inputs, Unavailable

State = Literal["inference", "forward", "backward", "forward_backward"]


class Program:
    """The runner in its serving mode, with one model loaded. It ends with this process, or when `close` is called.

    Calling it sends the inputs, runs the model once and brings back its output; gradients of inputs and parameters
    come the same way, by the parameters' names. That is for checking. For timing, `set` the inputs, then `place` them
    and run each `window` in the program, where no Python takes part. Not for several threads.
    """

    def __init__(
        self,
        model: Path,
        device: torch.device,
        parameters: Mapping[str, Tensor] | None = None,
        libraries: Sequence[Path] = (),
    ) -> None:
        """`parameters` are those whose gradients calling it brings back. Raises Unavailable and RuntimeError."""
        options = ["--serve", "--device", str(device), "--threads", str(torch.get_num_threads())]
        for library in libraries:
            options += ["--library", str(library)]
        self._process = subprocess.Popen(  # noqa: S603
            [str(runner()), str(model), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is not meant for it
        )
        self.device = device
        self.pid = self._process.pid
        self.held: Sequence[Tensor] = ()  # what was set last
        self.page_faults = 0  # of the program, up to its last answer
        self.trains: bool = self._answer()["trains"]
        self.parameters = dict(parameters or {})

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and self.trains):
            return self.run("inference", inputs)[0]
        output: Tensor = _Run.apply(self, len(inputs), *inputs, *self.parameters.values())  # type: ignore[no-untyped-call]
        return output

    def run(
        self, state: State, inputs: Sequence[Tensor], grad: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One call: output, and gradients by name (`input 0`, `weight`). What it does to its inputs shows in them."""
        self.set(state, inputs, grad)
        self.window(1)
        output, gradients, left = self.results()
        for x, after in zip(inputs, left, strict=True):
            if not torch.equal(x, after):
                x.detach().copy_(after)
        return output, gradients

    def policy(self, *, allocator: str, tf32: bool, cudnn_benchmark: bool, deterministic: bool) -> None:
        """The state of the process that timings depend on, as in a worker."""
        self._ask(f"policy {allocator} {int(tf32)} {int(cudnn_benchmark)} {int(deterministic)}")

    def set(self, state: State, inputs: Sequence[Tensor], grad: Tensor | None = None) -> None:
        """What the windows to come do, and on what; `grad` is what `backward` starts from."""
        with _file() as given, _file() as gradient:
            torch.save([x.detach().requires_grad_(x.requires_grad) for x in inputs], given)
            if grad is not None:
                torch.save(grad.detach(), gradient)
            self._ask(f"set {state} {given} {gradient if grad is not None else ''}")
        self.held = inputs

    def place(self, seed: int) -> None:
        """Move the inputs to random places in the program's memory."""
        self._ask(f"place {seed}")

    def touch(self) -> int:
        """Make a call; where in the program's memory its output lies, 0 where that is of no matter."""
        return int(self._ask("touch")["output"])

    def window(self, calls: int) -> float:
        """Seconds a call over so many, by the program's clock."""
        return float(self._ask(f"window {calls}")["seconds"])

    def results(self) -> tuple[Tensor, dict[str, Tensor], Inputs]:
        """Output and gradients of the last call, and the inputs as it left them."""
        with _file() as path:
            self._ask(f"results {path}")
            found = torch.load(path, map_location=self.device, weights_only=False)
        return found["output"], dict(found["gradients"]), tuple(found["inputs"])

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None  # asked for
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is waiting to be read
        answer = self._answer()
        self.page_faults = int(answer["faults"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # asked for
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the C++ program ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in C++: {answer['error']}")
        return answer


class _Run(torch.autograd.Function):
    """A call of a Program with its backward."""

    @staticmethod
    def forward(ctx: Any, program: Program, count: int, *tensors: Tensor) -> Tensor:
        ctx.program, ctx.count = program, count
        ctx.save_for_backward(*tensors[:count])
        return program.run("forward", tensors[:count])[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        program: Program = ctx.program
        _, gradients = program.run("backward", ctx.saved_tensors, grads[0])
        names = [f"input {number}" for number in range(ctx.count)] + list(program.parameters)
        return None, None, *map(gradients.get, names)


def runner() -> Path:
    """The built C++ program, built first if need be. Unavailable, with the reason, where it cannot be built."""
    from ext import build, cmake  # here: without a compiler everything else still works

    try:
        return cmake.make(cmake.RUNNER)
    except build.BuildError as error:
        raise Unavailable(f"the C++ program cannot be built: {str(error).splitlines()[0]}") from error


@contextmanager
def _file() -> Iterator[Path]:
    """A name for a file that is gone afterwards."""
    with tempfile.NamedTemporaryFile(prefix="layerbench-") as file:
        yield Path(file.name)
