import os
import pickle
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layers
from bench import check
from bench.model import Direction
from bench.reference import Reference
from ext import build, ops
from layers import Layer, Unavailable, variants
from layers.variants import VARIANTS, Made, construct

ROOT = Path(__file__).parent.parent
GRAPHS = ["eager_graph", "native_graph", "custom_op_graph"]
BINDINGS = ["custom_op", "custom_op_py", "stable_abi", "pybind"]
TORCHSCRIPT = ["script", "jit_script", "trace"]


def make(layer: Layer | str, variant: str, dtype: torch.dtype = torch.float32, **params: Any) -> Made:
    layer = layers.load(layer) if isinstance(layer, str) else layer
    return variants.make(layer, variant, params, dtype=dtype, device="cpu", seed=0)


def layer_of(module: type[nn.Module]) -> Layer:
    return Layer("mine", {"eager": module}, inputs=lambda generator: (torch.randn(4, generator=generator),))


def python(*arguments: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MAKE_ALL = """
import torch, layers
from layers import variants
for name in ("eager", "script", "jit_script", "trace", "native"):
    try:
        made = variants.make(layers.load("shift"), name, {"length": 8}, dtype=torch.float32, device="cpu", seed=0)
        print(name, tuple(made.call(*made.inputs).shape))
    except layers.Unavailable as reason:
        print(name, reason)
"""


def test_every_variant_says_in_one_line_what_it_is() -> None:
    torch_own = ["eager", "script", "jit_script", "trace", "compile"]
    assert list(VARIANTS) == [*torch_own, "script_cpp", "aoti_cpp", *BINDINGS, "native", *GRAPHS]
    for function in VARIANTS.values():
        assert (function.__doc__ or "").splitlines()[0].endswith(".")


def test_the_same_seed_gives_the_same_weights_and_inputs_in_every_variant_and_another_seed_others() -> None:
    layer = layers.load("sign_gate")
    first, again, other = (
        variants.make(layer, name, {}, dtype=torch.float32, device="cpu", seed=seed)
        for name, seed in (("eager", 5), ("script", 5), ("eager", 6))
    )
    assert torch.equal(first.state["weight"], again.state["weight"])
    assert torch.equal(first.inputs[0], again.inputs[0])
    assert not torch.equal(first.state["weight"], other.state["weight"])
    assert not torch.equal(first.inputs[0], other.inputs[0])


def test_the_state_is_a_float64_copy_of_the_weights_as_rounded_to_the_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        made = make("sign_gate", "eager", dtype, n=3, m=4)
        weight = made.module.get_parameter("weight")
        assert weight.dtype == dtype
        assert made.state["weight"].dtype == torch.float64
        assert torch.equal(made.state["weight"], weight.detach().double())
        assert made.state["weight"].data_ptr() != weight.data_ptr()


@pytest.mark.parametrize("variant", VARIANTS)
def test_making_a_variant_leaves_random_state_threads_and_warning_filters_alone(variant: str) -> None:
    torch.manual_seed(77)
    before = torch.get_rng_state(), torch.get_num_threads(), list(warnings.filters), torch.is_grad_enabled()
    if variant == "pybind":
        make("shift", variant)
    elif variant in GRAPHS:
        with pytest.raises(Unavailable):
            make("unfold_conv2d", variant, size=5, out_channels=2)
    else:
        make("unfold_conv2d", variant, size=5, out_channels=2)
    after = torch.get_rng_state(), torch.get_num_threads(), list(warnings.filters), torch.is_grad_enabled()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize("variant", TORCHSCRIPT)
def test_torchscript_variants_are_script_modules_and_say_that_torchscript_is_deprecated(variant: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = make("unfold_conv2d", variant, size=5, out_channels=2)
    assert isinstance(made.call, torch.jit.ScriptModule)
    assert made.notes == (variants.DEPRECATED,)


@pytest.mark.parametrize("variant", ["eager", "native", "custom_op", "compile"])
def test_other_variants_carry_no_notes(variant: str) -> None:
    assert make("shift", variant).notes == ()


def test_a_traced_branch_on_data_is_noted_with_its_line_and_wrong_on_negated_inputs_where_script_is_right() -> None:
    traced, scripted = make("sign_gate", "trace", n=5, m=7), make("sign_gate", "script", n=5, m=7)
    assert any("sign_gate.py:" in note and "Python boolean" in note for note in traced.notes)
    (x,) = traced.inputs
    right = traced.state["weight"].float() - x
    assert torch.allclose(traced.call(x), scripted.call(x))
    assert torch.allclose(scripted.call(-x), right)
    assert traced.call(-x).shape != right.shape


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("name", ["shift", "vecadd", "unfold_conv2d"])
def test_the_native_operator_shows_in_the_graph_of_a_scripted_and_of_a_traced_module(name: str) -> None:
    layer, made = layers.load(name), make(name, "custom_op")
    traced = torch.jit.trace(made.module, made.inputs)
    for converted in (torch.jit.script(made.module), traced):
        assert f"{layer.op}(" in str(converted.inlined_graph)
        assert torch.equal(converted(*made.inputs), made.call(*made.inputs))


class TwoMethods(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.twice(x) + 1

    def twice(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_functions_and_modules_of_several_methods_can_be_traced_and_checked_on_other_inputs() -> None:
    # unfold_conv2d traced on one image must hold for two, which check_inputs compares with the eager result
    made = make("unfold_conv2d", "eager", size=6, out_channels=2)
    two = torch.randn(2, 3, 6, 6)
    traced = torch.jit.trace_module(made.module, {"forward": made.inputs}, check_inputs=[{"forward": two}])
    assert torch.equal(traced(two), made.call(two))
    x = torch.randn(3)
    both = torch.jit.trace_module(TwoMethods(), {"forward": x, "twice": x})
    assert torch.equal(both.twice(x) + 1, both(x))
    add = torch.jit.trace(torch.add, (x, x), check_inputs=[(two, two)])
    assert torch.equal(add(two, two), two + two)


def test_pytorch_jit_0_makes_torchscript_variants_unavailable_and_leaves_the_rest() -> None:
    lines = python("-c", MAKE_ALL, PYTORCH_JIT="0").splitlines()
    assert lines == [
        "eager (1, 8)",
        *(f"{n} PYTORCH_JIT=0 switches TorchScript off" for n in TORCHSCRIPT),
        "native (1, 8)",
    ]


def test_warnings_as_errors_break_no_variant() -> None:
    lines = python("-W", "error", "-c", MAKE_ALL).splitlines()
    assert lines == [f"{name} (1, 8)" for name in ("eager", *TORCHSCRIPT, "native")]


def test_python_3_14_makes_torchscript_variants_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    for variant in TORCHSCRIPT:
        with pytest.raises(Unavailable, match=r"Python 3\.14"):
            make("shift", variant)


class LoopsOverAPlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [nn.Identity(), nn.ReLU()]  # not a ModuleList

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class GrowsItsList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for part in parts:
            if len(parts) < 3:
                parts.append(part + 1)
        return parts[-1]


class Warns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("mind the layer", UserWarning, stacklevel=1)
        return x


def test_what_the_torchscript_compiler_says_of_a_layer_passes_through() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)steps.*failed to convert.*HERE"):
        make(layer_of(LoopsOverAPlainList), "jit_script")


def test_torchscript_reads_a_loop_over_a_growing_list_differently_which_only_a_check_can_find() -> None:
    eager, scripted = make(layer_of(GrowsItsList), "eager"), make(layer_of(GrowsItsList), "jit_script")
    (x,) = eager.inputs
    assert torch.equal(eager.call(x), x + 1 + 1)
    assert torch.equal(scripted.call(x), x + 1)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (torch.ones(3), r"inputs are a Tensor, not a tuple of tensors: return \(x,\) for one"),
        (None, r"inputs are a NoneType, not a tuple of tensors: return \(x,\) for one"),
        ([torch.ones(3), 4], "^input 1 is an int, not a tensor: what is none belongs"),
    ],
)
def test_inputs_that_are_no_tuple_of_tensors_are_said_to_be_so(drawn: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        variants.draw(lambda generator: drawn, {}, seed=0, dtype=torch.float32, device="cpu")


def test_a_layer_in_a_file_of_ones_own_can_be_scripted_saved_and_pickled(tmp_path: Path) -> None:
    (tmp_path / "my layer.py").write_text(MINE, encoding="utf-8")
    layer = layers.load(f"{tmp_path / 'my layer.py'}:MINE")
    made = variants.make(layer, "jit_script", {}, dtype=torch.float32, device="cpu", seed=0)
    made.call.save(str(tmp_path / "model.pt"))  # type: ignore[attr-defined]
    assert torch.equal(torch.jit.load(str(tmp_path / "model.pt"))(*made.inputs), made.call(*made.inputs))
    module = layer.versions["eager"]()
    assert torch.equal(pickle.loads(pickle.dumps(module))(*made.inputs), module(*made.inputs))


MINE = """
import torch
from layers import Layer

class Mine(torch.nn.Module):
    def forward(self, x):
        return x * 2

MINE = Layer("mine", {"eager": Mine}, lambda generator: (torch.ones(3),))
"""


def test_how_long_compiling_the_operators_took_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[build.Library] = []

    def compile_them(progress: object = None, which: build.Library = build.OPS) -> None:
        built.append(which)
        time.sleep(0.05)

    monkeypatch.setattr(build, "build", compile_them)
    taken = {name: make("shift", name).built for name in ("eager", "custom_op", "stable_abi", "native")}
    assert built == [build.OPS, build.STABLE]
    assert [seconds >= 0.05 for seconds in taken.values()] == [False, True, True, False]


def test_warnings_of_the_layers_own_still_reach_the_user() -> None:
    with pytest.warns(UserWarning, match="mind the layer"):
        make(layer_of(Warns), "trace")


def test_a_version_named_script_that_is_no_script_module_is_an_error() -> None:
    layer = Layer("mine", {"eager": Warns, "script": Warns}, lambda generator: (torch.randn(4, generator=generator),))
    with pytest.raises(TypeError, match=r"'script' version of mine is a Warns"):
        make(layer, "script")


@pytest.mark.parametrize("variant", ["script", "custom_op", "native"])
def test_a_version_that_a_layer_lacks_is_unavailable(variant: str) -> None:
    with pytest.raises(Unavailable, match=f"layer mine has no version {variant}"):
        make(layer_of(Warns), variant)


def test_compile_without_a_cpp_compiler_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(Unavailable, match="no C\\+\\+ compiler: no-such-compiler"):
        make("shift", "compile")


def test_operators_that_cannot_be_built_make_custom_op_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(which: build.Library) -> None:
        raise build.BuildError("no C++ compiler", tail="many lines")

    monkeypatch.setattr(ops, "load", fail)
    with pytest.raises(Unavailable, match=r"^no C\+\+ compiler$"):
        make("shift", "custom_op")


def test_operators_without_cuda_make_custom_op_unavailable_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "load", lambda which: None)
    monkeypatch.setattr(build, "cuda_reason", lambda which: "CPU-only torch")
    on_cuda: Any = (SimpleNamespace(device=torch.device("cuda")),)
    with pytest.raises(Unavailable, match="CPU-only torch"):
        VARIANTS["custom_op"](layers.load("shift"), {"k": 1}, nn.Identity(), on_cuda)


@pytest.mark.parametrize("variant", GRAPHS)
def test_cuda_graphs_are_unavailable_on_a_cpu(variant: str) -> None:
    with pytest.raises(Unavailable, match="for CUDA devices"):
        make("vecadd", variant)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", GRAPHS)
@pytest.mark.parametrize("name", ["unfold_conv2d", "shift", "vecadd"])
def test_a_graphed_variant_is_right_on_all_that_the_check_tries_and_runs_as_a_graph(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    layer, device = layers.load(name), torch.device("cuda", 0)
    made = variants.make(layer, variant, {}, dtype=torch.float32, device=device, seed=0)
    reference = Reference.of(layer, dict(layer.defaults), made, device)
    found = check.check(made, reference, variant=variant, dtype="float32", bound=5e-5, direction=Direction.BACKWARD)
    assert found < 5e-5
    inputs = tuple(x.clone() for x in made.inputs)
    with torch.no_grad():
        made.call(*inputs)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        ) as profile:
            made.call(*inputs)
            torch.cuda.synchronize()
    launched = {event.key for event in profile.key_averages() if event.key.startswith("cuda")}
    assert "cudaGraphLaunch" in launched


def test_unknown_names_are_lookup_errors_that_list_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"layer \w+ has no variant 'tarce', known are: eager, script"):
        make("shift", "tarce")
    with pytest.raises(LookupError, match=r"layer shift has no parameter 'lenght', it has: rows, length, k"):
        make("shift", "eager", lenght=3)
    with pytest.raises(LookupError, match="unknown layer 'shfit'"):
        layers.load("shfit")


