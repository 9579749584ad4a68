"""Build, cache and find the native library. Every reason not to build it, or not with CUDA, has a name."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import filelock

HERE = Path(__file__).resolve().parent
CUDA_PLACES = Path("/usr/local")  # where cuda and cuda-13.0 lie if they are not on PATH
CUDA_LOG = "cuda-build.log"  # beside a library that had to do without CUDA, and only there
LOCK_SECONDS = 900.0  # more than any build takes
ARCHITECTURES = ("7.5", "8.0", "9.0")  # those that nvcc knows, and PTX of the last for anything newer
CXX_FLAGS = ("-O3", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno")
# -fopenmp is left out on purpose: its symbols come from the runtime that torch has loaded, a second one would bring
# its own threads. --as-needed drops torch_python, so that the library also loads where there is no Python. libstdc++
# comes first, because libc10 happens to export pieces of it.
LINK_FLAGS = ("-Wl,--as-needed", "-lstdc++")
STABLE_ABI = (2, 11)  # the oldest torch that loads the library on the stable ABI

# Runs in a process of its own: torch reads PATH and CUDA_HOME at import, and loads what it has built.
_COMPILE = """
import json, sys
from torch.utils import cpp_extension
try:
    cpp_extension.load(**json.loads(sys.argv[1]))
except Exception as error:
    sys.exit(str(error))  # no traceback: the last lines are to be the compiler's
"""

Progress = Callable[[str], None]


class BuildError(Exception):
    """The library cannot be built here. `reason` is short and named; the text adds the compiler's last lines."""

    def __init__(self, reason: str, log: Path | None = None, tail: str = "") -> None:
        super().__init__(reason + (f" (log: {log})" if log else "") + (f"\n{tail}" if tail else ""))
        self.reason, self.log, self.tail = reason, log, tail


@dataclass(frozen=True)
class Toolkit:
    """An nvcc that fits this torch, or the reason why there is none."""

    home: Path | None = None
    version: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Library:
    """A library that can be built: its name, and what it is compiled from and with beside every kernel."""

    name: str
    bindings: tuple[str, ...]  # patterns
    flags: tuple[str, ...] = ()
    module: bool = False  # that Python imports; others are loaded by torch
    any_torch: bool = False  # one build for every torch

    def sources(self, *, with_cuda: bool) -> list[Path]:
        """The files to compile, in a stable order."""
        patterns = ("kernels/*.cpp", *self.bindings, *(["kernels/*.cu"] if with_cuda else []))
        files = {file for pattern in patterns for file in HERE.glob(pattern)}
        return sorted(file for file in files if with_cuda or file.name != "cuda.cpp")

    def inputs(self) -> list[Path]:
        """The files that the result depends on, headers included."""
        folders = {"kernels", "bindings", *(pattern.partition("/")[0] for pattern in self.bindings)}
        return sorted(file for folder in folders for file in (HERE / folder).glob("*.*"))

    def file(self, folder: Path) -> Path:
        """Where it lies in its folder."""
        return folder / f"{self.name}.so"


DEVICES = ("bindings/cpu.cpp", "bindings/cuda.cpp")
OPS = Library("layerbench_ops", ("bindings/*.cpp",))
STABLE = Library(
    "layerbench_stable",
    ("stable/*.cpp", *DEVICES),
    ("-DLAYERBENCH_STABLE", f"-DTORCH_TARGET_VERSION=0x{STABLE_ABI[0]:02x}{STABLE_ABI[1]:02x}{0:012x}"),
    any_torch=True,
)
PYTHON = Library(
    "layerbench_python", ("python/*.cpp", *DEVICES), ("-DLAYERBENCH_NAMESPACE=layerbench_py",), module=True
)
LIBRARIES = (OPS, STABLE, PYTHON)


@dataclass(frozen=True)
class Plan:
    """All that a build depends on, but for the sources."""

    compiler: str  # the command, of several words where it goes through another, as `ccache c++` does
    compiler_version: str
    cuda: Toolkit
    architectures: str  # as TORCH_CUDA_ARCH_LIST has them

    def folder(self, which: Library = OPS) -> Path:
        """Where the result lies: another for whatever else would compile to something else."""
        import torch

        digest = hashlib.sha256()
        torches = () if which.any_torch else (torch.__version__, torch.version.cuda)
        python = sysconfig.get_config_var("SOABI") if which.module else ""
        for part in (self, which, torches, python, platform.machine(), CXX_FLAGS, LINK_FLAGS):
            digest.update(repr(part).encode())
        for file in which.inputs():
            digest.update(file.name.encode() + file.read_bytes())
        return cache() / digest.hexdigest()[:16]


