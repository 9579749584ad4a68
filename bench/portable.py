"""The tries behind portability.py. Each runs in a process of its own and answers an outcome and a reason."""

from __future__ import annotations

import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.ours import PLACES

Answer = tuple[str, str]  # a Cell

TOLERANCE = 1e-4  # relative; float32


class Wrong(Exception):
    """It runs, and what comes out is not what was saved."""


class NotApplicable(Exception):
    """There is nothing to try."""


def answer(question: str, *arguments: Any) -> Answer:
    """Try one thing; whatever is raised is the reason why it does not work."""
    _hush()
    try:
        return "yes", TRIES[question](*arguments) or ""
    except NotApplicable as reason:
        return "n/a", str(reason)
    except Exception as error:
        return "no", _reason(error)


def facts() -> str:
    """torch's version, then the devices."""
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.__version__} {', '.join(['CPU', *devices])}"


def save(folder: str, name: str, variant: str, form: str, params: dict[str, Any]) -> None:
    """Write the model, and what it must do after loading."""
    import layers
    from layers import shipping
    from layers.variants import draw, make

    layer = layers.load(name)
    options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu", "seed": 0}
    try:
        made = make(layer, "eager" if form == "package" else variant, params, **options)
    except layers.Unavailable as reason:
        raise NotApplicable(str(reason)) from None
    if layer.output is not None:
        raise NotApplicable("the layer returns more than a tensor")
    module: Any = made.call
    if form == "pickle":
        torch.save(module, Path(folder) / "model.pt")
    elif form == "package":
        shipping.package(module, made.inputs, Path(folder) / "model.pt2")
    else:
        scripted = module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module)
        torch.jit.save(scripted, str(Path(folder) / "model.pt"))
    eager = make(layer, "eager", params, **options)
    complete = {**layer.defaults, **params}
    drawn = [draw(factory, complete, seed=1, dtype=torch.float32, device="cpu") for factory in layer.draws]
    shapes = [x.shape for x in made.inputs]
    others = next((one for one in drawn if [x.shape for x in one] != shapes), None)
    inputs = [x.requires_grad_(x.is_floating_point()) for x in made.inputs]
    output = eager.call(*inputs)
    output.mean().backward()
    trained = [x for x in (*inputs, *eager.module.parameters()) if x.requires_grad]
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in trained]
    inputs = [x.detach() for x in inputs]
    torch.save(inputs, Path(folder) / "inputs.pt")
    torch.save(output.detach(), Path(folder) / "output.pt")
    known = {"inputs": inputs, "output": output.detach(), "gradients": gradients, "others": others}
    known["other output"] = eager.call(*others).detach() if others else None
    torch.save(known, Path(folder) / "known.pt")


def python(folder: str, form: str, library: str = "") -> None:
    """Load it where this project's Python is not, and run it."""
    model, known = _load(folder, form, library)
    with torch.no_grad():
        _same(model(*known["inputs"]), known["output"], "output")


def train(folder: str, form: str, library: str = "") -> None:
    """A training step: gradients of inputs and parameters."""
    model, known = _load(folder, form, library)
    for _ in range(3):  # TorchScript's profiling executor replaces the graph after the first calls
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in known["inputs"]]
        output = model(*inputs)
        if not output.requires_grad:
            raise Wrong("the output has no graph")
        trained = [x for x in (*inputs, *getattr(model, "parameters", list)()) if x.requires_grad]
        gradients = torch.autograd.grad(output.mean(), trained, allow_unused=True)
    largest = max(float(torch.linalg.vector_norm(one)) for one in known["gradients"])
    for got, wanted in zip(gradients, known["gradients"], strict=True):
        if got is None and wanted.any():
            raise Wrong("no gradient arrives, and no error says so")
        _same(torch.zeros_like(wanted) if got is None else got, wanted, "gradient", largest)


def device(folder: str, form: str, library: str = "") -> None:
    """On the GPU what was saved on the CPU."""
    if not torch.cuda.is_available():
        raise NotApplicable("this machine has one device")
    model, known = _load(folder, form, library, "cuda")
    with torch.no_grad():
        _same(model(*(x.cuda() for x in known["inputs"])).cpu(), known["output"], "output")


def batch(folder: str, form: str, library: str = "") -> None:
    """Inputs of another shape than the example's."""
    model, known = _load(folder, form, library)
    if known["others"] is None:
        raise NotApplicable("the layer draws one shape only")
    with torch.no_grad():
        _same(model(*known["others"]), known["other output"], "output")


TRIES: dict[str, Callable[..., str | None]] = {
    "facts": facts,
    "save": save,
    "python": python,
    "train": train,
    "device": device,
    "batch": batch,
}


def _load(folder: str, form: str, library: str, where: str = "cpu") -> tuple[Any, dict[str, Any]]:
    _forget_this_project()
    if library:
        torch.ops.load_library(library)
    known = torch.load(Path(folder) / "known.pt")
    if form == "pickle":
        return torch.load(Path(folder) / "model.pt", weights_only=False, map_location=where), known
    if form == "package":
        return torch._inductor.aoti_load_package(str(Path(folder) / "model.pt2")), known
    return torch.jit.load(str(Path(folder) / "model.pt"), map_location=where), known


class _Absent:
    """An import hook for which this project is not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name.partition(".")[0] in PLACES:
            raise ModuleNotFoundError(f"No module named {name!r}")


def _forget_this_project() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("layers", "ext")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Absent())


def _same(got: Tensor, wanted: Tensor, what: str, largest: float = 0.0) -> None:
    """Raises Wrong. What is much smaller than the `largest` of its likes may be a zero that was rounded."""
    if got.shape != wanted.shape:
        raise Wrong(f"wrong {what}: shape {tuple(got.shape)}, not {tuple(wanted.shape)}")
    error = (
        torch.linalg.vector_norm(got - wanted) / torch.linalg.vector_norm(wanted).clamp(min=1e-3 * largest or 1e-30)
    ).item()
    if not error <= TOLERANCE:
        raise Wrong(f"wrong {what}: off by {error:.2g}")


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    told = [line for line in lines if "Error: " in line]  # under a TorchScript traceback
    if "TorchScript" in lines[0] and told:
        return textwrap.shorten(told[-1], 200, placeholder=" …")
    plain = type(error).__name__ in ("Wrong", "Unavailable")
    return textwrap.shorten(lines[0] if plain else f"{type(error).__name__}: {lines[0]}", 200, placeholder=" …")


def _hush() -> None:
    """Warnings and compilers' words are nobody's to read here: the answer has the reason."""
    warnings.simplefilter("ignore")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
