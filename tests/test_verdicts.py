"""Verdicts of a gate: on literals, and on simulated noise with fixed seeds. No clock anywhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from bench.gating.verdicts import CPU, GPU, SUITE, Finding, Outcome, Rule, Verdicts, estimate, holm, judge

Draw = Callable[[str, int], float]  # the log ratio of a case in a generation

CASES = tuple(f"case {number}" for number in range(24))
FIVE, TEN = math.log(1.05), math.log(1.1)


def play(
    draw: Draw, cases: tuple[str, ...] = CASES, rule: Rule = CPU, tau: float = 0.02, canaries: int = 0
) -> Verdicts:
    """A whole gate: generations up to each look, only open cases going on."""
    guards = frozenset(f"canary {number}" for number in range(canaries))
    verdicts = Verdicts(rule, dict.fromkeys([*cases, *guards], tau), guards)
    number = 0
    for look, until in enumerate(rule.looks):
        while number < until:
            verdicts.add({name: draw(name, number) for name in (*verdicts.open(), *sorted(guards))})
            number += 1
        verdicts.look(look)
        if not verdicts.open():
            break
    return verdicts


def outcomes(verdicts: Verdicts) -> Counter[Outcome]:
    return Counter(verdicts.findings[name].outcome for name in verdicts.cases)


def failed(verdicts: Verdicts) -> bool:
    return any(one.outcome is Outcome.REGRESSED for one in verdicts.findings.values())


def normal(seed: int, noise: float, centre: float = 0.0) -> Draw:
    rng = np.random.default_rng(seed)
    return lambda name, number: centre + noise * float(rng.standard_normal())


def spiked(seed: int) -> Draw:
    """1.5 % noise, and one generation in ten in which one of the processes had a bad time of it."""
    rng = np.random.default_rng(seed)

    def draw(name: str, number: int) -> float:
        x = 0.015 * rng.standard_normal()
        return float(x + (rng.choice([-1, 1]) * rng.exponential(0.4) if rng.random() < 0.1 else 0.0))

    return draw


def bimodal(seed: int) -> Draw:
    """Every process lies well or badly in memory, for as long as it lives: 10 % between them."""
    rng = np.random.default_rng(seed)
    return lambda name, number: float(0.1 * (rng.integers(2) - rng.integers(2)) + 0.005 * rng.standard_normal())


def test_the_estimate_is_yuens_on_literals() -> None:
    # Ten values: two trimmed at each end; the winsorised ones are 3,3,3,4,5,6,7,8,8,8 with deviation 2.1731.
    one = estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 100.0])
    assert one.centre == pytest.approx(5.5)
    assert one.error == pytest.approx(np.std([3, 3, 3, 4, 5, 6, 7, 8, 8, 8], ddof=1) / (0.6 * math.sqrt(10)))
    assert one.freedom == 5
    low, high = one.interval(0.95)
    assert high - one.centre == pytest.approx(2.5706 * one.error, rel=1e-4)
    assert low + high == pytest.approx(11.0)
    assert one.p_above(one.centre) == pytest.approx(0.5)
    assert one.p_below(one.centre - 2.5706 * one.error) == pytest.approx(0.975, abs=1e-4)


def test_values_that_do_not_vary_are_certain() -> None:
    one = estimate([0.1] * 8)
    assert (one.p_above(0.05), one.p_above(0.2), one.p_below(0.2)) == (0.0, 1.0, 0.0)
    assert one.interval() == pytest.approx((0.1, 0.1))


def test_an_infinite_value_is_trimmed_and_nan_is_an_error() -> None:
    assert estimate([0.0] * 7 + [math.inf]).centre == 0.0
    with pytest.raises(ValueError, match="NaN"):
        estimate([0.0, 1.0, 2.0, math.nan])
    with pytest.raises(ValueError, match="3 values, four needed"):
        estimate([0.0, 1.0, 2.0])


def test_holm_steps_down_and_stops_at_the_first_that_stands() -> None:
    values = {"a": 0.001, "b": 0.004, "c": 0.006, "d": 0.002}
    # 0.01/4, /3, /2, /1: 0.001 <= 0.0025, 0.002 <= 0.0033, 0.004 <= 0.005, 0.006 <= 0.01.
    assert holm(values, 0.01, 4) == {"a", "b", "c", "d"}
    # 0.01/6, /5, /4: 0.001 <= 0.0017, 0.002 <= 0.002, 0.004 > 0.0025.
    assert holm(values, 0.01, 6) == {"a", "d"}
    assert holm(values | {"b": 0.02}, 0.01, 4) == {"a", "d"}


def test_the_first_look_acquits_and_never_convicts() -> None:
    slow = {"case": [0.2, 0.21, 0.19, 0.2, 0.22, 0.2, 0.21, 0.19]}
    first, second = (judge(slow, {"case": 0.02}, CPU, look)["case"] for look in (0, 1))
    assert (first.outcome, first.suspect) == (Outcome.INCONCLUSIVE, True)
    assert (second.outcome, second.suspect) == (Outcome.REGRESSED, False)
    assert second.ratio == pytest.approx(math.exp(0.2025), rel=0.01)
    only = judge(slow, {"case": 0.02}, Rule(looks=(8,)), 0)["case"]
    assert only.outcome is Outcome.REGRESSED


def test_ok_needs_a_slow_down_of_five_percent_ruled_out() -> None:
    quiet = [0.001, -0.002, 0.003, 0.0, -0.001, 0.002, -0.003, 0.001]
    loud = [20 * x for x in quiet]
    found = judge({"quiet": quiet, "loud": [x + 0.03 for x in loud]}, {"quiet": 0.02, "loud": 0.02}, CPU, 0)
    assert found["quiet"].outcome is Outcome.OK
    assert found["loud"].outcome is Outcome.INCONCLUSIVE


def test_an_inconclusive_case_says_what_was_seen_and_what_would_decide() -> None:
    rng = np.random.default_rng(11)
    values = [float(x) for x in 0.02 + 0.08 * rng.standard_normal(24)]
    one = judge({"case": values}, {"case": 0.02}, CPU, 2)["case"]
    assert one.outcome is Outcome.INCONCLUSIVE
    assert one.estimate.noise == pytest.approx(0.08, rel=0.35)
    assert 0.08 < one.sees < 0.15
    assert one.needs is not None
    assert one.needs > 24
    longer = [float(x) for x in one.estimate.centre + one.estimate.noise * rng.standard_normal(4 * one.needs)]
    assert judge({"case": longer}, {"case": 0.02}, CPU, 2)["case"].outcome is not Outcome.INCONCLUSIVE


def test_what_a_run_can_see_is_what_it_catches_nineteen_times_of_twenty() -> None:
    rng = np.random.default_rng(3)
    still = judge({"case": list(map(float, 0.03 * rng.standard_normal(24)))}, {"case": 0.02}, CPU, 2)["case"]
    sees = math.log1p(still.sees)
    caught = sum(
        judge(
            {"case": list(map(float, sees + still.estimate.noise / 1.1 * rng.standard_normal(24)))},
            {"case": 0.02},
            CPU,
            2,
        )["case"].outcome
        is Outcome.REGRESSED
        for _ in range(200)
    )
    assert caught >= 180


@pytest.mark.parametrize("noise", [normal(1, 0.015), normal(2, 0.03), spiked(3), bimodal(4)])
def test_a_suite_in_which_nothing_changed_does_not_fail(noise: Draw) -> None:
    assert sum(failed(play(noise)) for _ in range(60)) == 0


def test_quiet_noise_is_decided_at_the_first_look() -> None:
    verdicts = play(normal(5, 0.015))
    assert outcomes(verdicts) == {Outcome.OK: 24}
    assert {one.estimate.n for one in verdicts.findings.values()} == {8}


def test_drift_common_to_both_arms_fails_nothing() -> None:
    rng = np.random.default_rng(6)

    def draw(name: str, number: int) -> float:
        drift = 0.1 * number / 8  # the machine gets 10 % slower over a look
        old = drift + 0.01 * rng.standard_normal()
        new = drift + 0.01 * rng.standard_normal()
        return float(new - old)

    assert outcomes(play(draw)) == {Outcome.OK: 24}


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_a_bias_of_twelve_percent_in_one_generation_fails_nothing(bad: int) -> None:
    noise = normal(8, 0.01)
    verdicts = play(lambda name, number: noise(name, number) + (math.log(1.12) if number == bad else 0.0))
    assert not failed(verdicts)
    assert outcomes(verdicts)[Outcome.OK] >= 23


def test_a_doubling_is_caught_however_noisy_the_rest() -> None:
    noise = normal(9, 0.08)
    for _ in range(20):
        verdicts = play(lambda name, number: noise(name, number) + (math.log(2) if name == "case 5" else 0.0))
        assert verdicts.findings["case 5"].outcome is Outcome.REGRESSED


def test_five_percent_is_caught_at_a_noise_of_one_and_a_half() -> None:
    noise = normal(10, 0.015)
    found = [
        play(lambda name, number: noise(name, number) + (FIVE if name == "case 5" else 0.0)).findings["case 5"].outcome
        for _ in range(200)
    ]
    assert found.count(Outcome.REGRESSED) >= 190


def test_five_percent_is_never_called_ok_whatever_the_noise() -> None:
    for seed, sigma in enumerate((0.01, 0.03, 0.06, 0.12)):
        slow = normal(20 + seed, sigma, FIVE)
        found = [play(slow, ("case",)).findings["case"].outcome for _ in range(200)]
        assert found.count(Outcome.OK) <= 10


def test_ten_percent_is_caught_at_a_noise_of_three() -> None:
    noise = normal(30, 0.03)
    found = [
        play(lambda name, number: noise(name, number) + (TEN if name == "case 5" else 0.0)).findings["case 5"].outcome
        for _ in range(200)
    ]
    assert found.count(Outcome.REGRESSED) >= 198


def test_a_slow_down_of_the_whole_suite_is_caught_where_no_case_is_sure() -> None:
    noise = normal(31, 0.06)
    verdicts = play(lambda name, number: noise(name, number) + FIVE)
    assert verdicts.findings[SUITE].outcome is Outcome.REGRESSED
    assert verdicts.findings[SUITE].ratio == pytest.approx(1.05, abs=0.02)


def test_an_improvement_is_reported_like_a_regression() -> None:
    noise = normal(32, 0.015)
    verdicts = play(lambda name, number: noise(name, number) - (TEN if name == "case 5" else 0.0))
    assert verdicts.findings["case 5"].outcome is Outcome.IMPROVED
    assert not failed(verdicts)


def test_a_gpu_is_judged_at_one_percent_after_six_and_twelve() -> None:
    noise = normal(33, 0.002)
    verdicts = play(lambda name, number: noise(name, number) + math.log(1.03) * (name == "case 5"), rule=GPU, tau=0.01)
    assert verdicts.findings["case 5"].outcome is Outcome.REGRESSED
    assert verdicts.findings["case 5"].estimate.n == 12
    assert {verdicts.findings[name].estimate.n for name in CASES if name != "case 5"} == {6}


def test_a_canary_that_differs_is_named_and_decides_nothing_else_at_the_first_look() -> None:
    noise = normal(34, 0.01)
    verdicts = play(lambda name, number: noise(name, number) + (0.1 if name == "canary 1" else 0.0), canaries=2)
    assert set(verdicts.broken_canaries()) == {"canary 1"}
    assert {one.estimate.n for one in verdicts.findings.values()} == {16}


def test_canaries_alike_are_not_broken_and_no_cases() -> None:
    verdicts = play(normal(35, 0.015), canaries=2)
    assert verdicts.broken_canaries() == {}
    assert verdicts.open() == ()
    assert set(verdicts.cases) == set(CASES)


def beside(slow: float, noise: float = 0.2) -> Verdicts:
    """Device times that are quiet, and latencies of the same cases, of which one is slower by a logarithm."""
    device, host = normal(36, 0.002), normal(37, noise)
    names = {name: name.replace("case", "latency") for name in CASES}
    taus = dict.fromkeys(CASES, 0.01) | dict.fromkeys(names.values(), 0.02)
    verdicts, number = Verdicts(GPU, taus, beside=frozenset(names.values())), 0
    for look, until in enumerate(GPU.looks):
        going = {name.replace("latency", "case") for name in verdicts.open()}
        while number < until:
            latencies = {names[name]: host(name, number) + slow * (name == "case 5") for name in sorted(going)}
            verdicts.add({name: device(name, number) for name in sorted(going)} | latencies)
            number += 1
        verdicts.look(look)
    return verdicts


def test_a_latency_too_noisy_to_judge_keeps_no_gpu_case_going() -> None:
    verdicts = beside(0.0)
    assert outcomes(verdicts)[Outcome.INCONCLUSIVE] > 20
    assert {verdicts.findings[name].outcome for name in CASES} == {Outcome.OK}
    assert {one.estimate.n for one in verdicts.findings.values()} == {6}
    assert verdicts.open() == ()
    assert verdicts.findings[SUITE].estimate.noise < 0.01


def test_a_latency_that_doubles_is_caught_though_the_device_time_is_the_same() -> None:
    verdicts = beside(math.log(2), 0.05)
    assert verdicts.findings["case 5"].outcome is Outcome.OK
    assert verdicts.findings["latency 5"].outcome is Outcome.REGRESSED
    assert verdicts.findings["latency 5"].estimate.n == 12


def test_a_case_that_missed_a_generation_is_judged_by_the_others() -> None:
    verdicts = Verdicts(CPU, dict.fromkeys(("a", "b"), 0.02))
    for number in range(8):
        verdicts.add({"a": 0.001 * (number % 3)} | ({"b": 0.001 * (number % 3)} if number != 3 else {}))
    verdicts.look(0)
    assert verdicts.open() == ()
    assert verdicts.findings["b"].estimate.n == 7


def test_the_suite_as_a_whole_is_judged_by_what_decides() -> None:
    assert beside(0.0).findings[SUITE].tau == 0.01


def test_a_dropped_case_is_judged_no_more() -> None:
    verdicts = Verdicts(CPU, dict.fromkeys(("a", "b"), 0.02))
    for number in range(8):
        verdicts.add({"a": 0.001 * (number % 3), "b": 0.5})
    verdicts.drop("b")
    verdicts.look(0)
    assert set(verdicts.findings) == {"a"}
    assert verdicts.open() == ()


def test_a_finding_reads_in_ratios() -> None:
    values = [math.log(1.1) + 0.001 * x for x in (-2, -1, 0, 0, 0, 0, 1, 2)]
    one: Finding = judge({"case": values}, {"case": 0.02}, CPU, 1)["case"]
    assert one.ratio == pytest.approx(1.1, abs=1e-3)
    assert one.interval[0] < 1.1 < one.interval[1]