def cache() -> Path:
    """The folder that holds every build: $LAYERBENCH_CACHE, else layerbench in the user's cache folder."""
    if own := os.environ.get("LAYERBENCH_CACHE"):
        return Path(own).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "layerbench"


def library(which: Library = OPS) -> Path | None:
    """The library for these sources, this torch and these compilers; None where it is yet to be built.

    Raises BuildError where it cannot be built.
    """
    path = which.file(plan().folder(which))
    if path.is_file():
        return path
    if not shutil.which("ninja", path=environment_of(plan())["PATH"]):
        raise BuildError("ninja not found")
    return None


def build(progress: Progress | None = None, which: Library = OPS, *, retry: bool = False) -> Path:
    """The library, built first if need be. `progress` is given a short line for every step.

    With `retry` one whose CUDA part did not compile is built again: a full disk is no reason for ever. Raises
    BuildError.
    """
    path = library(which)
    folder = plan().folder(which)
    again = retry and (folder / CUDA_LOG).is_file()
    return (
        path
        if path and not again
        else cached(
            which.file(folder), lambda part, report: _build_into(part, which, plan(), report), progress, again=again
        )
    )


def cached(
    file: Path, make: Callable[[Path, Progress], None], progress: Progress | None = None, *, again: bool = False
) -> Path:
    """`file`, in a folder of the cache that `make` fills if it is not there yet, or `again`. Raises BuildError."""
    report = progress or (lambda line: None)
    if file.is_file() and not again:
        return file
    folder = file.parent
    try:
        with locked(folder, report):
            if again or not file.is_file():
                part = workshop(folder)
                make(part, report)
                shutil.rmtree(folder, ignore_errors=True)  # the last one, or what cleaners of caches left of it
                part.rename(folder)
    except OSError as error:
        reason = (
            f"the cache cannot be written: {error.filename or folder}: {error.strerror} ($LAYERBENCH_CACHE moves it)"
        )
        raise BuildError(reason) from error
    return file


@contextmanager
def locked(folder: Path, report: Progress) -> Iterator[None]:
    """Be the only process that builds into this folder of the cache. Raises BuildError after LOCK_SECONDS."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The system releases this lock when its holder dies, however it dies.
    lock = filelock.FileLock(f"{folder}.lock", timeout=LOCK_SECONDS)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report("waiting for the build of another process")
        try:
            lock.acquire()
        except filelock.Timeout:
            raise BuildError(f"another process has been building for {LOCK_SECONDS:.0f} s") from None
    try:
        yield
    finally:
        lock.release()


def workshop(folder: Path) -> Path:
    """A new folder beside `folder`, under whose lock we are, to build in and to rename to it when all is done.

    A killed build leaves one for the next to remove, and perhaps a compiler that still writes there: so each has a
    folder of its own.
    """
    for left in folder.parent.glob(f"{folder.name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))


def states(which: Library = OPS) -> dict[str, str]:
    """For "cpu" and "cuda": `built`, `not built yet`, or the named reason why it cannot be. Builds nothing."""
    try:
        path = library(which)
    except BuildError as error:
        return {"cpu": error.reason, "cuda": error.reason}
    state = "built" if path else "not built yet"
    return {"cpu": state, "cuda": cuda_reason(which) or state}


def cuda_reason(which: Library = OPS) -> str | None:
    """Why the library has no CUDA part; None where it has one, or will have."""
    log = plan().folder(which) / CUDA_LOG
    return f"the CUDA part does not compile, see {log}" if log.is_file() else plan().cuda.reason or None


@functools.cache
def plan() -> Plan:
    """What would be built here. Raises BuildError: no C++ compiler."""
    command, cuda = compiler(), _toolkit()
    version = _output([*command, "--version"]).partition("\n")[0]
    return Plan(shlex.join(command), version, cuda, _architectures(cuda))


def compiler() -> list[str]:
    """The words of the command that compiles C++: torch's own choice. Raises BuildError where there is none."""
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or not shutil.which(command[0]):
        raise BuildError("no C++ compiler")
    return command


