"""The checker is tested with layers that are wrong: each must be rejected, and for its own reason."""

from __future__ import annotations

import random
import re
import weakref
from dataclasses import replace
from typing import Any

import faulty_layers as faulty
import pytest
import torch
from torch import Tensor, nn

from bench.bounds import BOUNDS, Wrong, bound_for
from bench.check import check, check_last, eager_warnings
from bench.model import Case, Direction, Policy
from bench.reference import Reference, ReferenceFailed, relative_error, required
from bench.session import made_for
from bench.task import NoGradient, Task, placed
from bench.trials import non_contiguous
from layers import Layer, load
from layers.variants import make

CPU = torch.device("cpu")


def examine(layer: Layer, variant: str = "native", dtype: str = "float32", gradients: bool = True) -> float:
    made = make(layer, variant, {}, dtype=getattr(torch, dtype), device=CPU, seed=0)
    reference = Reference.of(layer, dict(layer.defaults), made, CPU)
    direction = Direction.BACKWARD if gradients else Direction.INFERENCE
    return check(made, reference, variant=variant, dtype=dtype, bound=BOUNDS[dtype], direction=direction)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("layer", [faulty.DOUBLE, faulty.LINEAR], ids=lambda layer: layer.name)
def test_a_right_layer_passes_in_every_dtype(layer: Layer, dtype: str) -> None:
    assert examine(layer, dtype=dtype) <= BOUNDS[dtype]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (faulty.OTHER_DTYPE, "output is float32 where eager's is float64"),
        (faulty.KEEPS_FLOAT32, "output is float64 where eager's is float32"),
        (faulty.STRIDE_BLIND, "gradient of input 0, the timed inputs, expanded output gradient"),
        (faulty.TIMES_FOR_PLUS, "output, the timed inputs: relative error"),
        (faulty.STATIC_OUTPUT, "overwrites its earlier output"),
        (faulty.FORGETS, "buffer mean after a call: relative error"),
        (faulty.NEVER_ASSIGNS, "buffer mean after a call: relative error"),
        (faulty.SEVERAL_WRONG, "output, the timed inputs: relative error 0.1"),
        (faulty.NAN, "output, the timed inputs: relative error NaN: 32 of 32 are NaN, 0 of 32 are NaN wanted"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_wrong_layer_is_rejected_for_its_own_fault(layer: Layer, words: str) -> None:
    with pytest.raises(Wrong, match=re.escape(words)):
        examine(layer, dtype="float64")


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layer", faulty.UNUSUAL, ids=lambda layer: layer.name)
def test_a_right_layer_is_right_however_unusual(layer: Layer, direction: Direction) -> None:
    case = Case(layer.name, "eager", (), "float32", "cpu", 1, direction)
    made = made_for(case, Policy(), layer)
    reference = Reference.of(layer, dict(layer.defaults), made, CPU)
    bound = BOUNDS["float32"]
    assert check(made, reference, variant="eager", dtype="float32", bound=bound, direction=direction) <= bound
    task = Task(made, direction)
    with task.grad_mode():
        for _ in range(3):
            task.touch()
    check_last(task, reference, direction, bound)


def test_gradients_that_arrive_nowhere_are_no_gradient_path() -> None:
    assert examine(faulty.NOTHING_ARRIVES, gradients=False) == 0
    with pytest.raises(NoGradient, match="no gradient path: none arrives"):
        examine(faulty.NOTHING_ARRIVES)


def test_inputs_that_ignore_their_generator_are_refused() -> None:
    with pytest.raises(ValueError, match="other values each time for the same generator"):
        examine(faulty.CARELESS, "eager")


def test_float32_inside_and_kinks_are_no_wrong_gradients() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for seed in range(6):
            for layer in (*faulty.FLOAT32_INSIDE, faulty.PERCEPTRON):
                made = make(layer, "eager", {}, dtype=dtype, device=CPU, seed=seed)
                reference = Reference.of(layer, dict(layer.defaults), made, CPU)
                assert eager_warnings(reference, made.inputs, gradients=True) == (), (layer.name, dtype, seed)


@pytest.mark.parametrize("layer", [*faulty.UNUSUAL, faulty.LINEAR, load("shift")], ids=lambda layer: layer.name)
def test_right_gradients_are_the_slope_that_finite_differences_find(layer: Layer) -> None:
    made = make(layer, "eager", {}, dtype=torch.float32, device=CPU, seed=0)
    assert eager_warnings(Reference.of(layer, dict(layer.defaults), made, CPU), made.inputs, gradients=True) == ()


def test_an_eager_layer_that_is_compared_only_with_itself_is_told_of_a_wrong_gradient() -> None:
    case = Case("slipped", "eager", (), "float32", "cpu", 1, Direction.FORWARD_BACKWARD)
    made = made_for(case, Policy(), faulty.SLIPPED)
    (warning,) = eager_warnings(Reference.of(faulty.SLIPPED, {"n": 8}, made, CPU), made.inputs, gradients=True)
    assert re.match(r"its gradients are at least \d+ % off its finite differences, and without a `reference`", warning)


def test_a_layer_that_gives_float32_whatever_it_is_given_is_told_that_its_reference_is_no_float64() -> None:
    made = make(faulty.UPCASTS, "eager", {}, dtype=torch.float32, device=CPU, seed=0)
    (warning,) = eager_warnings(Reference.of(faulty.UPCASTS, {"n": 8}, made, CPU), made.inputs, gradients=True)
    assert warning.startswith("gives float32 whatever it is given")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_output_may_have_any_dtype_if_eagers_has_it(dtype: str) -> None:
    assert examine(faulty.UPCASTS, "eager", dtype) <= BOUNDS[dtype]
    with pytest.raises(Wrong, match=f"output is {dtype} where eager's is float32"):
        examine(faulty.KEEPS_FLOAT32, dtype=dtype)
    largest = Layer("largest", {"eager": faulty.Largest}, faulty.one, defaults={"n": 8})
    assert examine(largest, "eager", dtype, gradients=False) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_rounding_takes_eager_itself_to_is_not_held_against_a_variant(dtype: str) -> None:
    assert BOUNDS[dtype] < examine(faulty.PERCEPTRON, dtype=dtype) < 0.2
    with pytest.raises(Wrong, match=r"relative error 0\.\d+ over"):
        examine(faulty.LEAKY, dtype=dtype)


@pytest.mark.parametrize("layer", [faulty.STATIC_SQUARE, faulty.STATIC_ROWS], ids=lambda layer: layer.name)
def test_an_overwritten_output_is_found_whatever_the_inputs_are(layer: Layer) -> None:
    with pytest.raises(Wrong, match="overwrites its earlier output"):
        examine(layer, gradients=False)


@pytest.mark.parametrize("layer", faulty.SPARSE, ids=["sparse", "its reference"])
def test_sparse_gradients_are_compared_as_dense_ones(layer: Layer) -> None:
    assert examine(layer) <= BOUNDS["float32"]


def test_complex_weights_are_refused_for_a_cast_would_halve_them() -> None:
    with pytest.raises(TypeError, match=r"weight turn is complex: .* torch\.view_as_complex"):
        examine(faulty.COMPLEX, "eager")


def test_a_reference_that_fails_is_not_the_variants_fault() -> None:
    with pytest.raises(
        ReferenceFailed, match=r"which is made from eager, failed: RuntimeError: .*give the layer a `re"
    ):
        examine(faulty.SINGLE_PRECISION, "eager")
    wrong: dict[str, Any] = {
        r"the layer's reference failed: TypeError: .*; it is called as reference\(state, \*inputs": lambda x, n: x,
        "the layer's reference returned NoneType, not a tensor": lambda state, x, n: None,
    }
    for words, reference in wrong.items():
        with pytest.raises(ReferenceFailed, match=words):
            examine(replace(faulty.DOUBLE, reference=reference))


def test_a_layer_that_remembers_its_answer_is_rejected() -> None:
    with pytest.raises(Wrong, match="new values in the same inputs"):
        examine(faulty.BY_ADDRESS, gradients=False)
    with pytest.raises(Wrong, match="remembers its answer"):
        examine(faulty.BY_TENSOR, gradients=False)
    assert examine(faulty.KEPT_POSITIONS, gradients=False) == 0  # no values are in what it keeps


def test_a_random_layer_is_told_so_and_is_none_in_inference() -> None:
    for layer, dtype in ((faulty.RANDOM, "float32"), (faulty.HARDLY_RANDOM, "bfloat16")):
        with pytest.raises(Wrong, match="is the layer random"):
            examine(layer, "eager", dtype)
    case = Case("random", "eager", (), "float32", "cpu", 1, Direction.INFERENCE)
    made = made_for(case, Policy(), faulty.RANDOM)
    assert not made.module.training
    reference = Reference.of(faulty.RANDOM, {"n": 8}, made, CPU)
    assert check(made, reference, variant="eager", dtype="float32", bound=1e-6, direction=Direction.INFERENCE) <= 1e-6


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_integers_are_exact(dtype: str) -> None:
    layer = load("shift")
    made = make(layer, "eager", {"length": 9}, dtype=getattr(torch, dtype), device="cpu", seed=0)
    reference = Reference.of(layer, {**layer.defaults, "length": 9}, made, CPU)
    assert bound_for(dtype, tf32=False) == 0
    assert check(made, reference, variant="eager", dtype=dtype, bound=0.0, direction=Direction.INFERENCE) == 0


def test_an_empty_output_is_right_after_timing_too() -> None:
    layer = load("shift")
    made = make(layer, "eager", {"length": 0}, dtype=torch.float32, device="cpu", seed=0)
    task, reference = (
        Task(made, Direction.FORWARD_BACKWARD),
        Reference.of(layer, dict(layer.defaults, length=0), made, CPU),
    )
    task.touch()
    check_last(task, reference, Direction.FORWARD_BACKWARD, 1e-6)


def test_a_task_is_freed_with_its_last_name() -> None:
    made = make(faulty.LINEAR, "eager", {}, dtype=torch.float32, device="cpu", seed=0)
    for direction in Direction:
        task = Task(made, direction)
        task.touch()
        gone = weakref.ref(task)
        del task
        assert gone() is None, direction


def test_a_layer_that_changes_its_input_is_rejected() -> None:
    with pytest.raises(Wrong, match="modifies its input 0"):
        examine(faulty.IN_PLACE, gradients=False)


def test_a_trace_of_a_branch_on_the_data_is_rejected() -> None:
    with pytest.raises(Wrong, match="relative error"):
        examine(faulty.SIGN_OF_MEAN, "trace")
    assert examine(faulty.SIGN_OF_MEAN, "eager") <= BOUNDS["float32"]


def test_an_output_that_is_no_tensor_is_named_by_its_type_and_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"returned list, not a tensor \(give the layer an `output`, as `lambda result"):
        examine(faulty.NOT_A_TENSOR)
    with pytest.raises(TypeError, match=r"returned tuple, not a tensor \(its `output` must say which one is meant\)"):
        examine(replace(faulty.SEVERAL, output=lambda result: result, reference=lambda state, x, n: x))


