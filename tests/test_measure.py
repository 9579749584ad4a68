"""The timing logic on a fake clock: exact and instant."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.clocks.host import HostTimer
from bench.measure import Placeable, calls_per_window, falling, lows, plan, turn, warm_up
from bench.model import Policy


class Clock:
    """Time passes only when somebody works."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def now(self) -> float:
        return self.ns * 1e-9


class Work(Placeable):
    """A call that takes `cost(number)` seconds, with `preparation` seconds before each where it is fresh."""

    def __init__(self, clock: Clock, cost: Callable[[int], float], *, preparation: float = 0.0) -> None:
        self.clock, self.cost, self.preparation = clock, cost, preparation
        self.fresh = preparation > 0
        self.calls = self.places = 0
        self.output: Callable[[Work], int] = lambda work: 0

    def prepare(self) -> None:
        self.clock.ns += round(self.preparation * 1e9)

    def place(self, rng: random.Random) -> None:
        self.places += 1

    def touch(self) -> int:
        self.prepare()
        self()
        return self.output(self)

    def __call__(self) -> None:
        self.clock.ns += round(self.cost(self.calls) * 1e9)
        self.calls += 1


def constant(seconds: float) -> Callable[[int], float]:
    return lambda number: seconds


def host(clock: Clock) -> HostTimer:
    return HostTimer(now=clock.now_ns)


@pytest.mark.parametrize("calls", [1, 10, 100])
@pytest.mark.parametrize("preparation", [0.0, 0.005])
def test_two_milliseconds_are_two_milliseconds_however_many_calls_share_a_window(
    calls: int, preparation: float
) -> None:
    clock = Clock()
    work = Work(clock, constant(0.002), preparation=preparation)
    assert host(clock).window(work, calls) == pytest.approx(0.002, rel=1e-12)
    assert work.calls == calls


def test_waiting_for_the_device_is_counted_after_the_call_and_not_before() -> None:
    clock = Clock()
    queued = [0.004]  # work left from before

    def synchronise() -> None:
        clock.ns += round(sum(queued) * 1e9)
        queued.clear()

    def enqueue(number: int) -> float:
        queued.append(0.003)
        return 0.00001

    timer = HostTimer(synchronise, clock.now_ns)
    assert timer.window(Work(clock, enqueue), 5) == pytest.approx(0.00301)


def test_warm_up_ends_at_the_plateau_and_not_before() -> None:
    clock = Clock()
    settles_at_200 = Work(clock, lambda number: 0.001 * (1 + max(0.0, (200 - number) / 20)))
    warm = warm_up(host(clock), settles_at_200, Policy(warmup_seconds=60), clock.now)
    assert warm.steady
    assert warm.calls >= 200
    assert warm.per_call == pytest.approx(0.001)


@pytest.mark.parametrize("seconds", [5e-6, 20e-6, 160e-6])
def test_warm_up_outlasts_a_stair_of_200_calls(seconds: float) -> None:
    clock = Clock()
    stair = Work(clock, lambda number: seconds * (1 if number >= 200 else 3))
    warm = warm_up(host(clock), stair, Policy(warmup_seconds=60), clock.now)
    assert warm.steady
    assert warm.calls > 200
    assert warm.per_call == pytest.approx(seconds)


def test_spikes_do_not_hide_a_slope_from_the_warm_up() -> None:
    clock, rng = Clock(), random.Random(0)
    sloping = Work(clock, lambda n: 0.0005 * (1 + max(0.0, 2 - n / 100)) * (2 if rng.random() < 0.3 else 1))
    warm = warm_up(host(clock), sloping, Policy(warmup_seconds=60), clock.now)
    assert warm.steady
    assert warm.calls > 200


def test_a_slope_of_long_calls_is_followed_to_its_end() -> None:
    clock = Clock()
    warm = warm_up(host(clock), Work(clock, lambda n: 0.01 * (1 + max(0.0, 2 - n / 100))), Policy(), clock.now)
    assert warm.steady
    assert warm.calls > 200


def test_lows_are_those_of_equal_stretches_up_to_the_last_time() -> None:
    assert lows([9.0, 5.0, 4.0, 3.0, 2.0, 6.0, 7.0], blocks=3) == [4.0, 2.0, 6.0]
    assert lows([3.0, 1.0, 2.0], blocks=5) == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("step", [4, 6, 10, 15, 20])
def test_a_step_down_is_seen_wherever_it_lies_between_the_outer_quarters(step: int) -> None:
    rng = random.Random(0)
    times = [(2.0 if number < step else 1.0) * rng.uniform(1, 1.05) for number in range(20)]
    assert falling(times) == (5 <= step <= 15)


def test_noise_and_times_that_rise_are_not_falling() -> None:
    rng = random.Random(0)
    assert sum(falling([rng.lognormvariate(0, 0.1) for _ in range(20)]) for _ in range(1000)) <= 10
    assert not falling([1 + 0.1 * number for number in range(20)])


def test_a_short_call_is_not_warmed_up_for_longer_than_20_ms() -> None:
    clock = Clock()
    warm = warm_up(host(clock), Work(clock, constant(20e-6)), Policy(), clock.now)
    assert warm.seconds == pytest.approx(0.02)


