import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layers
from layers import Layer, variants
from layers.variants import Made

LAYERS = {name: layers.load(name) for name in layers.BUILTIN}
SMALL: dict[str, dict[str, Any]] = {
    "unfold_conv2d": {"batch": 2, "size": 7, "in_channels": 2, "out_channels": 3, "padding": 1},
    "shift": {"rows": 3, "length": 17, "k": 4},
    "vecadd": {"length": 33},
    "sign_gate": {"n": 5, "m": 7},
}
# Relative Frobenius norm. Half precision rounds after each of a few additions; the wider ones sum in another order.
BOUNDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
COMPILED = "compile"  # each costs seconds of C++ compiler: once per layer, not once per dtype
PAIRS = [
    *((layer, variant) for layer in LAYERS for variant in ("jit_script", "trace")),
    *((layer, variant) for layer in LAYERS for variant in LAYERS[layer].versions),
]
in_every_version = pytest.mark.parametrize(("layer", "variant"), PAIRS)


def made(layer: str, variant: str, dtype: torch.dtype = torch.float32, seed: int = 0, **params: Any) -> Made:
    return variants.make(LAYERS[layer], variant, {**SMALL[layer], **params}, dtype=dtype, device="cpu", seed=seed)


def drawn(
    layer: str, factory: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype, seed: int = 1
) -> tuple[Tensor, ...]:
    params = variants.complete(LAYERS[layer], SMALL[layer])
    return variants.draw(factory, params, seed=seed, dtype=dtype, device="cpu")


def error(got: Tensor, right: Tensor) -> float:
    assert got.shape == right.shape
    difference = torch.linalg.vector_norm(got.double() - right)
    return difference.item() / torch.linalg.vector_norm(right).item() if difference != 0 else 0.0


