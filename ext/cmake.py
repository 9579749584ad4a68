"""Builds what ext/CMakeLists.txt describes: the program that runs saved modules, and the operator library as others
would build it. Cached, locked and refused with named reasons as ext/build.py does it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from ext import build

RUNNER, LIBRARY = "runner", "layerbench_ops"  # the targets
FILES = {RUNNER: "runner", LIBRARY: "layerbench_ops.so"}  # what each makes


def built(target: str) -> Path | None:
    """What the target makes, from these sources for this torch; None where it is yet to be built.

    Raises BuildError where it cannot be built: no CMake, no ninja, no compiler.
    """
    plan = build.plan()
    file = _folder(plan, target) / FILES[target]
    if file.is_file():
        return file
    for tool in ("cmake", "ninja"):
        if not _found(tool, plan):
            raise build.BuildError(f"{tool} not found")
    if plan.cuda.reason and plan.cuda.reason != "CPU-only torch":
        raise build.BuildError(f"CMake cannot use a CUDA torch without its compiler: {plan.cuda.reason}")
    return None


def make(target: str, progress: build.Progress | None = None) -> Path:
    """What the target makes, built first if need be. Raises BuildError."""
    plan = build.plan()

    def make_in(part: Path, report: build.Progress) -> None:
        report(f"building {FILES[target]} with CMake")
        _run(_configure(plan, part), part, plan, report)
        _run([_found("cmake", plan), "--build", str(part), "--target", target], part, plan, report)

    return built(target) or build.cached(_folder(plan, target) / FILES[target], make_in, progress)


def _configure(plan: build.Plan, part: Path) -> list[str]:
    import torch

    command = [_found("cmake", plan), "-S", str(build.HERE), "-B", str(part), "-G", "Ninja"]
    command += [
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
        f"-DCMAKE_CXX_COMPILER={';'.join(build.compiler())}",
    ]
    if plan.cuda.home:
        command += [f"-DCUDA_TOOLKIT_ROOT_DIR={plan.cuda.home}", f"-DCMAKE_CUDA_COMPILER={plan.cuda.home}/bin/nvcc"]
    return command


def _run(command: list[str], part: Path, plan: build.Plan, report: build.Progress) -> None:
    build.run_logged(command, part / "build.log", build.environment_of(plan), report)


def _found(tool: str, plan: build.Plan) -> str:
    return shutil.which(tool, path=build.environment_of(plan)["PATH"]) or ""


def _folder(plan: build.Plan, target: str) -> Path:
    import torch

    # The program is none of the kernels' business: changing them does not build it anew.
    depends = plan.folder().name if target == LIBRARY else f"{plan} {torch.__version__}"
    # What CMake links finds torch's libraries at this path and no other.
    digest = hashlib.sha256(f"{target} {depends} {torch.__file__}".encode())
    for file in sorted([build.HERE / "CMakeLists.txt", *(build.HERE / "runner").glob("*.*")]):
        digest.update(file.name.encode() + file.read_bytes())
    return build.cache() / digest.hexdigest()[:16]