def output_of(task: Task) -> Tensor:
    task.touch()
    return required(task.output, faulty.DOUBLE)


@pytest.mark.parametrize("direction", Direction)
def test_a_call_that_gives_no_tensor_says_so_in_every_direction(direction: Direction) -> None:
    wrong = replace(faulty.SEVERAL, output=lambda result: result)
    for layer, variant, words in (
        (faulty.NO_RETURN, "native", r"returned NoneType, not a tensor \(does its forward return it\?\)"),
        (faulty.SEVERAL, "eager", r"returned tuple, not a tensor \(give the layer an `output`"),
        (wrong, "eager", r"returned tuple, not a tensor \(its `output` must say which one is meant\)"),
    ):
        task = Task(make(layer, variant, {}, dtype=torch.float32, device=CPU, seed=0), direction)
        with pytest.raises(TypeError, match=words), task.grad_mode():
            output_of(task)


def test_outputs_that_are_overwritten_are_seen_behind_an_output_that_copies_them() -> None:
    with pytest.raises(Wrong, match="overwrites its earlier output when called again"):
        examine(faulty.STATIC_PAIR, gradients=False)


@pytest.mark.parametrize("direction", Direction)
def test_of_several_outputs_the_one_that_is_meant_is_kept_and_selecting_it_is_timed_in_no_forward_pass(
    direction: Direction,
) -> None:
    asked = []

    def first(result: tuple[Tensor, Tensor]) -> Tensor:
        asked.append(1)
        return result[0]

    made = make(replace(faulty.SEVERAL, output=first), "eager", {}, dtype=torch.float32, device=CPU, seed=0)
    task = Task(made, direction)
    with task.grad_mode():
        task.prepare()
        task.repeat(1)
    assert bool(asked) is direction.needs_gradient
    assert task.output is not None
    torch.testing.assert_close(task.output, made.module(*made.inputs)[0])


