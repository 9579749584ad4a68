"""One file per layer: every version of it, its reference, its inputs, its cost model.

`Layer` is the whole contract between a layer and the harness. A user's own layer is the same record in
the user's own file, named as `pkg.module:NAME` or `path.py:NAME`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BUILTIN = ("unfold_conv2d", "shift", "vecadd", "sign_gate")

OURS = ("bench", "ext", "layers")  # packages that hide a user's of the same name

Inputs = tuple[Tensor, ...]


class Unavailable(Exception):
    """A variant that cannot exist here: its text is the reason shown beside `skipped`."""


@dataclass(frozen=True)
class Cost:
    """The least work one forward call must do: floating-point operations, and bytes (each input read once,
    each output written once)."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Layer:
    """Every version of one layer and what is needed to check and time it.

    defaults   parameters that a suite may set, with the value each has otherwise
    versions   hand-written versions by variant name: called with **params, give a module. `eager` is
               required, `script`, `custom_op` and `native` are usual, any other name is a variant of this layer's
               own; the state_dict keys of all agree, so that all can hold the same weights
    inputs     inputs(generator, **params): seeded random float32 CPU tensors, drawn from `generator`
    reference  reference(state, *inputs, **params): the right `output`, differentiable, in the dtype given
               (the harness gives float64). `state` is the module's state_dict. None: eager in float64
    cost       cost(itemsize, **params): the least work of one forward call; None: unknown
    draws      extra input factories like `inputs` that the check runs besides (a second batch size, ...)
    op         name of the native operator behind `custom_op`, for example "layerbench::shift"
    dtypes     dtypes that the layer accepts
    output     of what a version returns, the tensor that is checked and goes backward: `lambda result: result[0]`.
               None: it returns one tensor
    """

    name: str
    versions: Mapping[str, Callable[..., nn.Module]]
    inputs: Callable[..., Inputs]
    reference: Callable[..., Tensor] | None = None
    cost: Callable[..., Cost] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    draws: tuple[Callable[..., Inputs], ...] = ()
    op: str | None = None
    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    output: Callable[[Any], Tensor] | None = None

    def __post_init__(self) -> None:
        if "eager" not in self.versions:
            raise ValueError(f"layer {self.name!r} has no 'eager' version")


def load(name: str) -> Layer:
    """The layer meant by a suite: a built-in name, `pkg.module:NAME` or `path.py:NAME`.

    Raises LookupError with a full sentence when there is none; what a user's file raises passes through.
    """
    if name in BUILTIN:
        name = f"layers.{name}:LAYER"
    elif name.endswith(".py"):
        name = f"{name}:"  # to say which layers are there
    elif ":" not in name:
        raise LookupError(f"unknown layer {name!r}")
    source, _, attribute = name.rpartition(":")
    module = _module_at(Path(source)) if source.endswith(".py") else _module_named(source)
    layer = getattr(module, attribute, None)
    if not isinstance(layer, Layer):
        found = ", ".join(key for key, value in vars(module).items() if isinstance(value, Layer)) or "none"
        what = f"defines no {attribute!r}" if layer is None else f"has {attribute!r}, but not as a layers.Layer"
        what = what if attribute else f"needs the name of a layer, {source}:NAME"
        raise LookupError(f"{source} {what}; layers there: {found}")
    return layer


def _module_named(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        package = name.partition(".")[0]
        why = f": layerbench's own package {package!r} hides any other of that name" if package in OURS else ""
        raise LookupError(f"no module {error.name!r}{why}") from None


def _module_at(path: Path) -> Any:
    if not path.is_file():
        raise LookupError(f"no file {path}")
    # A name of its own for every path: two files called layer.py are two modules, each imported once. Made of letters
    # alone, for TorchScript and pickle write it into what they save.
    name = f"layer_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)  # for the files beside it; last, to hide nothing
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None  # a .py file always has a loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def seeded(seed: int) -> torch.Generator:
    """A CPU generator: the same inputs for every variant, process and device."""
    return torch.Generator().manual_seed(seed)
