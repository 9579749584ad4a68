"""What timings depend on: hardware, limits, versions, variables and the commit, as plain JSON.

Nothing here raises. A fact that cannot be read is None; a section that cannot be read says why in "reason".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.machine.facts import cpu, cpus, fact, gpu, memory, read
from bench.machine.nvml import SLOWDOWNS

__all__ = ["cpus", "describe", "output"]

THREADS = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ONEDNN_", "DNNL_", "LD_PRELOAD", "MALLOC_", "GLIBC_TUNABLES")
TORCH = ("ATEN_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_")
CUDA = ("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_OVERRIDE")
# Where things lie changes no timing, and baselines are committed: other people's folders stay out of them.
FOLDERS = ("_HOME", "_PATH", "_DIR", "_ROOT")


def describe() -> dict[str, Any]:
    """Every fact about this machine and process, strict JSON; "fingerprint" is equal where timings are comparable.

    Imports torch: call it in a worker. Takes tens of milliseconds besides that import.
    """
    sections: dict[str, Callable[[], Any]] = {
        "cpu": cpu,
        "memory": memory,
        "gpu": gpu,
        "software": _software,
        "torch": _torch,
        "variables": _variables,
        "git": _git,
        "native": _native,
    }
    facts = {name: _plain(_section(reader)) for name, reader in sections.items()}
    return {"fingerprint": _fingerprint(facts), "notes": _notes(facts), **facts}


def _notes(facts: Mapping[str, Any]) -> list[str]:
    """What of this machine makes timings worse or unlike those of others, a sentence each."""
    chip, flags = facts["cpu"], facts["torch"]
    notes = []
    if chip.get("governor") not in (None, "performance"):
        notes.append(f"the CPU's governor is {chip['governor']}, not performance: its clock follows the load")
    if (flags.get("threads") or 0) > chip.get("usable", math.inf):
        notes.append(f"torch starts {flags['threads']} threads where {chip['usable']} CPUs may be used")
    if not (facts["memory"].get("malloc") or "libc").startswith("libc"):
        notes.append(f"memory comes from {facts['memory']['malloc']}, not from glibc: its malloc settings do nothing")
    for number, device in enumerate(facts["gpu"].get("devices") or []):
        limit, default = device.get("power_limit"), device.get("power_limit_default")
        if limit and default and limit < default:
            notes.append(f"GPU {number} may draw {limit:.0f} W of its usual {default:.0f} W")
        if slow := [word for word in device.get("throttle_reasons") or () if word in SLOWDOWNS]:
            notes.append(f"GPU {number} is slowed down: {', '.join(slow)}")
        if device.get("persistence") is False:
            notes.append(f"persistence mode of GPU {number} is off: its driver may unload between runs")
    return notes


def _fingerprint(facts: Mapping[str, Any]) -> str:
    """Short text that names machine and software, and a hash over that and the details too long to show."""
    chip, software, devices = facts["cpu"], facts["software"], facts["gpu"].get("devices") or []
    names = [device.get("name") for device in devices]
    parts = [
        f"{chip.get('model')}, {chip.get('usable')} of {chip.get('logical')} CPUs",
        ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU",
        f"torch {software.get('torch')}" + (f", CUDA {software['cuda']}" if software.get("cuda") else ""),
        f"Python {'.'.join(str(software.get('python')).split('.')[:2])}",
        f"{software.get('os')} {software.get('machine')}",
    ]
    # Virtual machines call very different processors by one name; MIG slices of a card share its name.
    details = [chip.get("stepping"), chip.get("flags"), chip.get("quota"), [device.get("memory") for device in devices]]
    digest = hashlib.sha256(json.dumps([parts, details]).encode()).hexdigest()[:8]
    return "; ".join([*parts, f"#{digest}"])


def _software() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "numpy": fact(lambda: metadata.version("numpy")),
        "glibc": " ".join(platform.libc_ver()).strip() or None,
        "compiler": fact(_compiler),
        "os": fact(lambda: _os_release()["PRETTY_NAME"]) or platform.system(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
    }
    try:
        import torch
    except Exception as error:  # a broken installation raises whatever its libraries raise
        return facts | {"torch": None, "reason": f"torch does not import: {error}"}
    return facts | {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": fact(torch.backends.cudnn.version),
        "cpu_capability": fact(torch.backends.cpu.get_cpu_capability),
    }


def _torch() -> dict[str, Any]:
    """Torch's threads and switches as they are now: cases set theirs from the suite afterwards."""
    import torch

    backends = torch.backends
    readers: dict[str, Callable[[], Any]] = {
        "threads": torch.get_num_threads,
        "interop_threads": torch.get_num_interop_threads,
        "matmul_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision,
        "matmul_fp16_reduction": lambda: backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "matmul_bf16_reduction": lambda: backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn": lambda: backends.cudnn.enabled,
        "cudnn_tf32": lambda: backends.cudnn.allow_tf32,
        "cudnn_benchmark": lambda: backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: backends.cudnn.deterministic,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "mkldnn": lambda: backends.mkldnn.enabled,
        "flushes_denormals": lambda: bool((torch.full((1,), 1e-39) * 1.0).item() == 0),
    }
    return {name: fact(reader) for name, reader in readers.items()}


