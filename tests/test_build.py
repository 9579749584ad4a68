"""The build of the native library: found, cached, guarded, and every reason against it by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from ext import build

KERNELS = build.HERE / "kernels"


@pytest.fixture(autouse=True)
def _fresh_plan() -> Iterator[None]:
    build.plan.cache_clear()
    yield
    build.plan.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("LAYERBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[build.Plan]:
    """The plans compiled, in a moment each."""
    done: list[build.Plan] = []

    def compile_(part: Path, which: build.Library, this: build.Plan, report: build.Progress) -> None:
        which.file(part).write_bytes(b"library")
        done.append(this)

    monkeypatch.setattr(build, "_compile", compile_)
    return done


def tool(folder: Path, name: str, prints: str) -> None:
    """A command that prints one line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{prints}'\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch for CUDA 13, and a PATH without any nvcc: the folder to put one into."""
    places = tmp_path / "bin"
    tool(places, "c++", "c++ 12")
    monkeypatch.setenv("PATH", str(places))
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(build, "CUDA_PLACES", tmp_path / "local")
    return places


def test_what_is_built_is_found_again_and_not_built_twice(cache: Path, quick: list[build.Plan]) -> None:
    assert build.library() is None
    assert build.states()["cpu"] == "not built yet"
    path = build.build()
    assert path.parent.parent == cache
    assert build.build() == build.library() == path
    assert build.states()["cpu"] == "built"
    assert len(quick) == 1


def test_a_changed_source_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.plan().folder()
    for part in ("kernels", "bindings"):
        shutil.copytree(build.HERE / part, tmp_path / part)
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.plan().folder() == before
    (tmp_path / "kernels" / "shift.cpp").write_text("// another\n", encoding="utf-8")
    assert build.plan().folder() != before


def test_another_torch_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.plan().folder()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert build.plan().folder() != before


def test_no_compiler_is_a_build_error_that_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError) as caught:
        build.build()
    assert caught.value.reason == "no C++ compiler"
    assert build.states() == {"cpu": "no C++ compiler", "cuda": "no C++ compiler"}


def test_no_ninja_is_a_build_error_that_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "environment_of", lambda this: {"PATH": ""})
    with pytest.raises(build.BuildError, match="ninja not found"):
        build.build()


def test_ninja_is_found_without_the_environment_being_activated(cache: Path, no_nvcc: Path) -> None:
    assert shutil.which("ninja") is None
    assert build.library() is None


@pytest.mark.parametrize(
    ("nvcc", "reason"),
    [
        (None, "no nvcc for CUDA 13"),
        ("Cuda compilation tools, release 12.4, V12.4.131", "nvcc 12 but torch uses CUDA 13"),
    ],
)
def test_a_missing_or_unfit_nvcc_has_a_name_and_the_cpu_part_is_built(
    cache: Path, quick: list[build.Plan], no_nvcc: Path, nvcc: str | None, reason: str
) -> None:
    if nvcc:
        tool(no_nvcc, "nvcc", nvcc)
    assert build.build().is_file()
    assert build.states() == {"cpu": "built", "cuda": reason}
    assert build.cuda_reason() == reason
    assert quick[0].cuda.home is None


def test_a_fitting_nvcc_is_preferred_over_an_unfit_one_before_it(no_nvcc: Path, tmp_path: Path) -> None:
    tool(no_nvcc, "nvcc", "release 12.4, ")
    tool(tmp_path / "local" / "cuda-13.0" / "bin", "nvcc", "release 13.0, compute_80 compute_90")
    plan = build.plan()
    assert plan.cuda == build.Toolkit((tmp_path / "local" / "cuda-13.0").resolve(), "13.0")


@pytest.mark.parametrize("which", build.LIBRARIES, ids=lambda which: which.name)
def test_cuda_files_are_compiled_only_with_cuda(which: build.Library) -> None:
    with_cuda, without = ({file.name for file in which.sources(with_cuda=cuda)} for cuda in (True, False))
    assert {"cuda.cpp", "vecadd.cu"} < with_cuda
    assert without == {name for name in with_cuda if name != "cuda.cpp" and not name.endswith(".cu")}


