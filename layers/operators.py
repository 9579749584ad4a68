"""The native libraries of ours that variants are on: which one, and having it built and loaded."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from layers import Layer, Unavailable

if TYPE_CHECKING:
    from ext import build


def library(layer: Layer, name: str) -> build.Library | None:
    """The native library of ours that variant `name` of a layer is on, if it is on one."""
    if name not in layer.versions or layer.op is None or not layer.op.startswith("layerbench::"):
        return None
    # Here: without a compiler everything else still works, and a layer without an operator waits for no import.
    from ext import build

    python = build.PYTHON
    return {"custom_op": build.OPS, "custom_op_py": python, "stable_abi": build.STABLE, "pybind": python}.get(name)


def build_for(layer: Layer, name: str) -> float:
    """Build the native library of variant `name`, where it is on one that is yet to be built; the seconds."""
    start = time.perf_counter()
    if which := library(layer, name):
        from ext import build

        with suppress(build.BuildError):  # loading it says why
            build.build(which=which)
    return time.perf_counter() - start


def load(which: build.Library, device: torch.device) -> None:
    """Register its operators. Unavailable where they cannot be built, or not for the device."""
    from ext import build, ops

    try:
        ops.load(which)
        reason = build.cuda_reason(which) if device.type == "cuda" else None  # known once built: nvcc may have failed
    except build.BuildError as error:
        raise Unavailable(str(error).splitlines()[0]) from error  # the rest is the compiler's output
    if reason is not None:
        raise Unavailable(reason)
