"""Suites: what a file means, and that every mistake in one is named with its line and a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import layers
from bench.config import LayerLike, load_suite, schema
from bench.model import Case, Direction, Policy, Status, Suite, UserError
from layers.variants import VARIANTS

CONFIGS = Path(__file__).parent.parent / "configs"


@dataclass(frozen=True)
class Stub:
    defaults: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16")


STUBS = {
    "conv": Stub(
        {"batch": 1, "kernel_size": 3, "bias": True, "mode": "zeros", "scale": 1.0}, {"eager": None, "native": None}
    ),
    "plain": Stub(),
    "whole": Stub({"n": 4}, dtypes=("int64",)),
    "none": Stub({"width": None}),
    "floats": Stub({"betas": (0.9, 0.99)}),
    "clash": Stub({"device": "cpu"}),
}


def find(name: str) -> LayerLike:
    if name == "broken":
        raise KeyError("weights")
    if name == "exits":
        raise SystemExit(3)
    if name == "wordy":
        raise ImportError("no such\n  library")
    if name not in STUBS:
        raise LookupError(f"unknown layer {name!r}")
    return STUBS[name]


def load(path: Path, cpus: int = 2) -> Suite:
    return load_suite(path, find_layer=find, layers=tuple(STUBS), variants=("eager", "script", "trace"), cpus=cpus)


@pytest.fixture
def suite(tmp_path: Path) -> Any:
    """`suite(text)` is the suite that a file of this text means."""

    def write(text: str, **options: Any) -> Suite:
        file = tmp_path / "suite.yaml"
        file.write_text(text, encoding="utf-8")
        return load(file, **options)

    return write


@pytest.fixture
def fault(suite: Any, tmp_path: Path) -> Any:
    """`fault(text)` is the error that a file of this text causes, without the folder's name."""

    def write(text: str) -> str:
        with pytest.raises(UserError) as caught:
            suite(text)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return write


def cases(suite: Suite) -> list[Case]:
    return [planned.case for block in suite.blocks for planned in block.cases]


def values(suite: Suite, name: str) -> list[Any]:
    return list(dict.fromkeys(dict(case.params)[name] for case in cases(suite)))


def group(axes: str, layer: str = "conv") -> str:
    """A suite of one group; the axes are on line 4."""
    return f"groups:\n- layer: {layer}\n  axes:\n    {axes}\n"


# What a suite means


def test_what_a_suite_leaves_out_has_its_default(suite: Any) -> None:
    plan = suite("groups: [{layer: conv}]", cpus=6)
    params = (("batch", 1), ("kernel_size", 3), ("bias", True), ("mode", "zeros"), ("scale", 1.0))
    assert (plan.name, plan.policy) == ("suite", Policy())
    assert cases(plan) == [
        Case("conv", "eager", params, "float32", "cpu", 6, Direction.INFERENCE),
        Case("conv", "eager", params, "float32", "cpu", 6, Direction.FORWARD_BACKWARD),
    ]
    assert isinstance(cases(plan)[0].direction, Direction)


def test_blocks_follow_the_axes_as_written_and_cases_the_variant_axis(suite: Any) -> None:
    plan = suite(group("{batch: [2, 1], variant: [script, eager], direction: [backward, inference]}"))
    assert [[planned.case.variant for planned in block.cases] for block in plan.blocks] == [["script", "eager"]] * 4
    firsts = [block.cases[0].case for block in plan.blocks]
    assert [(dict(case.params)["batch"], str(case.direction)) for case in firsts] == [
        (2, "backward"),
        (2, "inference"),
        (1, "backward"),
        (1, "inference"),
    ]
    assert {len({planned.case.setting for planned in block.cases}) for block in plan.blocks} == {1}


def test_parameters_are_complete_and_in_the_order_of_the_layer(suite: Any) -> None:
    (case,) = cases(suite(group("{scale: 2, batch: 5, direction: forward}")))
    assert [name for name, _ in case.params] == ["batch", "kernel_size", "bias", "mode", "scale"]
    assert case.id == "conv[batch=5,kernel_size=3,bias=true,mode=zeros,scale=2.0]/float32/cpu/2t/forward/eager"