def test_a_dtype_that_the_layer_does_not_take_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"layer vecadd does not take torch\.int8"):
        make("vecadd", "eager", torch.int8)


USERS_LAYER = """
import torch
from torch import nn
from layers import Layer

class Double(nn.Module):
    def forward(self, x):
        return 2 * x

def inputs(generator, *, n):
    return (torch.randn(n, generator=generator),)

DOUBLE = Layer("double", {"eager": lambda n: Double()}, inputs, defaults={"n": 3})
NOT_A_LAYER = 3
"""


def test_a_users_layer_is_loaded_by_path_or_by_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_layer.py").write_text(USERS_LAYER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (f"{tmp_path / 'users_layer.py'}:DOUBLE", "users_layer:DOUBLE"):
        for variant in ("eager", "jit_script", "trace"):
            made = make(layers.load(name), variant, n=4)
            assert torch.equal(made.call(*made.inputs), 2 * made.inputs[0])
    for missing in ("users_layer:TRIPLE", "users_layer:NOT_A_LAYER", f"{tmp_path / 'no.py'}:DOUBLE"):
        with pytest.raises(LookupError):
            layers.load(missing)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_layer:TRIPLE", "users_layer defines no 'TRIPLE'; layers there: DOUBLE"),
        ("users_layer:NOT_A_LAYER", "users_layer has 'NOT_A_LAYER', but not as a layers.Layer; layers there: DOUBLE"),
        ("users_layer.py", "users_layer.py needs the name of a layer, users_layer.py:NAME; layers there: DOUBLE"),
        ("users_layer.py:TRIPLE", "users_layer.py defines no 'TRIPLE'; layers there: DOUBLE"),
        ("no/such.py:DOUBLE", "no file no/such.py"),
        ("no_such.module:DOUBLE", "no module 'no_such'"),
        ("users_layer.more:DOUBLE", "no module 'users_layer.more'"),
        (
            "layers.mine:DOUBLE",
            "no module 'layers.mine': layerbench's own package 'layers' hides any other of that name",
        ),
    ],
)
def test_a_name_that_means_no_layer_is_answered_with_those_that_do(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_layer.py").write_text(USERS_LAYER, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "users_layer", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LookupError) as caught:
        layers.load(name)
    assert str(caught.value) == message


def test_what_a_layers_own_import_lacks_is_no_unknown_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text("import no_such_library\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        layers.load("lacking:LAYER")


BUILTIN: Any = dict  # has no signature


def test_a_version_that_does_not_take_its_parameters_is_named() -> None:
    layer = replace(layers.load("vecadd"), versions={"eager": lambda m: nn.Identity(), "builtin": BUILTIN})
    with pytest.raises(TypeError) as caught:
        construct(layer, "eager", {"n": 3})
    message = "the 'eager' version of vecadd does not take its parameters: missing a required argument: 'm'"
    assert str(caught.value) == f"{message}; it is called with (n=3): `defaults` says which"
    assert isinstance(construct(layer, "eager", {"m": 3}), nn.Identity)
    with pytest.raises(TypeError, match=r"^versions\['builtin'\] must give an nn.Module, gave a dict$"):
        construct(layer, "builtin", {"m": 3})


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LazyLinear(4)


def test_the_contract_of_versions_is_stated_where_one_breaks_it() -> None:
    def layer(**versions: Any) -> Layer:
        return Layer("mine", versions, lambda generator: (torch.randn(3, 4, generator=generator),))

    with pytest.raises(TypeError, match=r"^versions\['eager'\] must give an nn.Module, gave a function$"):
        make(layer(eager=lambda: lambda x: x), "eager")
    with pytest.raises(TypeError, match=r"versions\['eager'\] must have no lazy parameters, and inner.weight is one"):
        make(layer(eager=Lazy), "eager")
    wider = layer(eager=lambda: nn.Linear(4, 4), native=lambda: nn.Linear(4, 5))
    rule = r"^versions\['native'\] must have the state_dict keys and shapes of .*: Error.*size mismatch"
    with pytest.raises(RuntimeError, match=rule):
        make(wider, "native")
    with pytest.raises(TypeError, match=r"^versions\['eager'\] is a ReLU: give what makes one, called"):
        make(layer(eager=nn.ReLU()), "eager")


def test_a_version_may_be_a_module_that_was_compiled_already() -> None:
    def compiled() -> Any:
        return torch.compile(nn.Linear(4, 4), backend="eager")

    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        return (torch.randn(3, 4, generator=generator),)

    layer = Layer("mine", {"eager": lambda: nn.Linear(4, 4), "mine": compiled}, inputs)
    eager, mine = make(layer, "eager"), make(layer, "mine")
    assert list(mine.module.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(mine.call(*mine.inputs), eager.call(*eager.inputs))
    with pytest.raises(Unavailable, match="CUDA graphs take only layers that return one tensor"):
        make(replace(layer, output=lambda result: result[0]), "eager_graph")
    both = replace(layer, versions={"eager": compiled, "mine": compiled})
    of_both = [make(both, name) for name in ("eager", "mine")]
    torch.testing.assert_close(*(one.call(*one.inputs) for one in of_both))
    mine.call(*mine.inputs).sum().backward()
    assert mine.module.get_parameter("weight").grad is not None


def test_a_layer_has_the_variants_of_its_versions_and_those_made_from_them() -> None:
    layer = layer_of(Warns)
    able = {*layer.versions, *variants.made_from(layer)}
    assert able == {"eager", "jit_script", "trace", "compile", "aoti_cpp", "eager_graph"}
    for name in variants.VARIANTS.keys() - able:
        with pytest.raises(Unavailable, match="has no version"):
            make(layer, name)


def test_drawn_integers_keep_their_dtype_and_floats_take_the_one_asked_for() -> None:
    def factory(generator: torch.Generator) -> layers.Inputs:
        return torch.randint(5, (3,), generator=generator), torch.randn(3, generator=generator)

    indices, values = variants.draw(factory, {}, seed=0, dtype=torch.float16, device="cpu")
    assert (indices.dtype, values.dtype) == (torch.int64, torch.float16)
    assert torch.equal(variants.draw(factory, {}, seed=0, dtype=torch.float32, device="cpu")[0], indices)


def test_a_version_of_any_name_is_a_variant_of_its_layer() -> None:
    vecadd = layers.load("vecadd")
    layer = replace(vecadd, versions={**vecadd.versions, "mine": vecadd.versions["native"]})
    made = make(layer, "mine", length=8)
    assert torch.equal(made.call(*made.inputs), made.inputs[0] + made.inputs[1])
    with pytest.raises(LookupError, match="no variant 'yours'"):
        make(layer, "yours")
