"""Loads the native libraries, and tells torch.compile and friends what their operators return.

`torch.ops.layerbench` then has `shift`, `vecadd`, `unfold_conv2d`, `unfold_conv2d_grad_input` and
`unfold_conv2d_grad_weight`; ext/bindings/schema.h says what they take. `torch.ops.layerbench_stable` and
`torch.ops.layerbench_py` have the same with gradients registered in Python; ext/pybind.py has what is bound without
torch.ops.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ext import build, register

_lock = threading.RLock()
_loaded: dict[build.Library, Any] = {}
_schemas: list[torch.library.Library] = []  # kept alive


def load(which: build.Library = build.OPS) -> Any:
    """Make a library's operators usable, building it first if need be; the module, where it is one. Free when done
    before.

    Raises BuildError.
    """
    with _lock:
        if which not in _loaded:
            _loaded[which] = _LOADERS[which](build.library(which) or build.build(which=which))
        return _loaded[which]


def _register(namespace: str) -> None:
    register.fakes(namespace)
    register.batches(namespace)


def _load_library(path: Path, namespace: str) -> None:
    if hasattr(getattr(torch.ops, namespace), "shift"):  # a second library of the same ends the process
        raise build.BuildError(
            f"torch.ops.{namespace} has operators already, of a library that was not loaded here (by importing "
            "layerbench_ops, or by torch.ops.load_library): load none, or use that one without ext.ops"
        )
    torch.ops.load_library(str(path))
    _register(namespace)


def _load_ops(path: Path) -> None:
    _load_library(path, "layerbench")


def _load_stable(path: Path) -> None:
    _load_library(path, "layerbench_stable")
    register.gradients("layerbench_stable")


def _load_python(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(build.PYTHON.name, path)
    assert spec is not None
    assert spec.loader is not None  # a .so file has a loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    load()  # for the schemas
    _schemas.append(register.schemas("layerbench_py"))
    _register("layerbench_py")
    register.gradients("layerbench_py")
    return module


_LOADERS = {build.OPS: _load_ops, build.STABLE: _load_stable, build.PYTHON: _load_python}
