"""How a layer becomes a callable: one function per variant.

A variant function takes the layer, all its parameters, its seeded eager module and example inputs (both on the device
and in the dtype that will be measured) and returns a callable holding the same weights. Raises `Unavailable` with the
reason where the variant cannot exist; whatever the layer's own code raises passes through.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layers import Inputs, Layer, Unavailable, operators, seeded, shipping
from layers.graphed import graphed

Call = Callable[..., Any]  # a Tensor, or what the layer's `output` makes one of
VariantFunction = Callable[[Layer, dict[str, Any], nn.Module, Inputs], Call]

VARIANTS: dict[str, VariantFunction] = {}

# Variants made from a version of another name.
MADE_FROM = {
    **dict.fromkeys(("jit_script", "trace", "compile", "aoti_cpp", "eager_graph"), "eager"),
    "script_cpp": "script",
    "native_graph": "native",
    "custom_op_graph": "custom_op",
}

# Variants that by their nature hold for the shapes, or the shapes and strides, of their example inputs.
SHAPE_BOUND = frozenset({"trace", "compile", "aoti_cpp"})
STRIDE_BOUND = frozenset({"compile", "aoti_cpp"})

# Variants of layers that return one tensor, and what they go through.
ONE_TENSOR = {
    **dict.fromkeys(("script_cpp", "aoti_cpp"), "the C++ program runs"),
    **dict.fromkeys(("eager_graph", "native_graph", "custom_op_graph"), "CUDA graphs take"),
}

TracerWarning = torch.jit.TracerWarning  # type: ignore[attr-defined]

DEPRECATED = "TorchScript is deprecated in PyTorch, which points to torch.compile and torch.export"


def variant(function: VariantFunction) -> VariantFunction:
    """Register a function as the variant of its name; the first line of its docstring is what `list` shows."""
    VARIANTS[function.__name__] = function
    return function


@variant
def eager(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The nn.Module as it is, run by Python."""
    return module


