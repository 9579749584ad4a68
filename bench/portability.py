"""Where each variant of a layer can go: saved, loaded elsewhere, trained there. Every answer is tried.

Each try is a process of its own, forked from a server that has imported torch and of this project
nothing but where it lies.
"""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from bench.model import UserError
from bench.workers import death

FILE = "portability.json"
QUESTIONS = {
    "save": "saves",
    "python": "Python",
    "cpp": "C++",
    "train": "trains",
    "device": "device",
    "batch": "batch",
}
FORMS = {"pickle": "torch.save", "script": "torch.jit.save", "package": "AOTInductor"}
LIKE = {"eager": "pickle", "compile": "pickle", "aoti_cpp": "package"}  # how a variant is saved; others as TorchScript
CONVERSIONS = ("eager", "jit_script", "trace", "compile", "aoti_cpp")  # variants of every layer
# Sizes do not decide what can be saved, and compilers take long on many unrolled products.
SMALL: dict[str, dict[str, Any]] = {"unfold_conv2d": {"size": 12, "in_channels": 1, "out_channels": 2}}
SECONDS = 240.0  # longest wait for one try

Progress = Callable[[str, float], None]


class Cell(msgspec.Struct, frozen=True):
    """An answer. `library`: yes, once the library with the operators is loaded; `reason` then is the one without."""

    outcome: Literal["yes", "library", "no", "n/a"]
    reason: str = ""


class Row(msgspec.Struct, frozen=True):
    """A variant of a layer saved one way, and an answer to each of QUESTIONS."""

    layer: str
    variant: str
    form: str  # of FORMS
    cells: dict[str, Cell]


class Report(msgspec.Struct, frozen=True):
    """The table of one machine."""

    started: str  # ISO 8601, UTC
    torch: str
    devices: str
    rows: tuple[Row, ...]


class LayerLike(Protocol):
    """What this needs to know of a layer."""

    @property
    def versions(self) -> Mapping[str, Any]:
        """Hand-written versions by variant name."""


@dataclass(frozen=True)
class Tools:
    """What was built for the tries: the C++ program or why there is none, and the library behind each variant."""

    runner: Path | None
    reason: str = ""
    libraries: Mapping[str, Path] = field(default_factory=dict)


def tools(progress: Callable[[str], None]) -> Tools:
    """Build the C++ program and the operators' libraries; what cannot be built is left out."""
    from ext import build, cmake

    libraries = {}
    for variant, which in {"custom_op": build.OPS, "stable_abi": build.STABLE}.items():
        with suppress(build.BuildError):
            libraries[variant] = build.build(progress, which)
    try:
        return Tools(cmake.make(cmake.RUNNER, progress), "", libraries)
    except build.BuildError as error:
        return Tools(None, f"the C++ program cannot be built: {error.reason}", libraries)


def planned(layers: Mapping[str, LayerLike], variants: Sequence[str]) -> list[tuple[str, str, str]]:
    """Layer, variant and form of every row to be."""
    rows = []
    for name, layer in layers.items():
        for variant in dict.fromkeys((*variants, *layer.versions)):
            if variant in CONVERSIONS or variant in layer.versions:
                rows.append((name, variant, LIKE.get(variant, "script")))
                if variant == "jit_script":
                    rows.append((name, variant, "pickle"))  # what people try first (pytorch#18106)
    return rows


def survey(rows: Sequence[tuple[str, str, str]], tools: Tools, *, jobs: int, progress: Progress) -> Report:
    """Try everything, `jobs` rows at a time; `progress` is given a line and the share done."""
    context = _server()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    found: dict[tuple[str, str, str], Row] = {}
    with ThreadPoolExecutor(jobs) as pool:
        slow_first = sorted(rows, key=lambda row: row[2] != "package")  # so that no compiler is waited for at the end
        waiting = {pool.submit(_row, context, row, tools): row for row in slow_first}
        for done in as_completed(waiting):
            layer, variant, form = row = waiting[done]
            found[row] = done.result()
            progress(f"{layer} {variant} {FORMS[form]}", len(found) / len(rows))
    torch, devices = _ask(context, "facts").reason.split(" ", 1)
    return Report(started, torch, devices, tuple(found[row] for row in rows))


def load(path: Path) -> Report | None:
    """The report in a folder, or None if there is none. Raises UserError for a file that is no report."""
    file = path / FILE
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(
            f"unreadable: {error}", place=str(file), remedy="layerbench portability --out writes it"
        ) from None


def _row(context: Any, row: tuple[str, str, str], tools: Tools) -> Row:
    layer, variant, form = row
    library = tools.libraries.get(variant)
    with tempfile.TemporaryDirectory(prefix="layerbench-") as folder:
        cells = {"save": _ask(context, "save", folder, layer, variant, form, SMALL.get(layer, {}))}
        if cells["save"].outcome == "yes":
            cells["python"] = _with(lambda *extra: _ask(context, "python", folder, form, *extra), library)
            cells["cpp"] = _with(lambda *extra: _in_cpp(Path(folder), form, tools, *extra), library)
            loads = cells["python"].outcome
            for question in ("train", "device", "batch"):
                if loads in ("yes", "library"):
                    extra = (str(library),) if loads == "library" else ()
                    cells[question] = _ask(context, question, folder, form, *extra)
        nothing = Cell("n/a", "not saved" if cells["save"].outcome != "yes" else "does not load in Python")
        return Row(layer, variant, form, {question: cells.get(question, nothing) for question in QUESTIONS})


def _with(attempt: Callable[..., Cell], library: Path | None) -> Cell:
    """Tried alone, then with the library."""
    alone = attempt()
    if alone.outcome != "no" or library is None:
        return alone
    together = attempt(str(library))
    return Cell("library", alone.reason) if together.outcome == "yes" else together


def _in_cpp(folder: Path, form: str, tools: Tools, library: str = "") -> Cell:
    if tools.runner is None:
        return Cell("n/a", tools.reason)
    model = folder / ("model.pt2" if form == "package" else "model.pt")
    command = [str(tools.runner), model.name, "--inputs", "inputs.pt", "--expect", "output.pt", "--seconds", "0"]
    command += ["--library", library] if library else []
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Cell("no", f"no answer within {SECONDS:g} s")
    if done.returncode == 0:
        return Cell("yes")
    if done.returncode < 0:
        return Cell("no", death(done.returncode))
    return Cell("no", done.stderr.strip().splitlines()[-1].removeprefix("runner: "))


def _server() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["layerbench_start", "torch"])
    return context


def _ask(context: Any, question: str, *arguments: Any) -> Cell:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_enter, args=(theirs, question, arguments), daemon=False)
    process.start()
    theirs.close()  # so that a death reads as end of file
    try:
        if not ours.poll(SECONDS):
            return Cell("no", f"no answer within {SECONDS:g} s")
        return Cell(*ours.recv())
    except EOFError:
        process.join(5)
        return Cell("no", death(process.exitcode))
    finally:
        process.kill()
        process.join()
        ours.close()


def _enter(connection: Connection, question: str, arguments: tuple[Any, ...]) -> None:
    # By name: the parent stays free of torch.
    connection.send(importlib.import_module("bench.portable").answer(question, *arguments))