def _toolkit() -> Toolkit:
    import torch

    wanted = torch.version.cuda
    if not wanted:
        return Toolkit(reason="CPU-only torch")
    major, found = wanted.partition(".")[0], ""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), CUDA_PLACES / "cuda"]
    commands = [*(shutil.which(f"{home}/bin/nvcc") for home in homes if home), shutil.which("nvcc")]
    others = sorted(CUDA_PLACES.glob(f"cuda-{major}*/bin/nvcc"), reverse=True)
    for command in filter(None, [*commands, *map(str, others)]):
        version = re.search(r"release ((\d+)\.\d+)", _output([command, "--version"]))
        if version and version[2] == major:
            return Toolkit(_home_of(command), version[1])
        found = found or (version[2] if version else "")
    return Toolkit(reason=f"nvcc {found} but torch uses CUDA {major}" if found else f"no nvcc for CUDA {major}")


def _home_of(nvcc: str) -> Path:
    # The nvcc on PATH may be a link or a script: only nvcc itself knows where it lives.
    top = re.search(r"^#\$ TOP=(.+)$", _output([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull]), re.MULTILINE)
    return Path(top[1] if top else Path(nvcc).resolve().parents[1]).resolve()


def _architectures(cuda: Toolkit) -> str:
    """Not those of the GPU at hand: a login node and its GPU nodes share one build."""
    if not cuda.home:
        return ""
    if own := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return own
    known = _output([str(cuda.home / "bin" / "nvcc"), "--list-gpu-arch"]).split()
    return ";".join(arch for arch in ARCHITECTURES if f"compute_{arch.replace('.', '')}" in known) + "+PTX"


def _output(command: list[str]) -> str:
    try:
        # What is said in the user's language would make a build of each language.
        plain = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=plain)  # noqa: S603
    except OSError:
        return ""
    return done.stdout + done.stderr


def environment_of(this: Plan) -> dict[str, str]:
    """The variables to build with."""
    environment = dict(os.environ)
    # Where the ninja package puts its command: not on PATH as long as a venv is not activated.
    places = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    environment["PATH"] = os.pathsep.join([*places, environment.get("PATH", "")])
    if this.cuda.home:
        environment |= {"CUDA_HOME": str(this.cuda.home), "TORCH_CUDA_ARCH_LIST": this.architectures}
    return environment


def _build_into(part: Path, which: Library, this: Plan, report: Progress) -> None:
    try:
        _compile(part, which, this, report)
    except BuildError:
        if not this.cuda.home:
            raise
        report("the CUDA part does not compile; building without it")
        (part / "build.log").rename(part / CUDA_LOG)
        _compile(part, which, replace(this, cuda=Toolkit()), report)


def _compile(part: Path, which: Library, this: Plan, report: Progress) -> None:
    with_cuda = this.cuda.home is not None
    sources = which.sources(with_cuda=with_cuda)
    arguments = {
        "name": which.name,
        "sources": list(map(str, sources)),
        "extra_cflags": [*CXX_FLAGS, *which.flags, *(["-DWITH_CUDA"] if with_cuda else [])],
        "extra_ldflags": list(LINK_FLAGS),
        "build_directory": str(part),
        "with_cuda": with_cuda,
        "is_python_module": which.module,
        "verbose": True,
    }
    report(f"compiling {len(sources)} files of {which.name} with {this.compiler_version}")
    run_logged(
        [sys.executable, "-c", _COMPILE, json.dumps(arguments)], part / "build.log", environment_of(this), report
    )


def run_logged(command: list[str], log: Path, environment: dict[str, str], report: Progress) -> None:
    """Run a command that builds with ninja; what it says goes to `log`, each file that it compiled to `report`.

    Raises BuildError with its last lines.
    """
    tail = deque[str](maxlen=20)
    child = subprocess.Popen(  # noqa: S603
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    with child, log.open("a", encoding="utf-8") as file:
        assert child.stdout is not None  # asked for
        for line in child.stdout:
            file.write(line)
            if not line.startswith("frame #"):  # of a C++ stack, below the message
                tail.append(line)
            if step := re.match(r"\[(\d+/\d+)\].* (?:-c|Building \w+ object) .*?([^/ ]+\.(?:cpp|cu))", line):
                report(f"compiled {step[1]} {step[2]}")
    if child.returncode != 0:
        raise BuildError("the compiler failed", log, "".join(tail).strip())
