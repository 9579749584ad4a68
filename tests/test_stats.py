"""Statistics on literals and on simulated noise with fixed seeds: no clock, no files."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from bench.model import Metric, Policy, Verdict
from bench.stats import compare, compare_unpaired, pays_after, settled, shared, summarise


def metric(*rounds: float | tuple[float, ...]) -> Metric:
    return Metric("latency", "s", tuple(value if isinstance(value, tuple) else (value,) for value in rounds), "host")


def noisy(seed: int, centre: float, noise: float, n: int = 30) -> list[float]:
    return list(centre * np.exp(np.random.default_rng(seed).normal(0, noise, n)))


def test_the_centre_is_the_median_and_the_interval_its_order_statistics() -> None:
    summary = summarise([1, 2, 3, 4, 5, 6, 7, 8, 9, 100])
    assert summary.centre == 5.5
    assert summary.interval == (2, 9)  # binomial: 97.9 % for ranks 2 to 9 of 10
    assert summary.half_width == pytest.approx(3.5 / 5.5)


def test_five_values_have_no_interval_and_one_value_no_spread() -> None:
    assert summarise([1, 2, 3, 4, 5]).interval is None
    assert summarise([7]).half_width is None
    assert summarise([7]).centre == 7


def test_no_values_have_no_summary() -> None:
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_the_low_of_a_round_is_what_is_compared() -> None:
    variant, baseline = metric(*[(9.0, 1.0, 5.0)] * 8), metric(*[(2.0, 7.0, 3.0)] * 8)
    comparison = compare(variant, baseline, 0.03)
    assert comparison is not None
    assert comparison.speedup == pytest.approx(2.0)
    assert comparison.verdict is Verdict.FASTER


def test_pairs_are_formed_by_round_so_that_common_drift_cancels() -> None:
    drift = [1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 3.0, 1.2]
    comparison = compare(metric(*drift), metric(*[1.1 * value for value in drift]), 0.03)
    assert comparison is not None
    assert comparison.interval == pytest.approx((1.1, 1.1))


def test_a_round_that_one_side_missed_is_no_pair() -> None:
    comparison = compare(Metric("latency", "s", ((1.0,), (), (1.0,))), metric(2.0, 99.0, 2.0), 0.03)
    assert comparison is not None
    assert comparison.n == 2
    assert comparison.speedup == pytest.approx(2.0)
    assert comparison.verdict is Verdict.UNDECIDED
    assert compare(Metric("latency", "s", ((),)), metric(1.0), 0.03) is None


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.10, Verdict.SLOWER), (0.9, Verdict.FASTER), (1.0, Verdict.SAME), (1.01, Verdict.SAME)]
)
def test_verdicts_follow_the_whole_interval(ratio: float, verdict: Verdict) -> None:
    variant, baseline = metric(*noisy(1, ratio, 0.01)), metric(*noisy(2, 1.0, 0.01))
    comparison = compare(variant, baseline, 0.03)
    assert comparison is not None
    assert comparison.verdict is verdict


def test_too_much_noise_is_undecided_and_not_same() -> None:
    comparison = compare(metric(*noisy(1, 1.0, 0.5, 8)), metric(*noisy(2, 1.0, 0.5, 8)), 0.03)
    assert comparison is not None
    assert comparison.verdict is Verdict.UNDECIDED


def test_two_spiked_rounds_do_not_change_a_verdict() -> None:
    values = noisy(1, 1.0, 0.005, 20)
    values[3] *= 10
    values[11] *= 4
    comparison = compare(metric(*values), metric(*noisy(2, 1.0, 0.005, 20)), 0.03)
    assert comparison is not None
    assert comparison.verdict is Verdict.SAME


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(400):
        comparison = compare(metric(*noisy(seed, 1.0, 0.05)), metric(*noisy(seed + 1000, 1.2, 0.05)), 0.03)
        assert comparison is not None
        assert comparison.interval is not None
        hits += comparison.interval[0] <= 1.2 <= comparison.interval[1]
    assert 0.92 <= hits / 400 <= 0.98


def test_identical_variants_are_not_called_different() -> None:
    verdicts = []
    for seed in range(500):
        comparison = compare(metric(*noisy(seed, 1.0, 0.05)), metric(*noisy(seed + 1000, 1.0, 0.05)), 0.03)
        assert comparison is not None
        verdicts.append(comparison.verdict)
    assert sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts) <= 2


def test_much_noise_alone_is_called_a_difference_less_than_once_in_a_hundred() -> None:
    verdicts = []
    for seed in range(600):
        comparison = compare(metric(*noisy(seed, 1.0, 0.3, 12)), metric(*noisy(seed + 1000, 1.0, 0.3, 12)), 0.03)
        assert comparison is not None
        verdicts.append(comparison.verdict)
    assert sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts) <= 6


def test_unpaired_runs_are_compared_on_their_logs() -> None:
    comparison = compare_unpaired(noisy(1, 2.0, 0.01), noisy(2, 3.0, 0.01), 0.03)
    assert comparison.speedup == pytest.approx(1.5, rel=0.01)
    assert comparison.verdict is Verdict.FASTER
    assert comparison.interval is not None
    assert comparison.interval[0] < 1.5 < comparison.interval[1]
    assert compare_unpaired([1.0] * 8, [1.0] * 8, 0.03).verdict is Verdict.SAME
    assert compare_unpaired([1.0] * 3, [2.0] * 3, 0.03).verdict is Verdict.UNDECIDED


def test_sampling_goes_on_until_time_and_ratio_are_within_the_target() -> None:
    policy = Policy(min_rounds=8, target=0.02)
    steady, wild = metric(*noisy(1, 1.0, 0.001, 12)), metric(*noisy(2, 1.0, 0.2, 12))
    assert settled(steady, None, policy)
    assert settled(steady, steady, policy)
    assert not settled(wild, None, policy)
    assert not settled(steady, wild, policy)
    assert not settled(metric(*[1.0] * 7), None, policy)


def test_sampling_goes_on_while_the_verdict_is_undecided_though_the_interval_is_narrow() -> None:
    policy, baseline = Policy(), metric(*[1.0] * 40)
    slower = metric(*[1.04, 1.06] * 20)
    first = Metric("latency", "s", slower.samples[:8]), Metric("latency", "s", baseline.samples[:8])
    early, late = compare(*first, 0.03), compare(slower, baseline, 0.03)
    assert early is not None
    assert late is not None
    assert (early.verdict, late.verdict) == (Verdict.UNDECIDED, Verdict.SLOWER)
    assert not settled(*first, policy)
    assert settled(slower, baseline, policy)
    dispatch, other = (msgspec.structs.replace(one, name="dispatch") for one in first)
    assert settled(dispatch, other, policy)


def test_the_target_is_tighter_for_device_time_than_for_the_hosts_clock() -> None:
    policy = Policy(min_rounds=8)
    latency = metric(*[1.0, 1.03] * 6)
    assert settled(latency, None, policy)
    assert not settled(Metric("device", "s", latency.samples, "events"), None, policy)


def test_a_criterion_that_is_never_met_is_not_met_by_infinite_or_missing_noise() -> None:
    assert not settled(metric(*[1.0, math.inf] * 6), None, Policy())


def test_far_values_are_counted_and_kept() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98, 40.0, 55.0]
    summary = summarise(values)
    assert summary.outliers == 2
    assert summary.n == 10
    assert summarise(noisy(1, 1.0, 0.05, 40)).outliers == 0


def test_two_groups_of_values_are_two_modes_and_noise_is_one() -> None:
    both = summarise(noisy(1, 166e-6, 0.02, 20) + noisy(2, 21e-3, 0.1, 12))
    assert both.modes is not None
    assert both.modes == pytest.approx((166e-6, 21e-3), rel=0.1)
    assert summarise([1.0] * 10 + [1.2] * 10).modes == pytest.approx((1.0, 1.2))
    assert [seed for seed in range(300) if summarise(noisy(seed, 1.0, 0.1, 40)).modes] == []
    assert summarise([1.0] * 20 + [2.0]).modes is None  # one outlier is no mode


def test_a_faster_variant_pays_after_the_calls_that_win_its_first_one_back() -> None:
    faster, baseline = metric(*[1.0] * 8), metric(*[3.0] * 8)
    comparison = compare(faster, baseline, 0.03)
    assert pays_after(10.0, comparison, 3.0) == pytest.approx(5.0)
    assert pays_after(-1.0, comparison, 3.0) == 0
    assert pays_after(10.0, compare(baseline, faster, 0.03), 1.0) == math.inf
    assert pays_after(10.0, compare(faster, faster, 0.03), 1.0) is None
    assert pays_after(10.0, None, 1.0) is None


def test_what_takes_no_time_at_all_is_compared_with_nothing_and_holds_up_no_run() -> None:
    nothing, something, policy = metric(*[0.0] * 10), metric(*noisy(0, 1e-6, 0.01)), Policy()
    assert compare(nothing, something, 0.03) is None
    assert compare(something, nothing, 0.03) is None
    assert settled(nothing, something, policy)
    assert settled(something, nothing, policy)
    assert settled(nothing, None, policy)


def test_rounds_that_resemble_their_neighbours_say_less_and_one_spike_changes_nothing() -> None:
    random = np.random.default_rng(5)
    noise = random.normal(0, 0.02, 60)
    lasting = np.repeat(noise[:12], 5)  # disturbances of five rounds each

    def width(logs: np.ndarray) -> float:
        comparison = compare(metric(*np.exp(-logs)), metric(*[1.0] * len(logs)), 0.03)
        assert comparison is not None
        assert comparison.interval is not None
        return math.log(comparison.interval[1] / comparison.interval[0])

    assert width(lasting) > 1.8 * width(random.permutation(lasting))
    spiked = noise.copy()
    spiked[30] = 3.0
    assert width(spiked) < 1.2 * width(noise)


def in_common(by_variant: dict[str, list[float]], within: float = 0.08) -> tuple[float, list[bool]]:
    """What the speed-ups of one layer's variants have in common, and which say no more."""
    variants = [name for name, values in by_variant.items() for _ in values]
    logs = [math.log(value) for values in by_variant.values() for value in values]
    shift, moved = shared(logs, ["swish"] * len(logs), variants, within)
    return math.exp(shift), moved


