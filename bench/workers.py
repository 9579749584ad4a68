"""The worker processes as the runner sees them: ask one something, get its answer or learn that it died."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench import ours
from bench.gating.arms import Arm
from bench.protocol import Answer, Request

# What takes seconds to import, and nothing that imports layers: which ones those are may be the worker's to choose.
# torch.autograd.backward() imports symbolic_shapes in its first call, which would take 0.3 s of some case's.
PRELOADED = (
    "layerbench_start",  # first: the server looks for `bench` in the current folder before anywhere else
    "torch",
    "torch.fx.experimental.symbolic_shapes",
    "bench.measure",
    "bench.machine.memory",
    "bench.machine.monitor",
)


class WorkerDied(Exception):
    """The worker is gone, or gave no answer in time and was killed; the text says which."""


def start_server() -> Any:
    """Start importing torch in the process that workers fork from; answers at once with the context to fork in.

    Called early, the import runs beside whatever the parent still has to do. Where there is no fork, workers import
    for themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()
    return context


FAREWELL = 1.0  # s: for all workers together


class Workers:
    """One long-lived process per name, forked from a server that has imported torch once. Use with `with`.

    A worker whose name is among `arms` runs that arm's code.
    """

    def __init__(self, log: Path, allocator: str, arms: Mapping[str, Arm] | None = None) -> None:
        self._context: Any = start_server()
        self._log, self._allocator, self._arms = log, allocator, arms or {}
        self._live: dict[str, tuple[Any, Connection]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        # One that waits for a request ends by itself at the end of its file, and tidies up: a semaphore that a killed
        # process leaves behind is announced on the user's terminal. The others are stopped.
        for _, connection in self._live.values():
            connection.close()
        deadline = time.monotonic() + FAREWELL
        for process, _ in self._live.values():
            process.join(max(0.0, deadline - time.monotonic()))
        for name in list(self._live):
            self._stop(name)

    def ask(self, name: str, request: Request, timeout: float) -> Answer:
        """The worker's answer. Raises WorkerDied; the next request to that name starts a new process."""
        process, connection = self._live.get(name) or self._start(name)
        try:
            connection.send(request)
            if connection.poll(timeout):
                answer: Answer = connection.recv()
                return answer
        except (EOFError, ConnectionError):
            process.join(5)
            exitcode = self._stop(name)
            raise WorkerDied(f"its worker {death(exitcode)}{self._last_words()}") from None
        self._stop(name)
        raise WorkerDied(f"no answer within the {timeout:g} s of policy.timeout, so its worker was stopped")

    def kill(self) -> None:
        """Stop whatever they are doing, so that whoever waits for an answer learns that they died."""
        _end([process for process, _ in list(self._live.values())])

    def _start(self, name: str) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, str(self._log), self._allocator, self._arms.get(name))
        process = self._context.Process(target=_enter, args=arguments, name=name)
        process.start()
        theirs.close()  # so that a death reads as end of file
        self._live[name] = (process, ours)
        return process, ours

    def _stop(self, name: str) -> int | None:
        process, connection = self._live.pop(name)
        connection.close()
        _end([process])
        exitcode: int | None = process.exitcode
        return exitcode

    def _last_words(self) -> str:
        name = self._log.name  # in the run's folder, but of `check` in one that is gone when this is read
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"; last line of {name}: {lines[-1][:200]}" if lines else f"; it left no word in {name}"


def _end(processes: Sequence[Any]) -> None:
    """Stop them, and kill what is stuck in a kernel: a compiler that is simply killed leaves a lock behind, for which
    the next build waits in vain."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + FAREWELL
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _enter(connection: Connection, log: str, allocator: str, arm: Arm | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it saves, then stops us
    signal.signal(signal.SIGTERM, _leave)
    _redirect_output(log)
    ours.protect()  # where workers are not forked
    if arm:
        arm.enter()
    # By name: the parent stays free of torch, and what breaks at import breaks in a worker.
    importlib.import_module("bench.worker").serve(connection, allocator, arm)


def _leave(*_: object) -> None:
    """By an exception, so that what has to be put back on the way out is."""
    raise SystemExit(128 + signal.SIGTERM)


def _redirect_output(log: str) -> None:
    """What layers print goes to the run's log: the terminal shows progress, and a pipe nobody reads would block."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def death(exitcode: int | None) -> str:
    """How a process ended, in words: "crashed (SIGSEGV)"."""
    if exitcode == -signal.SIGKILL:
        return "was killed (SIGKILL): out of memory, most likely"
    if exitcode is not None and exitcode < 0:
        return f"crashed ({signal.Signals(-exitcode).name})"
    return f"ended with exit code {exitcode}"
