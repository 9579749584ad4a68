"""Saving a layer for where there is no Python, and running it there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from layers import Inputs, Unavailable
from layers.program import Program


def package(module: nn.Module, inputs: Inputs, path: Path) -> None:
    """Compile for the shapes, dtypes and device of `inputs` into an AOTInductor package; `path` ends in .pt2.

    Unavailable where torch.export cannot capture the module; what the compiler raises passes through.
    """
    with torch.no_grad():  # it compiles inference only
        try:
            exported = torch.export.export(module, inputs)
        except Exception as error:
            raise Unavailable(f"torch.export: {str(error).strip().splitlines()[0]}") from error
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


def program(save: Callable[[Path], None], suffix: str, module: nn.Module, inputs: Inputs) -> Program:
    """What `save` writes, loaded by the C++ program, with the gradients that `module` has."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    with tempfile.TemporaryDirectory(prefix="layerbench-") as folder:
        path = Path(folder) / f"model{suffix}"
        save(path)
        return Program(path, inputs[0].device, parameters)  # has read it whole once it answers