def test_what_moves_all_cases_alike_is_in_common_in_either_direction() -> None:
    slower = {"eager": [0.64], "native": [0.71], "script": [0.66], "trace": [0.69], "mine": [0.67]}
    factor, moved = in_common(slower)
    assert (round(factor, 6), moved) == (0.67, [True] * 5)
    faster = {name: [1 / value for value in values] for name, values in slower.items()}
    factor, moved = in_common(faster)
    assert (round(1 / factor, 6), moved) == (0.67, [True] * 5)


@pytest.mark.parametrize(
    "by_variant",
    [
        {"eager": [1.0] * 10, "native": [1.01] * 9 + [0.6]},  # one of many
        {"eager": [1.0, 1.02, 0.99], "native": [0.6, 0.61, 0.6]},  # one variant, in all its cases
        {"eager": [1.0], "native": [0.6] * 3, "script": [0.61] * 3, "trace": [0.6] * 3},  # all but eager, which stayed
        {"eager": [0.65], "native": [0.66]},  # two cases are no several
        {"eager": [0.65, 0.66, 0.64, 0.65]},  # one implementation: its own doing, most likely
        {"eager": [0.95, 0.6], "native": [0.8, 0.3], "script": [0.9, 0.5]},  # the same way, not alike
        {"eager": [1.2, 1.21], "native": [0.7, 0.71], "script": [1.0, 1.0]},
        {"eager": [1.02, 0.98, 1.0], "native": [0.97, 1.01, 0.97]},
        {},
    ],
)
def test_what_some_cases_alone_have_is_nothing_in_common(by_variant: dict[str, list[float]]) -> None:
    factor, moved = in_common(by_variant)
    assert (factor, any(moved)) == (1.0, False)


