"""Rows, frames and the comparison of runs: the right numbers, and no number where there is none."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from runs import case, metric, ok, run_of, showcase

from bench import footnotes
from bench.gating import gate
from bench.model import SCHEMA, Block, Header, Measurement, Metric, Planned, Policy, Run, Status, Suite, Verdict
from bench.rows import Row, checked_summary, view
from bench.table import Change, compare_runs, frame, unlike
from bench.units import error, ratio, show, spread


def row_of(run: Run, variant: str) -> Row:
    return next(row for row in view(run).rows if row.case.variant == variant)


def pair(variant: Metric, baseline: Metric) -> Run:
    return run_of(ok(case(variant="eager"), baseline), ok(case(variant="native"), variant))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234e-5, "s", "12.3 µs"),
        (999.96e-6, "s", "1.00 ms"),
        (9.996e-4, "s", "1.00 ms"),
        (8.5e-10, "s", "850 ps"),
        (75.0, "s", "75.0 s"),
        (1234.0, "s", "1,234 s"),
        (0.0, "s", "0 s"),
        (1536, "B", "1.50 KiB"),
        (1023, "B", "1,023 B"),
        (1024, "B", "1.00 KiB"),
        (8097, "1", "8,097"),
        (3, "calls", "3 calls"),
        (0.123, "1", "0.123"),
        (2.5e9, "FLOP", "2.50 GFLOP"),
        (float("inf"), "s", "inf"),
        (None, "s", "n/a"),
    ],
)
def test_a_number_is_shown_with_three_digits_and_a_fitting_unit(value: float | None, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_ratios_spreads_and_errors_read_plainly() -> None:
    assert [ratio(2.004), ratio(155.2), ratio(0.0123)] == ["2.00×", "155×", "0.0123×"]
    assert [spread(0.0123), spread(0.4), spread(None)] == ["± 1.2 %", "± 40 %", "± n/a"]
    assert [error(3.21e-7), error(None)] == ["3.2e-07", ""]


def test_the_centre_is_the_median_of_the_round_lows_and_the_interval_encloses_it() -> None:
    rounds = tuple((value + 1.0, value) for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    record = frame(run_of(ok(case(), Metric("latency", "s", rounds, "host")))).iloc[0]
    assert record["latency [s]"] == 4.0
    assert (record["latency low [s]"], record["latency high [s]"]) == (1.0, 7.0)
    assert record["latency rounds"] == 7
    assert record["latency clock"] == "host"


def test_a_planted_twofold_speedup_is_found_and_called_faster() -> None:
    record = frame(pair(metric(1e-3, seed=1), metric(2e-3, seed=2))).set_index("variant").loc["native"]
    assert record["speedup"] == pytest.approx(2.0, rel=0.02)
    assert record["speedup low"] < 2.0 < record["speedup high"]
    assert record["verdict"] == "faster"


def test_the_baseline_is_one_by_definition_and_never_compared_with_itself() -> None:
    record = frame(pair(metric(1e-3), metric(2e-3))).set_index("variant").loc["eager"]
    assert (record["speedup"], record["verdict"]) == (1.0, "baseline")
    assert pd.isna(record["speedup low"])


@pytest.mark.parametrize("other", [{"clock": "events"}, {"unit": "calls"}])
def test_unlike_clocks_and_units_are_never_divided_and_the_row_says_so(other: dict[str, str]) -> None:
    row = row_of(pair(metric(1e-3, **other), metric(2e-3)), "native")  # type: ignore[arg-type]
    assert row.comparison("latency") is None
    assert "not compared" in row.warnings[0]
    assert next(iter(other.values())) in row.warnings[0]


def test_device_time_has_its_own_speedup() -> None:
    record = frame(showcase()).query("layer == 'shift'").set_index("variant").loc["native"]
    assert record["speedup"] == pytest.approx(1550 / 55, rel=0.05)
    assert record["device speedup"] == pytest.approx(638 / 34, rel=1e-6)
    assert record["device verdict"] == "faster"


def test_values_that_are_not_finite_are_left_out_of_the_centre_and_named() -> None:
    odd = Metric("latency", "s", ((1.0,), (float("inf"),), (float("nan"),), (3.0,)), "host")
    row = row_of(pair(odd, metric(2.0)), "native")
    assert row.readings["latency"].summary.centre == 2.0
    assert row.warnings[0] == "latency: 2 of 4 rounds are not finite and left out"
    assert row.comparison("latency") is None


def test_a_case_that_is_not_ok_has_no_number_and_a_missing_one_is_named() -> None:
    table = frame(showcase())
    assert set(table["status"]) == {"ok", "skipped", "incorrect", "failed", "missing"}
    bad = table[table["status"] != "ok"]
    assert bad[[name for name in map(str, table) if "[" in name or "speedup" in name]].isna().all(axis=None)
    assert (bad["reason"] != "").all()


def test_rows_are_in_the_order_of_the_suite_with_every_planned_case() -> None:
    run = showcase()
    table = frame(run)
    planned = [planned.case for planned in run.header.suite.cases().values()]
    assert list(zip(table["layer"], table["variant"], table["direction"], strict=True)) == [
        (one.layer, one.variant, str(one.direction)) for one in planned
    ]


def test_parameters_keep_their_type_beside_layers_that_lack_them() -> None:
    text = frame(showcase()).to_csv(index=False)
    strings = pd.read_csv(io.StringIO(text), dtype=str)
    assert strings["params.size"].iloc[0] == "64"
    assert strings["params.kernel"].iloc[0] == "3x3"
    assert strings["params.size"].isna().sum() == sum(strings["layer"] != "unfold_conv2d")


def test_a_metric_never_heard_of_gets_its_columns() -> None:
    table = frame(run_of(ok(case(), 1e-3, metric(5.0, name="wobble", unit="T"))))
    assert {"wobble [T]", "wobble low [T]", "wobble high [T]", "wobble rounds"} <= set(table.columns)
    assert table["wobble [T]"].iloc[0] == pytest.approx(5.0, rel=0.02)


def test_one_round_has_a_centre_and_no_interval() -> None:
    record = frame(run_of(ok(case(), metric(1e-3, rounds=1)))).iloc[0]
    assert record["latency [s]"] > 0
    assert pd.isna(record["latency low [s]"])
    assert pd.isna(record["latency high [s]"])


def test_titles_name_what_varies_and_say_once_what_does_not() -> None:
    layer = view(showcase()).layers[0]
    assert layer.facts == "kernel=3x3, bias=true, float32, cpu, 2 threads"
    assert layer.blocks[0].title == "size=64, forward"
    assert layer.blocks[-1].title == "size=4096, forward_backward"


def test_what_varies_inside_a_block_is_in_the_label() -> None:
    halves = [ok(case(), 1e-3), ok(case(dtype="float16"), 1e-3)]
    block = Block("eager", tuple(Planned(one.case) for one in halves))
    header = Header(SCHEMA, "0", "", Suite("mixed", Policy(), (block,)), {})
    assert [row.label for row in view(Run(header, tuple(halves))).rows] == ["eager float32", "eager float16"]


def test_equal_warnings_share_a_footnote() -> None:
    run = run_of(
        ok(case(variant="eager"), 1e-3, warnings=("hot", "noisy")),
        ok(case(variant="native"), 1e-3, warnings=("noisy",)),
    )
    assert view(run).footnotes == ("hot", "noisy")
    assert [row.marks for row in view(run).rows] == [(1, 2), (2,)]


def test_warnings_and_notes_that_differ_in_figures_alone_are_one_with_ranges() -> None:
    times = {"eager": (33, "2.54 ms"), "native": (36, "950 µs"), "script": (34, "2.53 ms")}
    run = run_of(
        *(
            ok(
                case(variant=name),
                1e-3,
                warnings=(f"waited for a CPU {share} % of the time", f"load {share} on 2 CPUs"),
                notes=(f"may add about {extra} a call", f"mine.py:{share}: float{share}, 2.{share}.0"),
            )
            for name, (share, extra) in times.items()
        )
    )
    assert view(run).footnotes == ("waited for a CPU 33 to 36 % of the time", "load 33 to 36 on 2 CPUs")
    assert [row.marks for row in view(run).rows] == [(1, 2)] * 3
    notes = view(run).notes
    assert len(notes.pop("may add about 950 µs to 2.54 ms a call")) == 3
    # A line, a type and a release are names: they have no range.
    assert list(notes) == [f"mine.py:{share}: float{share}, 2.{share}.0" for share, _ in times.values()]


def test_a_note_of_several_times_is_of_its_case_alone() -> None:
    texts = tuple(
        f"latency has two modes, about {low} and {high}" for low, high in (("3 µs", "5 µs"), ("615 µs", "1 ms"))
    )
    assert footnotes.merge(texts) == (texts, {texts[0]: 1, texts[1]: 2})


def test_a_wait_that_takes_the_verdict_away_says_so_beside_the_number() -> None:
    def waited(variant: str, share: float) -> Measurement:
        seen = Metric("cpu_wait_share", "1", ((share,),), hidden=True)
        return ok(
            case(variant=variant), 1e-3, seen, warnings=(f"waited for a CPU {100 * share:.0f} % of the time: busy",)
        )

    run = run_of(waited("eager", 0.43), waited("native", 0.2))
    told = ("waited for a CPU 43 % of the time: busy, and no verdict rests on its latency",)
    assert view(run).footnotes == (*told, "waited for a CPU 20 % of the time: busy")
    assert compare_runs(run, run, 0.03)[0].warnings == (f"new: {told[0]}", f"old: {told[0]}")


def test_turns_a_quarter_of_which_take_half_as_long_again_are_warned_of() -> None:
    def warnings(*seconds: float) -> tuple[str, ...]:
        return row_of(run_of(ok(case(), Metric("latency", "s", tuple((one,) for one in seconds)))), "eager").warnings

    spread = [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 1.8, 2.1, 2.5]
    assert warnings(*spread) == ()
    assert warnings(*spread, 2.2, 2.8, 1.12) == ("latency: a quarter of its turns took 1.6 times their median or more",)
    assert warnings(*spread[:3], 3.0, 3.0) == ()  # too few to say


def test_two_runs_are_compared_by_case() -> None:
    old = run_of(ok(case(), metric(2e-3, seed=1)), ok(case(variant="native"), metric(1e-3, seed=2)))
    new = run_of(ok(case(), metric(1e-3, seed=3)), ok(case(variant="native"), metric(1e-3, seed=4)))
    halved, kept = compare_runs(new, old, 0.03)
    assert halved.comparison is not None
    assert halved.comparison.speedup == pytest.approx(2.0, rel=0.02)
    assert halved.comparison.verdict is Verdict.FASTER
    assert kept.comparison is not None
    assert kept.comparison.verdict is Verdict.SAME


def test_device_times_of_two_runs_are_compared_too() -> None:
    run = showcase()
    metrics = [change.metric for change in compare_runs(run, run, 0.03) if change.case.device == "cuda"]
    assert metrics == ["latency", "device", "latency", "device", "latency", "device", "latency"]


def test_lost_new_renamed_and_broken_cases_are_listed_with_the_reason() -> None:
    lost = [case(variant=name, length=64) for name in ("compile", "custom_op")]
    old = run_of(*(ok(one, 1e-3) for one in [*lost, case(variant="eager"), case(variant="native")]))
    broken = Measurement(case(variant="eager"), Status.INCORRECT, "wrong sign")
    found = ok(case(variant="compile", length=65), 1e-3)
    new = run_of(found, broken, missing=[case(variant="native")])
    changes = {one.case.variant: one for one in compare_runs(new, old, 0.03) if one.case != found.case}
    reasons = {variant: change.why for variant, change in changes.items()}
    assert reasons["compile"] == reasons["custom_op"] == "not in the new run"
    assert changes["compile"].hint == f"renamed? the closest there is {found.case.id}"
    assert changes["custom_op"].hint == ""  # another variant is nothing by another name
    assert reasons["eager"] == "new: incorrect: wrong sign"
    assert reasons["native"] == "new: not measured"
    assert all(change.comparison is None for change in compare_runs(new, old, 0.03))


def test_runs_that_differ_as_a_whole_decide_nothing_and_a_case_of_its_own_is_still_found() -> None:
    names = ("eager", "native", "script", "trace", "custom_op")

    def changes(*times: float) -> list[Change]:
        old, new = (
            run_of(*(ok(case(variant=name), metric(time, seed=n + at)) for n, (name, time) in enumerate(found)))
            for at, found in ((0, [(name, 1e-3) for name in names]), (9, list(zip(names, times, strict=True))))
        )
        return compare_runs(new, old, 0.08)

    def verdicts(*times: float) -> str:
        return " ".join(str(one.comparison.verdict) for one in changes(*times) if one.comparison)

    alike = changes(1.5e-3, 1.41e-3, 1.56e-3, 1.45e-3, 1.5e-3)
    assert {one.comparison.verdict for one in alike if one.comparison} == {Verdict.UNDECIDED}
    assert [one.common for one in alike] == [pytest.approx(1 / 1.5, rel=0.02)] * 5
    assert gate.comparison_exit(alike, alike=True) is gate.Exit.INCONCLUSIVE
    assert verdicts(1.5e-3, 1.5e-3, 1.5e-3, 1.5e-3, 3e-3) == "undecided undecided undecided undecided slower"
    assert verdicts(1.5e-3, 1.5e-3, 1.5e-3, 1.5e-3, 0.5e-3) == "undecided undecided undecided undecided faster"
    assert verdicts(1e-3, 1.5e-3, 1.5e-3, 1.5e-3, 1.5e-3) == "same slower slower slower slower"
    assert verdicts(1e-3, 1e-3, 1e-3, 1e-3, 1.5e-3) == "same same same same slower"


def test_what_failed_alike_in_both_runs_is_told_once() -> None:
    def failed(reason: str) -> Run:
        return run_of(Measurement(case(), Status.FAILED, reason))

    assert [one.why for one in compare_runs(failed("a"), failed("a"), 0.08)] == ["both: failed: a"]
    assert [one.why for one in compare_runs(failed("a"), failed("b"), 0.08)] == ["new: failed: a; old: failed: b"]


def test_runs_under_other_conditions_are_unlike() -> None:
    here, cold = run_of(ok(case(), 1e-3)), run_of(ok(case(), 1e-3), cache="cold", tf32=True)
    assert unlike(here.header, here.header) == []
    assert unlike(here.header, cold.header) == ["cache was warm and is cold", "tf32 was False and is True"]


def test_a_layer_by_another_path_is_said_to_be_the_same_file() -> None:
    here, there = ok(case("attention.py:LAYER"), 1e-3), ok(case("mine/attention.py:LAYER"), 1e-3)
    hints = [change.hint for change in compare_runs(run_of(here), run_of(there), 0.08)]
    assert all(hint.startswith("the same file by another path, from another folder: ") for hint in hints)


def test_a_metric_that_one_run_alone_has_is_not_passed_over() -> None:
    what = case(device="cuda")
    with_device, without = ok(what, 1e-3, metric(1e-4, name="device")), ok(what, 1e-3)
    latency, device = compare_runs(run_of(without), run_of(with_device), 0.03)
    assert latency.comparison is not None
    assert (device.comparison, device.why) == (None, "device time in the old run only")
    assert gate.comparison_exit([latency, device], alike=True) is gate.Exit.NOT_COMPARABLE


def test_what_takes_no_gpu_time_in_either_run_is_nothing_to_compare() -> None:
    view = ok(case(device="cuda"), 1e-6, Metric("device", "s", ((0.0,),) * 20, "events"))
    assert [change.metric for change in compare_runs(run_of(view), run_of(view), 0.03)] == ["latency"]


def test_nothing_follows_from_a_case_that_had_no_cpu_for_a_quarter_of_its_time() -> None:
    def waited(share: float) -> Metric:
        return Metric("cpu_wait_share", "1", ((share,),), hidden=True)

    def verdicts(share: float) -> list[Verdict]:
        fast = ok(case(variant="native"), 1e-3, metric(1e-4, name="device"), waited(share))
        run = run_of(ok(case(), 2e-3, metric(2e-4, name="device"), waited(0.0)), fast)
        (row,) = [row for row in view(run).rows if row.case.variant == "native"]
        found = [row.comparison("latency"), row.comparison("device")]
        slow = run_of(ok(fast.case, 2e-3, metric(2e-4, name="device"), waited(0.0)))
        found += [change.comparison for change in compare_runs(run_of(fast), slow, 0.03)]
        return [one.verdict for one in found if one]

    assert verdicts(0.2) == [Verdict.FASTER] * 4
    assert verdicts(0.3) == [Verdict.UNDECIDED, Verdict.FASTER] * 2  # a GPU's time is its own


@pytest.mark.parametrize(
    ("direction", "device", "size", "seconds", "verdict"),
    [
        ("forward_backward", "cpu", 4 << 20, 1e-3, Verdict.UNDECIDED),
        ("forward_backward", "cpu", 4 << 20, 1e-2, Verdict.FASTER),  # computes more than it moves
        ("forward_backward", "cpu", 4 << 10, 1e-6, Verdict.FASTER),  # stays in the first caches
        ("forward_backward", "cuda", 4 << 20, 1e-3, Verdict.FASTER),
        ("inference", "cpu", 4 << 20, 1e-3, Verdict.FASTER),
    ],
)
def test_a_training_step_that_streams_on_a_cpu_decides_nothing_within_8_percent(
    direction: str, device: str, size: int, seconds: float, verdict: Verdict
) -> None:
    def against(slower: float) -> Verdict:
        moved = Metric("output_bytes", "B", ((float(size),),), hidden=True)
        found = [
            ok(case(variant=variant, direction=direction, device=device), metric(time, noise=0.001), moved)
            for variant, time in (("eager", seconds * slower), ("native", seconds))
        ]
        comparison = row_of(run_of(*found), "native").comparison("latency")
        assert comparison is not None
        return comparison.verdict

    assert against(1.06) is verdict
    assert against(1.2) is Verdict.FASTER
    assert against(1.0) is Verdict.SAME


def test_runs_on_different_clocks_are_not_compared() -> None:
    (change,) = compare_runs(run_of(ok(case(), metric(1e-3, clock="events"))), run_of(ok(case(), 1e-3)), 0.03)
    assert change.comparison is None
    assert "clock" in change.why


@pytest.mark.parametrize(("values", "whose"), [([1.0] * 14 + [1.2] * 6, "that of most rounds"),
                                               ([1.0] * 10 + [1.2] * 10, "nobody's time")])  # fmt: skip
def test_a_median_that_lies_in_one_of_two_modes_is_called_so(values: list[float], whose: str) -> None:
    _, warning = checked_summary(Metric("latency", "s", tuple((value,) for value in values)))
    assert warning == f"latency has two modes, about 1.00 s and 1.20 s: its median is {whose}"