def test_warm_up_makes_the_least_number_of_calls_even_if_steady_at_once() -> None:
    clock = Clock()
    warm = warm_up(host(clock), Work(clock, constant(1.0)), Policy(warmup_calls=7, warmup_seconds=60), clock.now)
    assert (warm.calls, warm.steady) == (7, True)
    assert warm.seconds == pytest.approx(7.0)


def test_warm_up_of_a_call_that_never_settles_ends_at_its_cap_and_says_so() -> None:
    clock = Clock()
    warm = warm_up(host(clock), Work(clock, lambda number: 0.9**number), Policy(warmup_seconds=5), clock.now)
    assert not warm.steady
    assert 5 <= warm.seconds < 6


@pytest.mark.parametrize(
    ("seconds", "calls"), [(1e-6, 4000), (37e-6, 108), (0.0011, 4), (0.0019, 2), (0.0021, 1), (0.3, 1)]
)
def test_a_window_lasts_about_a_slot_and_a_call_of_half_of_that_gets_one_of_its_own(seconds: float, calls: int) -> None:
    clock = Clock()
    assert calls_per_window(host(clock), Work(clock, constant(seconds)), 0.004, clock.now) == calls


def test_one_disturbed_call_does_not_make_all_windows_short() -> None:
    clock = Clock()
    work = Work(clock, lambda number: 0.09 if number == 0 else 0.0001)
    assert calls_per_window(host(clock), work, 0.004, clock.now) == 40


def test_a_call_of_minutes_is_not_made_twice_to_see_how_long_it_takes() -> None:
    clock = Clock()
    work = Work(clock, constant(100.0))
    assert calls_per_window(host(clock), work, 0.004, clock.now) == 1
    assert work.calls == 1


def test_preparation_counts_towards_the_length_of_a_window_but_not_its_time() -> None:
    clock = Clock()
    work = Work(clock, constant(0.0001), preparation=0.0007)
    assert calls_per_window(host(clock), work, 0.004, clock.now) == 5
    assert host(clock).window(work, 5) == pytest.approx(0.0001)


def test_a_long_call_gets_fewer_slots_so_that_turns_stay_alike() -> None:
    clock = Clock()
    policy = Policy(slot=0.004, slots=5)
    assert plan(host(clock), Work(clock, constant(0.0004)), policy, clock.now).slots == 5
    assert plan(host(clock), Work(clock, constant(0.010)), policy, clock.now).slots == 2
    assert plan(host(clock), Work(clock, constant(0.5)), policy, clock.now).slots == 1


def test_one_disturbed_window_does_not_cost_a_turn_its_slots() -> None:
    clock = Clock()
    # 1 + 10 calls find that 10 make a slot; the next, the first of the trial window, waits for somebody else.
    work = Work(clock, lambda number: 0.04 if number == 11 else 0.0004)
    found = plan(host(clock), work, Policy(slot=0.004, slots=5), clock.now)
    assert (found.calls, found.slots) == (10, 5)


def test_a_turn_places_the_inputs_anew_for_every_slot_and_returns_every_sample() -> None:
    clock = Clock()
    work = Work(clock, constant(0.0008))
    plans = [plan(host(clock), work, Policy(), clock.now)]
    work.calls = 0
    values = turn(plans, work, random.Random(0))
    assert values["latency"] == pytest.approx((0.0008,) * 5)
    assert work.places == 5
    assert work.calls == 5 * (5 + 1)  # five in each window and one to touch the new places


def test_a_slot_goes_elsewhere_until_outputs_stay_where_they_are() -> None:
    clock = Clock()
    work = Work(clock, constant(0.0002))
    plans = [plan(host(clock), work, Policy(slots=1), clock.now)]
    work.output = lambda work: 64 * (1 + (work.calls if work.places % 4 else 0))
    turn([replace(plans[0], slots=2)], work, random.Random(0))
    assert work.places == 8  # the fourth and the eighth are fine


@pytest.mark.parametrize(("seconds", "window"), [(0.0002, 20), (0.0008, 5), (0.003, 1)])
def test_where_outputs_never_stay_a_slot_costs_no_more_than_its_window_and_two_calls(
    seconds: float, window: int
) -> None:
    clock = Clock()
    work = Work(clock, constant(seconds))
    found = replace(plan(host(clock), work, Policy(), clock.now), slots=2)
    work.calls, work.output = 0, lambda work: work.calls
    turn([found], work, random.Random(0))
    assert found.calls == window
    assert 2 * (window + 2) <= work.calls <= 2 * (2 * window + 3)


def test_where_outputs_never_stay_what_is_timed_has_been_touched_all_the_same() -> None:
    clock = Clock()
    work = Work(clock, constant(0.001))
    found = replace(plan(host(clock), work, Policy(), clock.now), slots=2)
    touched: list[int] = []

    def output(work: Work) -> int:
        touched.append(work.places)
        return work.calls

    work.output = output
    turn([found], work, random.Random(0))
    assert touched[-1] == work.places


def test_a_call_longer_than_a_turn_is_made_once_a_turn() -> None:
    clock = Clock()
    work = Work(clock, constant(0.5))
    plans = [plan(host(clock), work, Policy(), clock.now)]
    work.calls = 0
    turn(plans, work, random.Random(0))
    assert work.calls == 1