def test_a_layer_without_a_gradient_is_right_forward_and_has_none_backward() -> None:
    assert examine(faulty.DETACHED, gradients=False) == 0
    with pytest.raises(NoGradient, match="no gradient path"):
        examine(faulty.DETACHED)


def test_the_last_timed_output_is_checked_too() -> None:
    made = make(faulty.NAN_LATER, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    reference = Reference.of(faulty.NAN_LATER, {"n": 8}, made, CPU)
    task = Task(made, Direction.FORWARD)
    task()
    check_last(task, reference, Direction.FORWARD, BOUNDS["float32"])
    for _ in range(40):
        task()
    with pytest.raises(Wrong, match="output after timing: relative error NaN"):
        check_last(task, reference, Direction.FORWARD, BOUNDS["float32"])


@pytest.mark.parametrize("direction", [Direction.INFERENCE, Direction.FORWARD, Direction.FORWARD_BACKWARD])
def test_an_output_is_freed_before_the_next_call(direction: Direction) -> None:
    made = make(faulty.LINEAR, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    outputs: list[weakref.ref[Tensor]] = []

    def call(x: Tensor) -> Tensor:
        assert all(output() is None for output in outputs)
        output: Tensor = made.module(x)
        outputs.append(weakref.ref(output))
        return output

    task = Task(replace(made, call=call), direction)
    for _ in range(3):
        task.touch()
        task.place(random.Random(0))
    assert len(outputs) == 3
    if not direction.needs_gradient:
        task.repeat(4)
        assert len(outputs) == 7
        assert outputs[-1]() is task.output


@pytest.mark.parametrize("direction", [Direction.BACKWARD, Direction.FORWARD_BACKWARD])
def test_gradients_do_not_accumulate_over_calls(direction: Direction) -> None:
    made = make(faulty.LINEAR, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    reference = Reference.of(faulty.LINEAR, {"n": 8}, made, CPU)
    task = Task(made, direction)
    for _ in range(3):
        task.prepare()
        task()
    check_last(task, reference, direction, BOUNDS["float32"])
    weight = task.leaves()["weight"]
    assert weight.grad is not None
    weight.grad *= 2
    with pytest.raises(Wrong, match="gradient of weight after timing"):
        check_last(task, reference, direction, BOUNDS["float32"])


def test_a_parameter_that_the_first_call_puts_in_place_of_another_has_its_gradient_cleared_too() -> None:
    made = make(faulty.LINEAR, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    task = Task(made, Direction.FORWARD_BACKWARD)
    with task.grad_mode():
        task.touch()
    made.module.weight = nn.Parameter(made.module.get_parameter("weight").detach().clone())
    with task.grad_mode():
        task.touch()
        grad = made.module.weight.grad
        assert grad is not None
        once = grad.clone()
        task.touch()
    torch.testing.assert_close(made.module.weight.grad, once)


def test_inputs_need_no_gradient_where_the_suite_says_so() -> None:
    made = make(faulty.LINEAR, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    assert list(Task(made, Direction.FORWARD, input_gradients=False).leaves()) == ["weight"]
    made = make(faulty.DOUBLE, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    assert list(Task(made, Direction.FORWARD, input_gradients=False).leaves()) == ["input 0"]


def test_an_error_of_nan_is_over_every_bound() -> None:
    assert not relative_error(torch.tensor([float("nan")]), torch.tensor([1.0]).double()) <= 1e9


def test_the_relative_error_is_a_frobenius_norm() -> None:
    assert relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]).double()) == pytest.approx(0.2)
    assert relative_error(torch.zeros(2), torch.zeros(2).double()) == 0
    assert relative_error(torch.ones(2), torch.zeros(2).double()) == float("inf")
    assert relative_error(torch.zeros(0), torch.zeros(0).double()) == 0


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4, 5), (0, 3), (2, 0)])
def test_non_contiguous_inputs_hold_the_same_values(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    strided = non_contiguous(x)
    assert torch.equal(strided, x)
    assert strided.is_contiguous() == (x.numel() == 0)


@pytest.mark.parametrize("lines", [0, 1, 63])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8])
def test_placing_keeps_values_and_strides_and_aligns_to_a_cache_line(lines: int, dtype: torch.dtype) -> None:
    for x in (torch.randn(3, 5, 7).to(dtype), torch.randn(2, 3, 4, 5).to(dtype, memory_format=torch.channels_last)):
        copy = placed(x, lines)
        assert torch.equal(copy, x)
        assert copy.stride() == x.stride()
        assert copy.data_ptr() % 64 == 0
        assert copy.data_ptr() != x.data_ptr()


def test_placing_works_for_empty_and_expanded_inputs() -> None:
    for x in (torch.randn(0, 3), torch.randn(3, 1).expand(3, 4), torch.randn(())):
        assert torch.equal(placed(x, 3), x)
