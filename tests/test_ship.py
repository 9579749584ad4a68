"""What leaves this process: saved modules in a fresh Python and in C++, the CMake build, and the C++ program itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

import layers
from bench import cli
from bench.model import Status, load_run
from ext import build, cmake, ops
from layers import shipping, variants
from layers.program import Program, State
from layers.variants import Made

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")


def make(layer: str, variant: str, **params: Any) -> Made:
    return variants.make(layers.load(layer), variant, params, dtype=torch.float32, device="cpu", seed=0)


@pytest.fixture(scope="session")
def runner() -> Path:
    return cmake.make(cmake.RUNNER)


@pytest.fixture(scope="session")
def library() -> Path:
    return cmake.make(cmake.LIBRARY)


@pytest.fixture
def conv(tmp_path: Path) -> Made:
    """The scripted convolution, with model.pt, inputs.pt and expected.pt in tmp_path."""
    made = make("unfold_conv2d", "script", size=16, in_channels=2, out_channels=3)
    return saved(made, made.call, tmp_path)


@pytest.fixture
def operator(tmp_path: Path) -> Made:
    """The shift on its native operator, likewise."""
    made = make("shift", "custom_op", rows=3, length=50)
    return saved(made, torch.jit.script(made.module), tmp_path)


def saved(made: Made, module: Any, folder: Path) -> Made:
    module.save(str(folder / "model.pt"))
    torch.save(list(made.inputs), folder / "inputs.pt")
    torch.save(made.call(*made.inputs).detach(), folder / "expected.pt")
    return made


def run(runner: Path, folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [runner, "--seconds", "0", "--threads", "1", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=120)


def fresh_python(code: str, folder: Path, *arguments: str | Path) -> None:
    """In a process that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-W", "ignore", "-c", f"import sys, torch\n{code}", *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120)


def crc32(tensor: Tensor) -> str:
    return f"{zlib.crc32(tensor.detach().contiguous().numpy().tobytes()):08x}"


# --- a saved module in a fresh Python ---


@pytest.mark.parametrize("layer", layers.BUILTIN)
def test_a_saved_scripted_layer_gives_the_same_output_in_a_fresh_process(layer: str, tmp_path: Path) -> None:
    made = make(layer, "script")
    saved(made, made.call, tmp_path)
    fresh_python("torch.save(torch.jit.load('model.pt')(*torch.load('inputs.pt')), 'out.pt')", tmp_path)
    assert torch.equal(torch.load(tmp_path / "out.pt"), made.call(*made.inputs))


# --- the build ---

WRONG_SCALARS = """
#include <torch/library.h>
at::Tensor whole(const at::Tensor& x, int k) { return x; }
at::Tensor real(const at::Tensor& x, float k) { return x; }
TORCH_LIBRARY(wrong, m) { m.def("whole", whole); m.def("real", real); }
"""


def test_an_int_or_a_float_as_an_operators_argument_is_a_clear_error_at_build(tmp_path: Path) -> None:
    (tmp_path / "wrong.cpp").write_text(WRONG_SCALARS, encoding="utf-8")
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    command = [build.plan().compiler, "-std=c++20", "-fsyntax-only", *includes, str(tmp_path / "wrong.cpp")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | {"LC_ALL": "C"})
    assert done.returncode != 0
    assert "int64_t and bool are supported as an integral argument type" in done.stderr
    assert re.search(r"float.* use double instead", done.stderr)


CALL_ALL = """
torch.ops.load_library(sys.argv[1])
x, weight, bias = (t.requires_grad_() for t in torch.load("in.pt"))
y = torch.ops.layerbench.unfold_conv2d(x, weight, bias, [3, 3], [1, 1], [1, 1], [1, 1])
out = torch.ops.layerbench.vecadd(torch.ops.layerbench.shift(y, 2), y)
out.square().sum().backward()
torch.save([out.detach(), x.grad, weight.grad, bias.grad], sys.argv[2])
"""