def test_a_list_inside_an_axis_is_one_tuple_value(suite: Any) -> None:
    assert values(suite(group("kernel_size: [3, [3, 5]]")), "kernel_size") == [3, (3, 5)]
    assert values(suite(group("kernel_size: [[3, 5]]")), "kernel_size") == [(3, 5)]


def test_threads_auto_means_the_cpus_and_may_equal_a_number(suite: Any) -> None:
    assert {case.threads for case in cases(suite(group("threads: [1, auto]"), cpus=4))} == {1, 4}
    assert len(cases(suite(group("{threads: [1, auto], direction: forward}"), cpus=1))) == 1


def test_the_baseline_is_eager_else_the_first_variant_else_the_one_named(suite: Any) -> None:
    def baselines(text: str) -> set[str]:
        return {block.baseline for block in suite(text).blocks}

    assert baselines(group("variant: [script, eager]")) == {"eager"}
    assert baselines(group("variant: [trace, script]")) == {"trace"}
    assert baselines(group("variant: [eager, script]") + "  baseline: script\n") == {"script"}
    excluded = "  exclude:\n  - {variant: eager, direction: inference}\n"
    assert baselines(group("variant: [eager, script]") + excluded) == {"script", "eager"}


def test_exclude_leaves_out_the_cases_that_match_all_keys_of_an_entry(suite: Any) -> None:
    text = group("{variant: [eager, trace], device: [cpu, cuda, 'cuda:1'], direction: inference}")
    plan = suite(text + "  exclude:\n  - {variant: trace, device: [cuda, 'cuda:1']}\n  - device: cuda\n")
    assert [(case.device, case.variant) for case in cases(plan)] == [
        ("cpu", "eager"),
        ("cpu", "trace"),
        ("cuda:1", "eager"),
    ]


def test_expect_sets_the_status_of_matching_cases_and_the_later_entry_wins(suite: Any) -> None:
    text = group("{variant: [eager, script, trace], direction: inference}")
    entries = "  - {variant: [script, trace], status: failed}\n  - {variant: trace, status: incorrect}\n"
    (block,) = suite(f"{text}  expect:\n{entries}").blocks
    assert [planned.expect for planned in block.cases] == [Status.OK, Status.FAILED, Status.INCORRECT]


def test_the_dtype_is_float32_or_the_first_that_the_layer_takes(suite: Any) -> None:
    assert {case.dtype for case in cases(suite("groups: [{layer: whole}, {layer: plain}]"))} == {"int64", "float32"}


def test_name_and_policy_come_from_the_file(suite: Any) -> None:
    plan = suite(
        "name: Слой-β\ndescription: text\npolicy: {seconds: 2, target: 1e-2, tf32: true}\ngroups: [{layer: plain}]"
    )
    assert plan.name == "Слой-β"
    assert plan.policy == Policy(seconds=2.0, target=0.01, tf32=True)


def test_a_suite_survives_its_own_json(suite: Any) -> None:
    plan = suite(group("{kernel_size: [3, [3, 5]], bias: [true, false], scale: 2}"))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Suite) == plan


def test_yaml_is_read_as_version_1_2(suite: Any) -> None:
    assert values(suite(group("scale: [1e-3, 1E3]")), "scale") == [0.001, 1000.0]
    assert values(suite(group("mode: [no, yes, on, 1:30]")), "mode") == ["no", "yes", "on", "1:30"]
    assert values(suite(group("batch: [010, 0o10]")), "batch") == [10, 8]


def test_anchors_and_merge_keys_work(suite: Any) -> None:
    text = "- layer: conv\n  axes: &both {batch: 2, direction: forward}\n- layer: conv\n  axes: {<<: *both, bias: no}\n"
    assert len(cases(suite("groups:\n" + text.replace("no}", "false}")))) == 2


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_bytes("groups: [{layer: plain}]".encode("utf-8-sig"))
    assert len(cases(load(file))) == 2


# A user's own layer


def test_a_layer_by_path_is_relative_to_the_suite_and_named_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from torch import nn\nimport layers\nMINE = layers.Layer('mine', {'eager': nn.Identity}, inputs=tuple)\n"
    (tmp_path / "suites").mkdir()
    (tmp_path / "own.py").write_text(source, encoding="utf-8")
    file = tmp_path / "suites" / "suite.yaml"
    file.write_text("groups: [{layer: '../own.py:MINE'}]", encoding="utf-8")

    def names() -> set[str]:
        plan = load_suite(file, find_layer=layers.load, layers=layers.BUILTIN, variants=tuple(VARIANTS), cpus=2)
        return {case.layer for case in cases(plan)}

    monkeypatch.chdir(tmp_path)
    assert names() == {"own.py:MINE"}
    monkeypatch.chdir(tmp_path / "suites")
    assert names() == {f"{tmp_path.resolve()}/own.py:MINE"}