@variant
def script(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The layer's own jit.ScriptModule with script_method."""
    _require_torchscript()
    version = hand_written(layer, "script", params, module, inputs)
    if not isinstance(version, torch.jit.ScriptModule):
        raise TypeError(f"the 'script' version of {layer.name} is a {type(version).__name__}, not a jit.ScriptModule")
    return version


@variant
def jit_script(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The eager module through torch.jit.script."""
    _require_torchscript()
    scripted: Call = torch.jit.script(module)
    return scripted


@variant
def trace(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The eager module through torch.jit.trace, on the device that is measured."""
    _require_torchscript()
    # check_trace runs the trace on the very inputs it was made from, and cannot catch what they did not show.
    traced: Call = torch.jit.trace(module, inputs, check_trace=False)
    return traced


@variant
def compile(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:  # noqa: A001
    """The eager module through torch.compile; its first call compiles."""
    if inputs[0].device.type == "cpu":
        _require_compiler("torch.compile on the CPU")
    # What earlier cases compiled counts against the recompile limit, beyond which dynamo silently runs eagerly.
    torch._dynamo.reset()
    compiled: Call = torch.compile(module)
    return compiled


@variant
def script_cpp(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The saved script variant in a C++ program, without Python."""
    scripted: Any = script(layer, params, module, inputs)
    return shipping.program(scripted.save, ".pt", module, inputs)


@variant
def aoti_cpp(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The eager module compiled by AOTInductor, in a C++ program, without Python."""
    _require_compiler("AOTInductor")
    return shipping.program(lambda path: shipping.package(module, inputs, path), ".pt2", module, inputs)


@variant
def custom_op(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The layer on its native C++/CUDA operator: TORCH_LIBRARY, gradients in C++."""
    return _bound(layer, "custom_op", params, module, inputs)


@variant
def custom_op_py(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The same operator with its gradients registered in Python (torch.library.register_autograd)."""
    return _bound(layer, "custom_op_py", params, module, inputs)


@variant
def stable_abi(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The same operator from one library for torch 2.11 and later (stable ABI; gradients registered in Python)."""
    return _bound(layer, "stable_abi", params, module, inputs)


@variant
def pybind(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The same kernels bound by pybind11 with an out parameter, in a Python autograd.Function."""
    return _bound(layer, "pybind", params, module, inputs)


@variant
def native(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """What a user would otherwise call: PyTorch's own operators."""
    return hand_written(layer, "native", params, module, inputs)


@variant
def eager_graph(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The eager module replayed as CUDA graphs (torch.cuda.make_graphed_callables)."""
    return graphed(module, inputs[0].device)


@variant
def native_graph(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The native variant replayed as CUDA graphs."""
    return graphed(hand_written(layer, "native", params, module, inputs), inputs[0].device)


@variant
def custom_op_graph(layer: Layer, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> Call:
    """The custom_op variant replayed as CUDA graphs."""
    return graphed(_bound(layer, "custom_op", params, module, inputs), inputs[0].device)


def hand_written(layer: Layer, name: str, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> nn.Module:
    """The layer's own version `name` with the weights, device and dtype of `module`. Unavailable if it has none."""
    if name not in layer.versions:
        raise Unavailable(f"layer {layer.name} has no version {name}")
    state = module.state_dict()
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), None)
    version = construct(layer, name, params).to(inputs[0].device, dtype).train(module.training)
    target = version if version.state_dict().keys() == state.keys() else _compiled_from(version)
    try:
        target.load_state_dict(state)
    except RuntimeError as error:
        needed = f"versions[{name!r}] must have the state_dict keys and shapes of versions['eager']"
        raise RuntimeError(f"{needed}: {' '.join(str(error).split())}") from None
    return version


def _compiled_from(module: nn.Module) -> nn.Module:
    """What a torch.compile of the user's own is made from: the wrapper puts a prefix before every key."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, nn.Module) else module


@dataclass(frozen=True)
class Made:
    """One variant, ready to be checked and timed.

    call    what to run, on inputs of the device and dtype it was made for
    module  the nn.Module whose parameters `call` uses, under the names in `state`
    inputs  the seeded inputs
    state   the weights as float64 on the CPU, for the reference; buffers of integers as they are
    notes   what the conversion had to say: deprecation, tracer warnings
    built   seconds that compiling a native library of ours took, which making it again would not
    output  see Layer.output
    seed    of its weights
    """

    call: Call
    module: nn.Module
    inputs: Inputs
    state: dict[str, Tensor]
    notes: tuple[str, ...]
    built: float = 0.0
    output: Callable[[Any], Tensor] | None = None
    seed: int = 0


def make(
    layer: Layer,
    name: str,
    params: Mapping[str, Any],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    training: bool = True,
) -> Made:
    """`layer` as variant `name`, its weights and inputs from `seed`; random state and warning filters stay as they are.

    `training` is the mode of the module, in which it is traced, scripted and compiled too.

    LookupError for a variant or parameter that does not exist, Unavailable for one that cannot exist here, and
    whatever the conversion raises.
    """
    if name not in VARIANTS and name not in layer.versions:
        known = ", ".join([*layer.versions, *made_from(layer)])
        raise LookupError(f"layer {layer.name} has no variant {name!r}, known are: {known}")
    if str(dtype).removeprefix("torch.") not in layer.dtypes:
        raise Unavailable(f"layer {layer.name} does not take {dtype}, only {', '.join(layer.dtypes)}")
    if layer.output is not None and name in ONE_TENSOR:
        raise Unavailable(f"{ONE_TENSOR[name]} only layers that return one tensor")
    params = complete(layer, params)
    built = operators.build_for(layer, name.removesuffix("_graph"))
    inputs = draw(layer.inputs, params, seed=seed, dtype=dtype, device=device)
    with torch.random.fork_rng(devices=[]), _noted() as notes:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPU's generators too
        module = construct(layer, "eager", params).to(device).train(training)
        _no_complex_weights(module)
        if dtype.is_floating_point:
            module.to(dtype)
        if name in VARIANTS:
            call = VARIANTS[name](layer, params, module, inputs)
        else:
            call = hand_written(layer, name, params, module, inputs)
    state = {key: _copied(value) for key, value in module.state_dict().items()}
    owners = (call, _compiled_from(call)) if isinstance(call, nn.Module) else ()
    module = next((one for one in owners if one.state_dict().keys() == state.keys()), module)
    if isinstance(call, torch.jit.ScriptModule) or name == "script_cpp":
        notes.insert(0, DEPRECATED)
    return Made(call, module, inputs, state, tuple(notes), built, layer.output, seed)


def made_from(layer: Layer) -> list[str]:
    """The variants that a layer can have without a version of that name."""
    return [name for name in VARIANTS if name not in layer.versions and MADE_FROM.get(name) in layer.versions]


def _no_complex_weights(module: nn.Module) -> None:
    """A cast to a floating dtype would leave out their imaginary parts, and say so in a log at most."""
    if name := next((name for name, one in module.state_dict().items() if one.is_complex()), ""):
        raise TypeError(
            f"weight {name} is complex: keep its parts as a real weight, and use torch.view_as_complex of it"
        )


def _copied(value: Tensor) -> Tensor:
    wide = torch.float64 if value.is_floating_point() else value.dtype
    return value.detach().to("cpu", wide, copy=True)


def complete(layer: Layer, params: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a layer: those given, the rest by default. LookupError names one that it does not have."""
    for name in params:
        if name not in layer.defaults:
            known = ", ".join(layer.defaults) or "none"
            raise LookupError(f"layer {layer.name} has no parameter {name!r}, it has: {known}")
    return {**layer.defaults, **params}


def construct(layer: Layer, name: str, params: Mapping[str, Any]) -> nn.Module:
    """Version `name` of a layer. TypeError where it does not take the parameters, gives no module or one whose sizes
    are not known yet, besides what it raises itself."""
    version = layer.versions[name]
    if isinstance(version, nn.Module):
        raise TypeError(f"versions[{name!r}] is {_a(version)}: give what makes one, called with **params")
    _takes(version, f"the {name!r} version of {layer.name} does not take its parameters", **params)
    module = version(**params)
    if not isinstance(module, nn.Module):
        raise TypeError(f"versions[{name!r}] must give an nn.Module, gave {_a(module)}")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if lazy := next((key for key, tensor in tensors if nn.parameter.is_lazy(tensor)), None):
        raise TypeError(
            f"versions[{name!r}] must have no lazy parameters, and {lazy} is one: give its module all sizes"
        )
    return module


def _takes(function: Callable[..., Any], otherwise: str, *args: Any, **params: Any) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin may have none
        return
    try:
        signature.bind(*args, **params)
    except TypeError as error:
        given = ", ".join(["generator"] * len(args) + [f"{key}={value}" for key, value in params.items()])
        raise TypeError(f"{otherwise}: {error}; it is called with ({given}): `defaults` says which") from None


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def draw(
    factory: Callable[..., Inputs],
    params: Mapping[str, Any],
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Inputs:
    """What an input factory of a layer draws from `seed`, on `device`; floating-point tensors in `dtype`.

    Raises TypeError where that is no tuple of tensors.
    """
    generator = seeded(seed)
    _takes(factory, "the layer's inputs factory does not take its parameters", generator, **params)
    drawn = factory(generator, **params)
    if not isinstance(drawn, tuple | list):
        raise TypeError(f"the layer's inputs are {_a(drawn)}, not a tuple of tensors: return (x,) for one")
    if not drawn:
        raise TypeError("the layer's inputs are empty: it takes one tensor at least")
    for number, one in enumerate(drawn):
        if not isinstance(one, Tensor):
            remedy = "what is none belongs to the module, or to the parameters in `defaults`"
            raise TypeError(f"input {number} is {_a(one)}, not a tensor: {remedy}")
    return tuple(_cast(tensor, dtype).to(device) for tensor in drawn)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    if not dtype.is_floating_point:
        tensor = (tensor * 32).clamp(-127, 127)  # a normal number is mostly 0 as an integer; 127 fits all of them
    return tensor.to(dtype)


def _require_torchscript() -> None:
    if sys.version_info >= (3, 14):
        raise Unavailable("TorchScript does not support Python 3.14 and later")
    # With PYTORCH_JIT=0 conversions silently return the eager module, and ScriptModule is an empty nn.Module.
    if not hasattr(torch.jit.ScriptModule, "graph"):
        raise Unavailable("PYTORCH_JIT=0 switches TorchScript off")


def _require_compiler(who: str) -> None:
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise Unavailable(f"no C++ compiler: {compiler} is not on PATH, and {who} needs one")


def _bound(layer: Layer, name: str, params: dict[str, Any], module: nn.Module, inputs: Inputs) -> nn.Module:
    """The hand-written version on one of our native libraries; a layer with another operator loads it itself."""
    if which := operators.library(layer, name):
        operators.load(which, inputs[0].device)
    return hand_written(layer, name, params, module, inputs)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """Silence TorchScript's deprecation warnings, collect tracer warnings; all other warnings stay what they are.

    Holds under `python -W error` too: both would be raised from inside the conversion otherwise.
    """
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("always", category=TracerWarning)
        TracerWarning.ignore_lib_warnings()
        for category in (DeprecationWarning, FutureWarning):  # FutureWarning from torch 2.14 on
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)", category)
        yield notes
    for warning in seen:
        if issubclass(warning.category, TracerWarning):
            message = str(warning.message).split(". ")[0]
            notes.append(f"{Path(warning.filename).name}:{warning.lineno}: {message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    notes[:] = dict.fromkeys(notes)  # one line is often traced many times