def test_every_library_has_a_folder_of_its_own_and_only_its_own_sources_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(build.HERE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(build, "HERE", tmp_path)
    before = {which: build.plan().folder(which) for which in build.LIBRARIES}
    assert len(set(before.values())) == len(before)
    (tmp_path / "stable" / "library.cpp").write_text("// another\n", encoding="utf-8")
    after = {which for which, folder in before.items() if build.plan().folder(which) != folder}
    assert after == {build.STABLE}


def test_the_library_on_the_stable_abi_is_the_same_for_every_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.plan().folder(build.STABLE)
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert build.plan().folder(build.STABLE) == before


def test_a_torch_without_cuda_says_so(no_nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert build.cuda_reason() == "CPU-only torch"


def test_a_cuda_part_that_does_not_compile_leaves_the_cpu_part_and_a_log(
    cache: Path, no_nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(no_nvcc, "nvcc", "release 13.0, compute_90")

    def compile_(part: Path, which: build.Library, this: build.Plan, report: build.Progress) -> None:
        (part / "build.log").write_text("unsupported GNU version", encoding="utf-8")
        if this.cuda.home:
            raise build.BuildError("the compiler failed")
        which.file(part).touch()

    monkeypatch.setattr(build, "_compile", compile_)
    lines: list[str] = []
    folder = build.build(lines.append).parent
    log = folder / "cuda-build.log"
    assert log.read_text(encoding="utf-8") == "unsupported GNU version"
    assert build.states() == {"cpu": "built", "cuda": f"the CUDA part does not compile, see {log}"}
    assert lines == ["the CUDA part does not compile; building without it"]
    assert build.states(build.STABLE)["cuda"] == "not built yet"


def test_a_failed_compilation_tells_the_compilers_last_words_and_where_the_rest_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("kernels", "bindings"):
        (tmp_path / part).mkdir()
    (tmp_path / "kernels" / "broken.cpp").write_text("#error this is broken\n", encoding="utf-8")
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(build.BuildError, match="this is broken") as caught:
        build.build()
    assert caught.value.reason == "the compiler failed"
    assert caught.value.log is not None
    assert "this is broken" in caught.value.log.read_text(encoding="utf-8")
    assert "Traceback" not in str(caught.value)
    assert build.library() is None


BUILD_ONCE = """
import sys, time
from pathlib import Path
from ext import build

def slow(part, which, this, report):
    with open(sys.argv[1], "a") as count:
        count.write("x")
    time.sleep(0.5)
    which.file(part).touch()

build._compile = slow
print(build.build())
"""


def test_two_builds_at_once_beside_what_a_killed_one_left_are_one_build(cache: Path, tmp_path: Path) -> None:
    folder = build.plan().folder()
    folder.parent.mkdir(parents=True)
    Path(f"{folder}.lock").touch()
    left = folder.parent / f"{folder.name}.killed.part"
    left.mkdir()
    (left / "lock").touch()  # torch's own
    count = tmp_path / "count"
    command = [sys.executable, "-c", BUILD_ONCE, str(count)]
    environment = dict(os.environ, PYTHONPATH=str(build.HERE.parent))
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [child.communicate(timeout=60)[0].strip() for child in children]
    assert answers == [str(build.OPS.file(folder))] * 2
    assert count.read_text(encoding="utf-8") == "x"
    assert not left.exists()


def test_a_build_that_never_ends_elsewhere_is_given_up_with_a_reason(
    cache: Path, quick: list[build.Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LOCK_SECONDS", 0.1)
    folder = build.plan().folder()
    folder.parent.mkdir(parents=True)
    lines: list[str] = []
    with FileLock(f"{folder}.lock"), pytest.raises(build.BuildError, match="another process has been"):
        build.build(lines.append)
    assert lines == ["waiting for the build of another process"]
    assert not quick


def test_a_cuda_part_that_did_not_compile_is_tried_again_when_asked_for(
    cache: Path, quick: list[build.Plan], no_nvcc: Path
) -> None:
    tool(no_nvcc, "nvcc", "release 13.0, compute_90")
    folder = build.build().parent
    (folder / build.CUDA_LOG).touch()  # as after a full disk
    assert build.build().parent == build.build(retry=False).parent == folder
    assert len(quick) == 1
    build.build(retry=True)
    assert len(quick) == 2
    assert build.cuda_reason() is None


def test_what_a_cleaner_of_caches_took_is_built_again(cache: Path, quick: list[build.Plan]) -> None:
    path = build.build()
    (path.parent / "build.ninja").touch()
    path.unlink()
    assert build.build() == path
    assert path.is_file()


def test_a_cache_that_cannot_be_written_is_a_build_error_that_names_it(
    quick: list[build.Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAYERBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(build.BuildError, match=r"the cache cannot be written: .*file.*LAYERBENCH_CACHE"):
        build.build()


def test_a_module_of_python_is_another_one_for_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {which: build.plan().folder(which) for which in build.LIBRARIES}
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "cpython-399")
    changed = {which.name for which in build.LIBRARIES if build.plan().folder(which) != before[which]}
    assert changed == {build.PYTHON.name}


def test_a_compiler_may_be_called_through_another_command(no_nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(no_nvcc, "ccache", "through ccache")
    monkeypatch.setenv("CXX", "ccache c++")
    assert build.plan().compiler_version == "through ccache"
    monkeypatch.setenv("CXX", "nothing c++")
    build.plan.cache_clear()
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.plan()


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("architecture", [build.ARCHITECTURES[0], build.ARCHITECTURES[-1]])
@pytest.mark.parametrize("file", sorted(KERNELS.glob("*.cu")), ids=lambda file: file.name)
def test_nvcc_alone_compiles_every_cuda_kernel_for_the_oldest_and_the_newest_gpu(
    file: Path, architecture: str, tmp_path: Path
) -> None:
    name = architecture.replace(".", "")
    quick = ["-Xcicc", "-O1", "-Xptxas", "-O0"]  # nobody runs it
    command = ["nvcc", "-c", f"-arch=sm_{name}", "-Werror", "all-warnings", *quick, str(file)]
    done = subprocess.run([*command, "-o", str(tmp_path / "kernel.o")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted(KERNELS.iterdir()), ids=lambda file: file.name)
def test_kernels_include_nothing_of_torch(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert not any(f"#include <{name}/" in source for name in ("torch", "ATen", "c10"))