@pytest.mark.parametrize("name", ["conv", "pkg.module:CONV", "mine.py:CONV"])
def test_a_layer_in_place_of_a_suite_is_all_its_versions_on_both_devices(name: str) -> None:
    asked: list[str] = []

    def find(name: str) -> LayerLike:
        asked.append(name)
        return STUBS["conv"]

    loaded = load_suite(name, find_layer=find, layers=("conv",), variants=("eager", "script"), cpus=2)
    assert asked == [name]
    assert [block.baseline for block in loaded.blocks] == ["eager"] * 4
    assert {(case.device, case.direction) for case in cases(loaded)} == {
        (device, direction) for device in ("cpu", "cuda") for direction in ("inference", "forward_backward")
    }
    assert [case.variant for case in cases(loaded)] == ["eager", "native"] * 4
    assert "/" not in loaded.name


def test_a_mistake_in_a_layer_in_place_of_a_suite_has_no_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path / "mine.py:CONV")
    assert str(caught.value).startswith(f"{tmp_path / 'mine.py:CONV'}: unknown layer")


def test_what_a_layers_file_raises_is_shown_at_the_line_of_the_layer(fault: Any) -> None:
    message = fault("groups:\n- axes: {}\n  layer: broken\n")
    # With the line in the layer's file: here it is this one, which raises them.
    assert re.match(
        r"suite.yaml:3: layer: loading broken raised KeyError \(at \S*test_config.py:\d+\): 'weights' \(", message
    )
    assert re.search(r"loading exits raised SystemExit \(at \S+:\d+\): 3 \(", fault("groups: [{layer: exits}]"))
    assert re.search(r"wordy raised ImportError \(at \S+:\d+\): no such library \(", fault("groups: [{layer: wordy}]"))


# Mistakes in the file itself


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "conv2d.yaml").touch()
    with pytest.raises(UserError, match=r"conv2.yaml: cannot read it: No such file .* did you mean '.*/conv2d.yaml'"):
        load(tmp_path / "conv2.yaml")


def test_a_folder_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read it: Is a directory"):
        load(tmp_path)