def test_a_layer_that_stayed_speaks_for_the_code_of_the_other() -> None:
    logs, variants = [math.log(0.65)] * 6 + [0.0] * 2, ["eager", "native"] * 4
    assert shared(logs, ["a"] * 6 + ["b"] * 2, variants, 0.08) == (0.0, [False] * 8)
    assert shared(logs[:6], ["a"] * 6, variants[:6], 0.08) == (math.log(0.65), [True] * 6)


def test_a_case_that_moved_otherwise_than_the_rest_says_more() -> None:
    rest = {"eager": [0.65, 0.66, 0.64], "native": [0.65, 0.67, 0.63]}
    for own in (1.3, 0.3, 0.5):
        factor, moved = in_common(rest | {"mine": [own]})
        assert factor == pytest.approx(0.65, rel=0.02)
        assert moved == [True] * 6 + [False]
    # Slowed less than the others: no slow-down of its own.
    assert in_common(rest | {"mine": [0.88]})[1] == [True] * 7


def test_noise_between_runs_has_nothing_in_common() -> None:
    rng = np.random.default_rng(1)
    layers, variants = ["a", "b"] * 20, ["eager", "eager", "native", "native"] * 10
    found = [shared(list(rng.normal(0, 0.03, 40)), layers, variants, 0.08)[0] for _ in range(300)]
    assert found == [0.0] * 300