def _os_release() -> dict[str, str]:
    lines = (line.partition("=") for line in read("etc/os-release").splitlines())
    return {key: value.strip("\"'") for key, _, value in lines}


def _compiler() -> str | None:
    command = shutil.which(os.environ.get("CXX") or "g++")
    return output(command, "--version").splitlines()[0] if command else None


def _variables() -> dict[str, str]:
    chosen = {name: value for name, value in os.environ.items() if name.startswith((*THREADS, *TORCH, *CUDA))}
    return {name: chosen[name] for name in sorted(chosen) if not name.endswith(FOLDERS)}


def _git() -> dict[str, Any] | None:
    """Commit of the repository in which a run is started, with the layers that it measures, else of this code's, and
    whether anything there differs from it; None outside git.

    Untracked code is not of the repository it lies in: think of a virtual environment inside someone's checkout.
    """
    here, current = Path(__file__).resolve(), Path.cwd()
    ours = here.parents[2]
    if not current.is_relative_to(ours) and (found := _commit(current)):
        return found
    if fact(lambda: _ask_git(ours, "ls-files", "--error-unmatch", str(here))) is None:
        return None
    return _commit(ours, "bench", "layers", "ext")


def _commit(folder: Path, *parts: str) -> dict[str, Any] | None:
    commit = fact(lambda: _ask_git(folder, "rev-parse", "--verify", "HEAD"))
    changes = fact(lambda: _ask_git(folder, "status", "--porcelain", "--", *parts))
    return {"commit": commit, "dirty": None if changes is None else bool(changes)} if commit else None


def _ask_git(folder: Path, *words: str) -> str:
    # A checkout owned by somebody else is common in containers, and its code runs already.
    return output("git", "-c", "safe.directory=*", "-C", str(folder), *words)


def _native() -> Any:
    from ext import build

    return build.states()


def _section(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {error}"}  # as text: facts are written down, never handled


def output(*command: str, timeout: float = 20) -> str:
    """What a command prints. Raises OSError or SubprocessError when it cannot run, fails or hangs."""
    # A git hook's GIT_DIR would answer for another repository; messages come in English.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"LC_ALL": "C"}
    done = subprocess.run(  # noqa: S603 - git and the compiler, found on PATH as anybody's shell would
        command, capture_output=True, check=True, env=env, timeout=timeout, stdin=subprocess.DEVNULL
    )
    return done.stdout.decode(errors="replace").strip()


def _plain(value: Any) -> Any:
    """`value` as strict JSON: no NaN, no lone surrogates (undecodable bytes in variables), no types of others."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value).encode(errors="replace").decode()