def test_a_file_that_is_not_utf8_is_an_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_bytes("groups:\n- layer: Größe\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"suite.yaml:2: byte 0xf6 is not UTF-8 \(save it as UTF-8\)"):
        load(file)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_an_error(fault: Any, text: str) -> None:
    assert fault(text) == "suite.yaml: the file is empty (layerbench schema)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("groups:\n- [1\nb: 2\n", "suite.yaml:3: expected ',' or ']', but got ':'"),
        ("groups:\n\t- layer: conv\n", "suite.yaml:2: found character '\\t' that cannot start any token"),
        ("groups: *nobody\n", "suite.yaml:1: found undefined alias 'nobody'"),
        ("groups: []\n---\nname: x\n", "suite.yaml:2: but found another document"),
        ("name: x\ngroups: !!python/object:os {}\n", "suite.yaml:2: could not determine a constructor"),
        ("groups: !!int x\n", "suite.yaml:1: invalid literal"),
        ("groups: \x07\n", "suite.yaml:1: unacceptable character"),
    ],
)
def test_a_syntax_error_is_an_error_with_its_line(fault: Any, text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


def test_a_duplicate_key_is_an_error_with_its_line(fault: Any) -> None:
    message = fault("name: a\ngroups:\n- layer: conv\nname: b\n")
    assert message == 'suite.yaml:4: found duplicate key "name" (suites are YAML 1.2)'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: x\ngroup: []\n", "suite.yaml:2: group: unknown key; did you mean 'groups'?"),
        ("groups: [{layer: conv}]\npolicy:\n  secondz: 1\n", "suite.yaml:3: policy.secondz: unknown key; did you mean"),
        ("groups:\n- layer: conv\n  axis: {}\n", "suite.yaml:3: axis: unknown key; did you mean 'axes'?"),
        (group("kernl_size: 3"), "suite.yaml:4: axes.kernl_size: unknown key; did you mean 'kernel_size'?"),
        (group("batch: 3", layer="plain"), "suite.yaml:4: axes.batch: unknown key"),
        (group("batch: 1") + "  exclude:\n  - btch: 1\n", "suite.yaml:6: exclude[0].btch: unknown key; did you mean"),
        (group("batch: 1") + "  exclude:\n  - status: ok\n", "suite.yaml:6: exclude[0].status: unknown key"),
        (group("batch: 1") + "  expect:\n  - {status: ok, diretion: x}\n", "suite.yaml:6: expect[0].diretion: unknown"),
        ("groups: [{layer: conv, 1: 2}]", "suite.yaml:1: groups[0]: a key is not text"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_closest_known_name(fault: Any, text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- layer: conv\n", "suite.yaml:1: expected a mapping, got a list"),
        ("just text\n", "suite.yaml:1: expected a mapping, got text 'just text'"),
        ("name: x\ngroups:\n", "suite.yaml:2: groups: expected a list, got nothing"),
        ("name: 3\ngroups: [{layer: conv}]\n", "suite.yaml:1: name: expected text or nothing, got a whole number 3"),
        ("groups: [{layer: conv}]\npolicy:\n  seconds: '2'\n", "suite.yaml:3: policy.seconds: expected a number, got"),
        (
            "groups: [{layer: conv}]\npolicy: {tf32: no}\n",
            "suite.yaml:2: policy.tf32: expected true or false, got text",
        ),
        ("groups:\n- layer: conv\n- conv\n", "suite.yaml:3: groups[1]: expected a mapping, got text 'conv'"),
        ("groups:\n- layer: conv\n  axes: [eager]\n", "suite.yaml:3: axes: expected a mapping, got a list"),
        ("groups:\n- layer: conv\n  exclude: {batch: 1}\n", "suite.yaml:3: exclude: expected a list, got a mapping"),
        ("groups:\n- axes: {}\n", "suite.yaml:2: groups[0]: 'layer' is missing"),
        ("name: x\n", "suite.yaml:1: 'groups' is missing"),
        ("name: x\ngroups: []\n", "suite.yaml:2: groups: expected a list of length >= 1"),
        ("name: a/b\ngroups: [{layer: conv}]\n", "suite.yaml:1: name: 'a/b' cannot name a folder"),
    ],
)
def test_a_wrong_type_is_an_error_in_words_of_yaml(fault: Any, text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("seconds: -1", "suite.yaml:3: policy.seconds: is -1.0; more than 0"),
        ("target: 2", "suite.yaml:3: policy.target: is 2.0; between 0 and 1"),
        ("timeout: .inf", "suite.yaml:3: policy.timeout: is inf; more than 0, and finite"),
        ("seconds: .nan", "suite.yaml:3: policy.seconds: is nan; more than 0"),
        ("same_within: 1", "suite.yaml:3: policy.same_within: is 1.0; between 0 and 1"),
        ("allocator: wram", "suite.yaml:3: policy.allocator: is 'wram'; did you mean 'warm'? (one of warm, default)"),
    ],
)
def test_a_policy_out_of_range_is_an_error_at_its_field(fault: Any, policy: str, expected: str) -> None:
    assert fault(f"groups: [{{layer: conv}}]\npolicy:\n  {policy}\n").startswith(expected)


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("groups:\n- layer: a\n axes: {}\n", 3, "line up with the line above"),
        ("groups:\n- layer: a\n   axes: {}\n", 3, "line up with the line above, and put a text with a colon in quotes"),
        ("groups:\n- layer: a\n\taxes: {}\n", 3, "indent by spaces, not tabs"),
        ("groups:\n- layer: @a\n", 2, "put the text in quotes"),
        ("groups:\n- layer: 'a\n", 3, "close the quotes"),
        ("groups: [\n", 2, "suites are YAML 1.2"),
    ],
)
def test_what_is_no_yaml_has_a_remedy_that_mends_it(fault: Any, text: str, line: int, remedy: str) -> None:
    assert fault(text).startswith(f"suite.yaml:{line}: ")
    assert fault(text).endswith(f" ({remedy})")


# Mistakes in what it names