def worst_error(layer: Layer, it: Made, inputs: tuple[Tensor, ...], params: dict[str, Any]) -> float:
    """The largest error among the output and the gradients of every input and weight, for a random output gradient."""
    assert layer.reference is not None
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    state = {name: weight.clone().requires_grad_() for name, weight in it.state.items()}
    out, right = it.call(*inputs), layer.reference(state, *exact, **variants.complete(layer, params))
    assert out.dtype == inputs[0].dtype
    gradient = torch.randn(right.shape, generator=layers.seeded(9)).to(out.dtype)
    weights = dict(it.module.named_parameters())
    got = torch.autograd.grad(out, [*inputs, *(weights[name] for name in state)], gradient)
    wanted = torch.autograd.grad(right, [*exact, *state.values()], gradient.double())
    pairs = [(out, right), *zip(got, wanted, strict=True)]
    return max(error(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@in_every_version
def test_every_version_gives_the_right_output_and_gradients_in_every_dtype(
    layer: str, variant: str, dtype: torch.dtype
) -> None:
    it = made(layer, variant, dtype)
    assert worst_error(LAYERS[layer], it, it.inputs, SMALL[layer]) <= BOUNDS[dtype]
    assert worst_error(LAYERS[layer], it, drawn(layer, LAYERS[layer].inputs, dtype), SMALL[layer]) <= BOUNDS[dtype]


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_layers_give_the_right_output_and_gradients(layer: str) -> None:
    params = {**SMALL[layer], "in_channels": 1, "out_channels": 2} if layer == "unfold_conv2d" else SMALL[layer]
    torch._dynamo.utils.counters.clear()
    it = variants.make(LAYERS[layer], COMPILED, params, dtype=torch.float32, device="cpu", seed=0)
    assert worst_error(LAYERS[layer], it, it.inputs, params) <= BOUNDS[torch.float32]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # and not quietly run as it was


@in_every_version
def test_the_extra_draws_of_a_layer_are_right_in_every_version_but_the_traced_sign_gate(
    layer: str, variant: str
) -> None:
    it = made(layer, variant)
    for factory in LAYERS[layer].draws:
        inputs = drawn(layer, factory, torch.float32)
        if (layer, variant) == ("sign_gate", "trace"):
            assert it.call(*inputs).shape != made(layer, "eager").call(*inputs).shape
        else:
            assert worst_error(LAYERS[layer], it, inputs, SMALL[layer]) <= BOUNDS[torch.float32]


@in_every_version
def test_no_version_modifies_its_inputs(layer: str, variant: str) -> None:
    it = made(layer, variant)
    before = [x.clone() for x in it.inputs]
    it.call(*it.inputs)
    assert all(torch.equal(x, old) for x, old in zip(it.inputs, before, strict=True))


@pytest.mark.parametrize("layer", LAYERS)
def test_all_versions_hold_the_same_weights_under_the_same_names(layer: str) -> None:
    eager = made(layer, "eager").module.state_dict()
    for variant in (COMPILED, *(variant for name, variant in PAIRS if name == layer)):
        state = made(layer, variant).module.state_dict()
        assert list(state) == list(eager)
        assert all(torch.equal(state[name], eager[name]) for name in eager)


@pytest.mark.parametrize("layer", LAYERS)
def test_gradcheck_passes_for_the_eager_layer(layer: str) -> None:
    it = made(layer, "eager", torch.float64)
    inputs = [x.requires_grad_() for x in it.inputs]
    assert torch.autograd.gradcheck(it.call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(it.call, inputs, fast_mode=True)


GEOMETRIES: list[dict[str, Any]] = [
    {"batch": 1},
    {"batch": 3, "stride": 2},
    {"batch": 2, "padding": 2, "dilation": 2},
    {"batch": 2, "kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 1), "dilation": (1, 3)},
    {"batch": 2, "kernel_size": 1, "bias": False},
    {"batch": 0},
]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("variant", ["eager", "script", "jit_script", "trace", "custom_op", "native"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_unfold_conv2d_equals_conv2d_for_every_geometry_and_dtype(
    geometry: dict[str, Any], variant: str, dtype: torch.dtype
) -> None:
    params: dict[str, Any] = {"size": 9, "padding": 0, **geometry}
    it = made("unfold_conv2d", variant, dtype, **params)
    kernel = params.get("kernel_size", 3)
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    weight, bias = it.state["weight"].unflatten(2, kernel), it.state.get("bias")
    right = F.conv2d(
        it.inputs[0].double(), weight, bias, params.get("stride", 1), params["padding"], params.get("dilation", 1)
    )
    out = it.call(*it.inputs)
    assert out.dtype == dtype
    assert error(out, right) <= BOUNDS[dtype]


def test_unfold_conv2d_starts_from_the_weights_of_conv2d() -> None:
    it = made("unfold_conv2d", "eager", seed=3)
    torch.manual_seed(3)
    conv = nn.Conv2d(2, 3, 3)
    assert conv.bias is not None
    assert torch.equal(it.module.get_parameter("weight").unflatten(2, (3, 3)), conv.weight)
    assert torch.equal(it.module.get_parameter("bias"), conv.bias)


@pytest.mark.parametrize("variant", ["eager", "script", "custom_op"])
def test_unfold_conv2d_refuses_another_number_of_channels(variant: str) -> None:
    it = made("unfold_conv2d", variant)
    with pytest.raises(RuntimeError):
        it.call(torch.randn(2, 4, 7, 7))  # twice as many channels: a view with -1 would accept it


SHIFT_VARIANTS = ["eager", "script", "jit_script", "trace", "custom_op", "native"]


def shift_for(variant: str, k: int, x: Tensor) -> variants.Call:
    """`variant` made for inputs like `x`: a trace holds for as many dimensions as its example had."""
    layer = dataclasses.replace(LAYERS["shift"], inputs=lambda generator, **_: (x.clone(),))
    return variants.make(layer, variant, {"k": k}, dtype=torch.float32, device="cpu", seed=0).call


@pytest.mark.parametrize("k", [-12, -10, -3, 0, 3, 10, 12])
@pytest.mark.parametrize("variant", SHIFT_VARIANTS)
def test_shift_takes_any_k_and_any_shape(variant: str, k: int) -> None:
    for x in (torch.randn(10), torch.randn(2, 3, 10), torch.randn(10, 4).t(), torch.randn(4, 1).expand(4, 10)):
        n = x.size(-1)
        right = torch.zeros(x.shape)
        for i in range(n):
            if 0 <= i - k < n:
                right[..., i] = x[..., i - k]
        assert torch.equal(shift_for(variant, k, x)(x), right)
    for shape in ((0,), (3, 0), (0, 5)):
        empty = torch.randn(shape)
        assert shift_for(variant, k, empty)(empty).shape == shape


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
@pytest.mark.parametrize("variant", SHIFT_VARIANTS)
def test_shift_takes_integers(variant: str, dtype: torch.dtype) -> None:
    it = made("shift", variant, dtype, k=2)
    (x,) = it.inputs
    assert x.dtype == dtype
    assert x.count_nonzero() > x.numel() / 2
    assert torch.equal(it.call(x), F.pad(x[..., :-2], (2, 0)))


@pytest.mark.parametrize("variant", ["eager", "script", "jit_script", "custom_op"])
def test_vecadd_refuses_shapes_that_would_broadcast(variant: str) -> None:
    with pytest.raises((ValueError, RuntimeError, torch.jit.Error), match="shape"):
        made("vecadd", variant).call(torch.randn(3), torch.randn(1))


@pytest.mark.parametrize("seed", range(20))
def test_the_sum_that_decides_the_sign_gate_is_never_near_zero(seed: int) -> None:
    (x,) = drawn("sign_gate", LAYERS["sign_gate"].inputs, torch.bfloat16, seed)
    assert x.float().mean() > 0.4


def test_the_cost_of_the_articles_workload_is_what_its_tensors_hold() -> None:
    layer = LAYERS["unfold_conv2d"]
    assert layer.cost is not None
    cost = layer.cost(4, **variants.complete(layer, {"size": 512}))
    outputs = 16 * 510 * 510
    assert cost.bytes == 4 * (3 * 512 * 512 + 16 * 3 * 9 + 16 + outputs)
    assert cost.flops == 2 * outputs * 3 * 9 + outputs


def test_the_costs_of_the_other_layers_count_each_element_once() -> None:
    def cost(name: str, itemsize: int, **params: Any) -> tuple[float, float]:
        factory = LAYERS[name].cost
        assert factory is not None
        it = factory(itemsize, **params)
        return it.flops, it.bytes

    assert cost("shift", 2, rows=3, length=10, k=-4) == (0, 2 * 3 * (6 + 10))
    assert cost("shift", 4, rows=1, length=10, k=11) == (0, 4 * 10)
    assert cost("vecadd", 8, length=5) == (5, 120)
    assert cost("sign_gate", 4, n=3, m=5) == (30, 4 * 23)
