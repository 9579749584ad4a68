"""The self-test behind `layerbench doctor`: can numbers from here be trusted, and how small a change is seen."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench import __version__
from bench.doctor import noise
from bench.doctor.findings import Finding, Report
from bench.model import Policy
from bench.workers import start_server

Progress = Callable[[str, float], None]  # what is being done, and the share of the time that is gone

PROBES = 30.0  # s that the probes may take, at most


def run(environment: dict[str, Any], *, seconds: float, progress: Progress) -> Report:
    """Probe the clocks, then compare identical variants for the rest of about `seconds`.

    `environment` is environment.describe()'s. Needs no torch in this process.
    """
    begin, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")

    def tell(text: str) -> None:
        progress(text, min(1.0, (time.monotonic() - begin) / seconds))

    tell("starting workers")
    gpus = environment.get("gpu", {})
    has_gpu = bool(gpus.get("devices"))
    found = list(_probes(has_gpu, tell))
    policy = Policy()
    with tempfile.TemporaryDirectory() as folder:
        runs = list(
            noise.repeat(
                Path(folder),
                ("cpu", "cuda") if has_gpu else ("cpu",),
                seconds=min(1.0, seconds / 60),
                deadline=begin + seconds,
                tell=tell,
            )
        )
    judged, twins = noise.judge(runs, policy.same_within)
    found += judged
    if not has_gpu:
        found.append(Finding("GPU clocks and A/A", "skip", detail=f"no CUDA device: {gpus.get('reason', 'none seen')}"))
    took = time.monotonic() - begin
    return Report(__version__, started, took, environment, tuple(found), tuple(twins), policy.same_within)


def _probes(gpu: bool, tell: Callable[[str], None]) -> Iterator[Finding]:
    """What probes.py finds in its own process; ends in time, whatever that does."""
    context = start_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=_enter, args=(theirs, gpu), name="probes")
    process.start()
    theirs.close()  # so that a death reads as end of file
    try:
        yield from received(ours, time.monotonic() + PROBES, tell)
    finally:
        ours.close()
        process.kill()
        process.join()


def received(connection: Connection, deadline: float, tell: Callable[[str], None]) -> Iterator[Finding]:
    """The findings sent until None; a failure of its own where the other side is silent too long or dies."""
    doing = "start"
    try:
        while connection.poll(max(0.0, deadline - time.monotonic())):
            answer = connection.recv()
            if answer is None:
                return
            if isinstance(answer, Finding):
                yield answer
            else:
                doing = answer
                tell(doing)
        detail = f"not done after {PROBES:g} s, so it was stopped"
    except (EOFError, ConnectionError):
        detail = "its process died"
    yield Finding(doing, "fail", detail=detail)


def _enter(connection: Connection, gpu: bool) -> None:
    # By name: the parent stays free of torch.
    importlib.import_module("bench.doctor.probes").serve(connection, gpu)