def test_the_message_has_place_value_and_remedy(fault: Any) -> None:
    assert fault(group("variant: [eager, scirpt]")) == (
        "suite.yaml:4: axes.variant[1]: unknown variant 'scirpt'; did you mean 'script'? "
        "(has eager, native; layerbench list conv has what else can be made)"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("groups:\n- layer: cnv\n", "suite.yaml:2: layer: unknown layer 'cnv'; did you mean 'conv'?"),
        (
            group("direction: backwards"),
            "suite.yaml:4: axes.direction: unknown direction 'backwards'; did you mean 'backward'? (one of inference, ",
        ),
        ("groups:\n- layer: own.py\n", "suite.yaml:2: layer: unknown layer 'own.py' (own.py:NAME)"),
        ("groups:\n- layer: own\n", "suite.yaml:2: layer: unknown layer 'own' (layerbench list layers)"),
        (
            "groups:\n- layer: own.py:MINE\n",
            "suite.yaml:2: layer: unknown layer 'own.py:MINE' (path.py:NAME from the suite's folder, or pkg.",
        ),
        (
            group("dtype: float16"),
            "suite.yaml:4: axes.dtype: conv does not take float16 (one of float32, float64, bfloat16)",
        ),
        (
            group("dtype: float32", layer="whole"),
            "suite.yaml:4: axes.dtype: whole does not take float32 (one of int64)",
        ),
        (group("dtype: flaot32"), "suite.yaml:4: axes.dtype: unknown dtype 'flaot32'; did you mean 'float32'?"),
        (group("device: gpu"), "suite.yaml:4: axes.device: device cannot be 'gpu' (cpu, cuda or cuda:N)"),
        (group("threads: [1, 0]"), "suite.yaml:4: axes.threads[1]: threads cannot be 0"),
        (group("threads: true"), "suite.yaml:4: axes.threads: threads cannot be True"),
        (group("variant: 3"), "suite.yaml:4: axes.variant: unknown variant 3"),
        (group("variant: [eager,\n     scirpt]"), "suite.yaml:5: axes.variant[1]: unknown variant 'scirpt'"),
        (group("batch: 1") + "  exclude:\n  - variant: scirpt\n", "suite.yaml:6: exclude[0].variant: unknown variant"),
        (
            group("batch: 1") + "  expect:\n  - status: wrong\n",
            "suite.yaml:6: expect[0].status: unknown status 'wrong'",
        ),
        (group("batch: 1") + "  baseline: scirpt\n", "suite.yaml:5: baseline: unknown variant 'scirpt'; did you mean"),
    ],
)
def test_an_unknown_name_is_an_error_with_its_place(fault: Any, text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


@pytest.mark.parametrize(
    "axis",
    [
        "batch: 'many'",
        "batch: 1.5",
        "batch: true",
        "batch: [[]]",
        "batch: [[1, x]]",
        "batch:",
        "bias: 1",
        "scale: fast",
        "scale: .nan",
        "scale: .inf",
        "mode: 3",
        "mode: 2020-01-01",
        "batch: {a: 1}",
    ],
)
def test_a_parameter_value_must_fit_the_type_of_the_default(fault: Any, axis: str) -> None:
    name = axis.partition(":")[0]
    message = fault(group(axis))
    assert message.startswith(f"suite.yaml:4: axes.{name}")
    assert f"{name} cannot be " in message


@pytest.mark.parametrize("layer", ["none", "floats", "clash"])
def test_a_parameter_that_cannot_be_part_of_a_case_is_an_error_at_the_layer(fault: Any, layer: str) -> None:
    message = fault(f"groups:\n- layer: {layer}\n")
    assert message.startswith("suite.yaml:2: layer: ")
    assert f"of {layer} " in message


def test_an_empty_axis_is_an_error(fault: Any) -> None:
    assert fault(group("variant: []")).startswith("suite.yaml:4: axes.variant: no values")


def test_a_value_twice_in_an_axis_is_an_error(fault: Any) -> None:
    assert fault(group("batch: [1, 2, 1]")).startswith("suite.yaml:4: axes.batch[2]: 1 is there twice")
    assert fault(group("kernel_size: [3, [3]]")).startswith("suite.yaml:4: axes.kernel_size[1]: [3] is there twice")


def test_the_same_case_in_two_groups_is_an_error_naming_both_places(fault: Any) -> None:
    text = group("batch: 2") + "- layer: plain\n- layer: conv\n  axes: {batch: [1, 2]}\n"
    message = fault(text)
    assert message.startswith("suite.yaml:6: groups[2]: conv[batch=2,")
    assert "is also in groups[0], line 2" in message


def test_other_variants_of_a_setting_in_a_second_group_would_have_no_baseline_and_are_an_error(fault: Any) -> None:
    text = group("variant: [eager, script]") + "- layer: conv\n  axes: {variant: trace}\n"
    assert "is also in groups[0], line 2 (one group holds all variants of a setting" in fault(text)


def test_excluding_every_case_is_an_error(fault: Any) -> None:
    message = fault(group("batch: 1") + "  exclude:\n  - device: cpu\n")
    assert message.startswith("suite.yaml:5: exclude: leaves no case of this group")


def test_an_entry_that_matches_nothing_is_an_error(fault: Any) -> None:
    one = group("variant: [eager, trace]")
    assert fault(one + "  exclude:\n  - device: cuda\n").startswith("suite.yaml:6: exclude[0]: matches no case")
    expect = "  exclude:\n  - variant: trace\n  expect:\n  - {variant: trace, status: incorrect}\n"
    assert fault(one + expect).startswith("suite.yaml:8: expect[0]: matches no case")


def test_expect_needs_a_status(fault: Any) -> None:
    message = fault(group("variant: trace") + "  expect:\n  - variant: trace\n")
    assert message.startswith("suite.yaml:6: expect[0]: 'status' is missing (one of ok, ")


def test_a_named_baseline_is_never_replaced_quietly(fault: Any) -> None:
    text = group("variant: [eager, script]")
    assert fault(text + "  baseline: trace\n").startswith("suite.yaml:5: baseline: 'trace' is not among axes.variant")
    excluded = "  baseline: script\n  exclude:\n  - {variant: script, direction: inference}\n"
    assert fault(text + excluded).startswith("suite.yaml:5: baseline: 'script' is excluded from conv[")


# What is shipped


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_suite_loads_and_says_how_to_run_it(path: Path) -> None:
    plan = load_suite(path, find_layer=layers.load, layers=layers.BUILTIN, variants=tuple(VARIANTS), cpus=2)
    assert plan.name == path.stem
    assert plan.blocks[0].cases[0].case.device == ("cuda" if "gpu" in path.stem else "cpu")
    assert f"#     layerbench run configs/{path.name}\n" in path.read_text(encoding="utf-8")


def test_the_quickstart_expects_the_wrong_trace_and_the_article_every_variant() -> None:
    def plan(name: str) -> Suite:
        path = CONFIGS / f"{name}.yaml"
        return load_suite(path, find_layer=layers.load, layers=layers.BUILTIN, variants=tuple(VARIANTS), cpus=2)

    wrong = [planned.case for planned in plan("quickstart").cases().values() if planned.expect is Status.INCORRECT]
    assert {(case.layer, case.variant) for case in wrong} == {("sign_gate", "trace")}
    wanted = {"eager", "script", "jit_script", "trace", "compile", "custom_op", "native"}
    assert {case.variant for case in cases(plan("article"))} == wanted
    assert {case.direction for case in cases(plan("article"))} == set(Direction)


def test_the_schema_knows_what_the_reader_knows() -> None:
    made = schema(("conv",), ("eager", "trace"))
    definitions = made["$defs"]
    top, group_entry = definitions["SuiteFile"], definitions["GroupEntry"]["properties"]
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert top["required"] == ["groups"]
    assert top["additionalProperties"] is False
    assert set(definitions["Policy"]["properties"]) == set(Policy.__struct_fields__)
    assert group_entry["layer"]["examples"] == ["conv"]
    axes = group_entry["axes"]["properties"]
    assert list(axes) == ["variant", "direction", "dtype", "device", "threads"]
    assert axes["variant"]["anyOf"][0] == {"enum": ["eager", "trace"]}
    assert axes["direction"]["anyOf"][1]["items"] == {"enum": list(Direction)}
    assert group_entry["expect"]["items"]["required"] == ["status"]
    assert "status" not in group_entry["exclude"]["items"]["properties"]
    assert msgspec.json.decode(msgspec.json.encode(made)) == made