def test_the_library_that_cmake_builds_gives_the_same_numbers_as_ours(library: Path, tmp_path: Path) -> None:
    torch.save([torch.randn(2, 3, 8, 8), torch.randn(4, 3, 9), torch.randn(4)], tmp_path / "in.pt")
    fresh_python(CALL_ALL, tmp_path, library, "cmake.pt")
    fresh_python(CALL_ALL, tmp_path, build.build(), "ours.pt")
    for theirs, ours in zip(torch.load(tmp_path / "cmake.pt"), torch.load(tmp_path / "ours.pt"), strict=True):
        torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize("made_by", ["cmake", "ours"])
def test_the_library_needs_neither_python_nor_an_openmp_runtime_of_its_own(library: Path, made_by: str) -> None:
    file = library if made_by == "cmake" else build.build()
    listed = subprocess.run(["readelf", "-d", file], capture_output=True, encoding="utf-8", check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", listed)
    assert any(name.startswith("libtorch_cpu") for name in needed)
    assert not [name for name in needed if "python" in name or "omp" in name]


def test_cmake_compiles_for_the_architectures_that_we_compile_for() -> None:
    text = (build.HERE / "CMakeLists.txt").read_text(encoding="utf-8")
    assert f'set(TORCH_CUDA_ARCH_LIST "{";".join(build.ARCHITECTURES)}+PTX")' in text


@pytest.mark.parametrize("tool", ["cmake", "ninja"])
def test_a_missing_build_tool_is_a_build_error_that_names_it(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == tool else f"/bin/{name}")
    with pytest.raises(build.BuildError, match=f"^{tool} not found$"):
        cmake.make(cmake.RUNNER)
    with pytest.raises(layers.Unavailable, match=f"the C\\+\\+ program cannot be built: {tool} not found"):
        make("shift", "script_cpp", length=8)


# --- the program ---


def test_the_program_gives_pythons_numbers_and_a_time_with_its_interval(
    runner: Path, conv: Made, tmp_path: Path
) -> None:
    done = run(runner, tmp_path, "model.pt", "--inputs", "inputs.pt", "--expect", "expected.pt", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    expected = conv.call(*conv.inputs).detach()
    assert answer["as_expected"] is True
    assert answer["error"] < 1e-6
    assert answer["output"]["shape"] == list(expected.shape)
    assert answer["output"]["dtype"] == "float32"
    assert answer["output"]["sum"] == pytest.approx(expected.double().sum().item(), rel=1e-5)
    assert answer["torch"] == torch.__version__.partition("+")[0]
    low, high = answer["seconds"]["interval"]
    assert 0 < low <= answer["seconds"]["median"] <= high < 1


def test_without_the_operators_library_it_names_the_operator_and_the_flag_and_with_it_the_numbers_are_pythons(
    runner: Path, library: Path, operator: Made, tmp_path: Path
) -> None:
    arguments = ["model.pt", "--inputs", "inputs.pt", "--expect", "expected.pt", "--tolerance", "0"]
    alone = run(runner, tmp_path, *arguments)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == (
        "runner: model.pt needs the operator layerbench::shift, which is not registered: "
        "name the library that defines it with --library PATH\n"
    )
    done = run(runner, tmp_path, *arguments, "--library", library)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"]["crc32"] == crc32(operator.call(*operator.inputs))


@pytest.mark.parametrize("name", ["conv", "operator"])
def test_a_loaded_module_trains_in_cpp_with_pythons_gradients(
    runner: Path, library: Path, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made: Made = request.getfixturevalue(name)
    options = ["--inputs", "inputs.pt", "--backward", "--out", "out.pt"]
    done = run(runner, tmp_path, "model.pt", *options, "--library", library)
    assert done.returncode == 0, done.stderr
    inputs = [x.requires_grad_() for x in made.inputs]
    made.call(*inputs).mean().backward()
    expected = {f"input {i}": x.grad for i, x in enumerate(inputs)}
    expected |= {key: parameter.grad for key, parameter in made.module.named_parameters()}
    got = torch.load(tmp_path / "out.pt", weights_only=False)["gradients"]
    assert got.keys() == expected.keys() == json.loads(done.stdout)["gradients"].keys()
    for key, gradient in got.items():
        torch.testing.assert_close(gradient, expected[key])


def test_an_aotinductor_package_runs_in_cpp_with_pythons_numbers_once_it_has_its_operators(
    runner: Path, library: Path, operator: Made, tmp_path: Path
) -> None:
    shipping.package(operator.module, operator.inputs, tmp_path / "model.pt2")
    arguments = ["model.pt2", "--inputs", "inputs.pt", "--expect", "expected.pt", "--tolerance", "0"]
    alone = run(runner, tmp_path, *arguments)
    assert alone.returncode == 2
    assert "model.pt2 needs the operator layerbench::shift, which is not registered" in alone.stderr
    done = run(runner, tmp_path, *arguments, "--library", library)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "AOTInductor"
    wrong = run(runner, tmp_path, "model.pt2", "--shape", "4x50", "--library", library)
    assert wrong.returncode == 3
    assert "unmatched dim value at 0, expected: 3, but got: 4" in wrong.stderr
    backward = run(runner, tmp_path, *arguments, "--library", library, "--backward")
    assert backward.returncode == 2
    assert "inference is all it can do" in backward.stderr


@pytest.mark.parametrize("layer", [name for name in layers.BUILTIN if "native" in layers.load(name).versions])
def test_what_torch_itself_has_for_a_layer_is_saved_and_gives_pythons_numbers_in_cpp(
    runner: Path, tmp_path: Path, layer: str
) -> None:
    made = make(layer, "native")
    saved(made, torch.jit.script(made.module), tmp_path)
    done = run(runner, tmp_path, "model.pt", "--inputs", "inputs.pt", "--expect", "expected.pt")
    assert done.returncode == 0, done.stderr


def test_random_input_is_the_same_for_the_same_seed(runner: Path, conv: Made, tmp_path: Path) -> None:
    def sum_of(*options: str) -> float:
        done = run(runner, tmp_path, "model.pt", "--shape", "1x2x16x16", *options)
        return float(json.loads(done.stdout)["output"]["sum"])

    assert sum_of() == sum_of("--seed", "0")
    assert sum_of() != sum_of("--seed", "1")


class Long(torch.nn.Module):
    """Says more than a recursion over its characters would survive."""

    def __init__(self) -> None:
        super().__init__()
        self.message = "o" * 40_000

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() > 0:
            raise RuntimeError(self.message)
        return x


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no model; --help shows the usage"),
        (["model.pt", "--sead", "1"], 2, "no option --sead; --help lists them"),
        (["model.pt", "--seed"], 2, "--seed needs a value"),
        (["model.pt", "--threads", "two"], 2, "--threads two: a whole number from 1 to 4096"),
        (["model.pt", "--threads", "5000000000"], 2, "--threads 5000000000: a whole number from 1 to 4096"),
        (["model.pt", "--tolerance", "-1"], 2, "--tolerance -1: a number of at least 0"),
        (["model.pt", "--device", "gpu"], 2, "--device gpu: cpu, cuda or cuda:N"),
        (["model.pt", "--device", "meta"], 2, "--device meta: cpu, cuda or cuda:N"),
        (["model.pt", "--shape", "99999999999x99999999999"], 2, "--shape 99999999999x99999999999: "),
        (["model.pt", "--inputs", "inputs.pt", "--expect", "none.pt"], 2, "none.pt holds no tensor"),
        (["long.pt", "--shape", "3"], 3, "the model failed: ooooo"),
        (["model.pt", "--shape", "1x2y3"], 2, "--shape 1x2y3: sizes with x between them, for example 1x3x64x64"),
        (["model.pt"], 2, "no input: --inputs FILE, or --shape 1x3x64x64 for each"),
        (["nowhere.pt", "--shape", "1"], 2, "nowhere.pt cannot be read"),
        (["inputs.pt", "--shape", "1"], 2, "inputs.pt cannot be loaded: "),
        (["model.pt", "--library", "nowhere.so", "--shape", "1"], 2, "library nowhere.so cannot be read"),
        (["model.pt", "--inputs", "model.pt"], 2, "model.pt "),
        (
            ["model.pt", "--shape", "1x7x16x16"],
            3,
            "the model failed: shape '[1, 2, 9, 196]' is invalid for input of size",
        ),
        (["branch.pt", "--shape", "3", "--shape", "4"], 3, "the model failed: vecadd needs two tensors of one shape"),
        (["model.pt", "--inputs", "inputs.pt", "--expect", "inputs.pt"], 1, "the output is "),
        (
            ["model.pt", "--shape", "1x2x16x16", "--seed", "1", "--expect", "expected.pt"],
            1,
            "the output is not the expected one",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_exit_code(
    runner: Path, conv: Made, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    make("vecadd", "script").call.save(str(tmp_path / "branch.pt"))  # type: ignore[attr-defined]
    torch.jit.script(Long()).save(str(tmp_path / "long.pt"))
    torch.save([], tmp_path / "none.pt")
    done = run(runner, tmp_path, *arguments)
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert lines[-1].startswith(f"runner: {message}")
    assert len(lines) == 1


class Doubles(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


def compile_library(source: str, file: Path) -> None:
    command = [*build.compiler(), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(file)]
    subprocess.run(command, input=source, encoding="utf-8", check=True)


def test_a_file_that_is_no_saved_module_is_told_what_is(runner: Path, tmp_path: Path) -> None:
    torch.save(Doubles(), tmp_path / "pickled.pt")
    torch.export.save(torch.export.export(Doubles(), (torch.ones(3),)), tmp_path / "exported.pt2")
    torch.jit.script(Doubles()).save(str(tmp_path / "script.pt2"))
    (tmp_path / "text.pt").write_text("def forward(x): ...", encoding="utf-8")
    for name in ("pickled.pt", "exported.pt2", "script.pt2", "text.pt"):
        done = run(runner, tmp_path, name, "--shape", "3")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"runner: {name} cannot be loaded: ")
        assert done.stderr.endswith("; what torch.jit.save wrote is accepted, or an AOTInductor package named .pt2\n")
        assert "corrupted" not in done.stderr


def test_a_library_built_for_another_torch_is_said_to_be_one(runner: Path, conv: Made, tmp_path: Path) -> None:
    compile_library("extern int of_a_later_torch; int* wanted = &of_a_later_torch;", tmp_path / "later.so")
    done = run(runner, tmp_path, "model.pt", "--shape", "1x2x16x16", "--library", "later.so")
    assert done.returncode == 2
    assert done.stderr.startswith("runner: library later.so cannot be loaded: ")
    about = f"(built for another torch? This is {torch.__version__.partition('+')[0]})"
    assert done.stderr.endswith(f"later.so: undefined symbol: of_a_later_torch {about}\n")


TWICE = """
#include <stdexcept>
struct Taken { Taken() { throw std::runtime_error("the namespace is taken; a long story"); } } taken;
"""


@pytest.mark.parametrize("serve", [[], ["--serve"]], ids=["", "serve"])
def test_a_library_that_cannot_register_its_operators_is_named(
    runner: Path, conv: Made, tmp_path: Path, serve: list[str | Path]
) -> None:
    compile_library(TWICE, tmp_path / "twice.so")
    done = run(runner, tmp_path, "model.pt", "--shape", "1x2x16x16", "--library", "twice.so", *serve)
    reason = "cannot register its operators, are they registered already? (the namespace is taken)"
    assert (done.returncode, done.stderr) == (2, f"runner: library twice.so {reason}\n")
    assert (json.loads(done.stdout) if serve else done.stdout) == (
        {"error": f"library twice.so {reason}"} if serve else ""
    )


def test_two_builds_of_the_operators_are_one_too_many(
    runner: Path, library: Path, operator: Made, tmp_path: Path
) -> None:
    both: list[str | Path] = ["--library", library, "--library", build.build()]
    done = run(runner, tmp_path, "model.pt", "--inputs", "inputs.pt", *both)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"runner: library {build.build()} cannot register its operators, are they registered already? "
        "(Only a single TORCH_LIBRARY can be used to register the namespace layerbench)"
    )


def test_two_stable_builds_of_them_are_too(runner: Path, conv: Made, tmp_path: Path) -> None:
    first = build.build(which=build.STABLE)
    shutil.copy(first, tmp_path / "second.so")
    done = run(runner, tmp_path, "model.pt", "--inputs", "inputs.pt", "--library", first, "--library", "second.so")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "runner: library second.so cannot register its operators, are they registered already? "
        "(another library has defined layerbench_stable)"
    )


class Same(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        (torch.tensor([3 + 4j]), torch.tensor([3 + 4j]), 0),
        (torch.tensor([3 + 4j]), torch.tensor([3 + 0j]), 4 / 3),
        (torch.tensor([2**60]), torch.tensor([2**60]), 0),
        (torch.tensor([2**60]), torch.tensor([2**60 + 1]), 2**-60),
        (torch.tensor([2**63 - 1]), torch.tensor([-(2**63)]), 2),
        (torch.tensor([True, False]), torch.tensor([True, True]), 2**-0.5),
        (torch.tensor([0, 255], dtype=torch.uint8), torch.tensor([0, 254], dtype=torch.uint8), 1 / 254),
        (torch.tensor([INF, -INF, 2.0]), torch.tensor([INF, -INF, 2.0]), 0),
        (torch.tensor([INF, 3.0]), torch.tensor([INF, 2.0]), 0.5),
        (torch.tensor([INF, 2.0]), torch.tensor([-INF, 2.0]), None),
        (torch.tensor([1.0, 2.0]), torch.tensor([INF, 2.0]), None),
        (torch.tensor([NAN, 2.0]), torch.tensor([NAN, 2.0]), None),
        (torch.tensor([0.5, 0.25]).half(), torch.tensor([0.5, 0.5]).half(), 0.125**0.5),
        (torch.empty(0), torch.empty(0), 0),
        (torch.ones(1), torch.zeros(1), None),
    ],
)
def test_an_output_passes_if_it_is_the_expected_one_element_by_element(
    runner: Path, tmp_path: Path, output: Tensor, expected: Tensor, error: float | None
) -> None:
    torch.jit.script(Same()).save(str(tmp_path / "model.pt"))
    torch.save(output, tmp_path / "inputs.pt")
    torch.save(expected, tmp_path / "expected.pt")
    arguments = ["model.pt", "--inputs", "inputs.pt", "--expect", "expected.pt", "--tolerance", "0"]
    done = run(runner, tmp_path, *arguments)
    answer = json.loads(done.stdout)
    assert answer["error"] == (None if error is None else pytest.approx(error))
    assert answer["as_expected"] is (error == 0)
    assert done.returncode == (0 if error == 0 else 1)


def test_the_sum_of_a_complex_output_has_both_parts(runner: Path, tmp_path: Path) -> None:
    torch.jit.script(Same()).save(str(tmp_path / "model.pt"))
    torch.save(torch.tensor([1 + 2j, 3 - 5j]), tmp_path / "inputs.pt")
    assert json.loads(run(runner, tmp_path, "model.pt", "--inputs", "inputs.pt").stdout)["output"]["sum"] == [4, -3]


@pytest.mark.parametrize("name", ["\udcff\udcc3x\udced\udca0\udc80", 'é\U0001f600"\\\n'], ids=ascii)
def test_any_file_name_comes_back_out_of_the_answer(runner: Path, conv: Made, tmp_path: Path, name: str) -> None:
    (tmp_path / "model.pt").rename(tmp_path / name)
    command = [str(runner), name, "--seconds", "0", "--shape", "1x2x16x16"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120)
    assert json.loads(done.stdout.decode())["model"] == name


class StableScale(torch.nn.Module):
    """A weight, and an operator whose gradient is in Python alone; with `around`, a way around it for the input."""

    def __init__(self, around: bool) -> None:
        super().__init__()
        self.weight, self.around = torch.nn.Parameter(torch.ones(3)), around

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.layerbench_stable.shift(x * self.weight, 1)
        return y + x if self.around else y


@pytest.mark.parametrize("around", [False, True], ids=["no gradient", "a part of it"])
def test_a_gradient_that_is_lost_on_its_way_is_an_error_and_is_not_timed(
    runner: Path, tmp_path: Path, around: bool
) -> None:
    ops.load(build.STABLE)
    torch.jit.script(StableScale(around)).save(str(tmp_path / "model.pt"))
    library, reason = (
        build.build(which=build.STABLE),
        "no gradient path: layerbench_stable::shift has no gradient in C++",
    )
    done = run(runner, tmp_path, "model.pt", "--shape", "3", "--backward", "--library", library)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", f"runner: {reason}\n")
    program = Program(tmp_path / "model.pt", torch.device("cpu"), libraries=[library])
    for state in ("forward_backward", "backward"):
        program.set(state, (torch.ones(3, requires_grad=True),), torch.ones(3) if state == "backward" else None)
        with pytest.raises(RuntimeError, match=reason):
            program.window(1)
    program.close()


class Detached(torch.nn.Module):
    """Its output wants a gradient that goes to nobody."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach().requires_grad_().mul(2)


def test_a_backward_that_reaches_no_input_and_no_parameter_is_an_error(runner: Path, tmp_path: Path) -> None:
    torch.jit.script(Detached()).save(str(tmp_path / "model.pt"))
    done = run(runner, tmp_path, "model.pt", "--shape", "3", "--backward")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "runner: no gradient path: no input and no parameter gets a gradient\n"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64"])
def test_random_input_is_what_torch_draws_in_python(runner: Path, tmp_path: Path, dtype: str) -> None:
    torch.jit.script(Same()).save(str(tmp_path / "model.pt"))
    options = ["--shape", "100", "--dtype", dtype, "--seed", "5", "--out", "out.pt"]
    assert run(runner, tmp_path, "model.pt", *options).returncode == 0
    torch.manual_seed(5)
    wanted = (torch.randn(100) * 32).long() if dtype == "int64" else torch.randn(100, dtype=getattr(torch, dtype))
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=False)["output"], wanted)


def test_help_names_every_option_and_exit_code(runner: Path, tmp_path: Path) -> None:
    shown = run(runner, tmp_path, "--help").stdout
    source = (build.HERE / "runner" / "options.cpp").read_text(encoding="utf-8")
    named = set(re.findall(r'"(--[a-z]+)"', source))
    assert {"--library", "--backward", "--expect"} < named
    assert [option for option in named if option not in shown] == []
    assert "Exit codes: 0 fine; 1" in shown


# --- as a variant ---


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run a layer's variants; measurements by variant and direction."""

    def execute(layer: str, **axes: Any) -> dict[str, Any]:
        policy = {"seconds": 0.05, "min_rounds": 1, "slots": 2, "slot": 0.001, "warmup_calls": 2}
        suite = {"policy": policy, "groups": [{"layer": layer, "axes": {"threads": 1} | axes}]}
        (tmp_path / "suite.yaml").write_text(json.dumps(suite), encoding="utf-8")
        assert cli.command(["run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "run")]) == 0
        found = load_run(tmp_path / "run").measurements
        return {f"{one.case.variant} {one.case.direction}": one for one in found}

    return execute


def test_the_cpp_program_is_checked_and_timed_as_any_variant_in_every_direction(
    runner: Path, execute: Callable[..., dict[str, Any]]
) -> None:
    directions = ["inference", "forward", "backward", "forward_backward"]
    sizes = {"size": 8, "in_channels": 1, "out_channels": 2}
    found = execute("unfold_conv2d", direction=directions, variant=["eager", "script_cpp"], **sizes)
    for direction in directions:
        eager, cpp = found[f"eager {direction}"], found[f"script_cpp {direction}"]
        assert cpp.status is Status.OK
        assert cpp.error < cpp.bound
        assert cpp.metric("latency").clock == eager.metric("latency").clock
        assert 0 < min(cpp.metric("latency").lows) < 0.1
        assert cpp.metric("page_faults") is not None
        assert variants.DEPRECATED in cpp.notes


def test_an_aotinductor_package_is_a_variant_of_inference_alone(
    runner: Path, execute: Callable[..., dict[str, Any]]
) -> None:
    found = execute("shift", direction=["inference", "forward_backward"], variant=["eager", "aoti_cpp"], length=64)
    assert found["aoti_cpp inference"].status is Status.OK
    training = found["aoti_cpp forward_backward"]
    assert (training.status, training.reason) == (
        Status.SKIPPED,
        "AOTInductor compiles inference only: its output has no graph",
    )


@pytest.mark.gpu
def test_on_a_gpu_the_cpp_program_is_checked_and_timed_with_the_device_waited_for(
    execute: Callable[..., dict[str, Any]],
) -> None:
    directions, names = ["inference", "backward", "forward_backward"], ["eager", "script_cpp", "aoti_cpp"]
    found = execute("unfold_conv2d", device="cuda", direction=directions, variant=names, size=64, out_channels=2)
    for direction in directions:
        eager, cpp = found[f"eager {direction}"], found[f"script_cpp {direction}"]
        assert cpp.status is Status.OK, cpp.reason
        assert min(cpp.metric("latency").lows) > min(eager.metric("device").lows) / 2
        assert cpp.metric("device") is None
    assert found["aoti_cpp inference"].status is Status.OK, found["aoti_cpp inference"].reason


def test_a_layer_that_cannot_be_exported_is_skipped_with_the_reason(runner: Path) -> None:
    with pytest.raises(layers.Unavailable, match=r"^torch.export: Could not guard on data-dependent"):
        make("sign_gate", "aoti_cpp", n=4, m=4)


def test_what_a_model_does_to_its_inputs_in_cpp_shows_in_python(runner: Path, tmp_path: Path) -> None:
    torch.jit.script(Doubles()).save(str(tmp_path / "model.pt"))
    program, x = Program(tmp_path / "model.pt", torch.device("cpu")), torch.ones(3)
    with torch.no_grad():
        assert torch.equal(program(x), torch.full((3,), 2.0))
    assert torch.equal(x, torch.full((3,), 2.0))
    program.close()


def test_strides_reach_the_program_and_survive_a_new_place(runner: Path) -> None:
    made = make("shift", "script_cpp", length=8)
    program = made.call
    assert isinstance(program, Program)
    x = torch.arange(24.0).reshape(4, 6).t()
    for given in (x, x[::2], torch.ones(1).expand(3, 5), torch.empty(0, 4)):
        program.set("inference", (given,))
        program.place(7)
        program.window(3)
        output, _, (left,) = program.results()
        assert torch.equal(left, given)
        assert torch.equal(output, torch.ops.aten.constant_pad_nd(given, [3, -3]))
    program.close()


def test_the_place_of_an_output_is_told_where_it_matters(runner: Path) -> None:
    program = make("shift", "script_cpp", length=8).call
    assert isinstance(program, Program)
    small, large = torch.randn(10, 100), torch.randn(100, 100, requires_grad=True)
    states: dict[State, tuple[Tensor, bool]] = {
        "inference": (small, False), "forward": (large, True), "forward_backward": (large, False),
        "backward": (large, False),
    }  # fmt: skip
    for state, (x, matters) in states.items():
        program.set(state, (x,), torch.ones(100, 100) if state == "backward" else None)
        assert (program.touch() > 0) == matters
    program.close()


def test_a_program_that_dies_is_an_error_that_says_so(runner: Path) -> None:
    program = make("shift", "script_cpp", length=8).call
    assert isinstance(program, Program)
    os.kill(program._process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the C\\+\\+ program ended with exit code -9"):
        program.window(1)


ORPHAN = """
from pathlib import Path
from layers.program import Program
program = Program(Path(sys.argv[1]), torch.device("cpu"))
print(program._process.pid, flush=True)
program.window(10**12)
"""


def test_a_program_ends_with_the_process_that_asked_it(runner: Path, conv: Made, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys, torch\n{ORPHAN}", str(tmp_path / "model.pt")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8") as parent:
        assert parent.stdout is not None
        child = Path("/proc", parent.stdout.readline().strip())
        assert child.exists()
        parent.kill()
    deadline = time.monotonic() + 10
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.exists()
