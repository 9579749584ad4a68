"""How one case is measured: warm-up to a plateau, window length, slots and turns.

All logic, no clock of its own: `timer` and `now` come from outside, so every rule here is tested on a fake clock.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.clocks.timer import Call, Timer
from bench.model import Policy

Now = Callable[[], float]  # seconds


class Placeable(Call, Protocol):
    """A call whose inputs can be put somewhere else in memory."""

    def place(self, rng: random.Random) -> None:
        """Move the inputs: where they lie changes a time by more than many optimisations do."""

    def touch(self) -> int:
        """Make a call; the address of its output, 0 where there is none to tell."""


@dataclass(frozen=True)
class WarmUp:
    """What the warm-up took, never mixed into samples."""

    calls: int
    seconds: float
    steady: bool  # False: the cap ended it
    per_call: float  # s, at its end


def warm_up(timer: Timer, call: Call, policy: Policy, now: Now = time.perf_counter) -> WarmUp:
    """Call until the times no longer fall, at least `policy.warmup_calls` and 20 ms, at most `policy.warmup_seconds`.

    A fixed warm-up is wrong both ways: the TorchScript profiling executor needs some calls of each shape, a clock
    that ramps up needs milliseconds, and neither is known beforehand. A plateau may also be a stair with a step down
    behind it: it is believed after 250 calls, or 0.1 s, or where that is under 20 calls, which show no slope, 0.5 s.
    Spikes hide a slope from the last 20 calls, so the lows of the whole second half must not fall either.
    """
    start = now()
    times: list[float] = []
    while True:
        times.append(timer.window(call, 1))
        elapsed = now() - start
        least = 0.02 if len(times) >= 250 else 0.1 if len(times) >= 20 else 0.5
        enough = len(times) >= policy.warmup_calls and elapsed >= least
        steady = enough and not falling(times[-20:]) and not falling(lows(times[len(times) // 2 :]))
        if steady or elapsed >= policy.warmup_seconds:
            return WarmUp(len(times), elapsed, steady, statistics.median(times[-3:]))


def lows(times: Sequence[float], blocks: int = 5) -> list[float]:
    """The lowest of each of so many stretches of equal length, up to the last time; fewer times stay as they are."""
    size = max(1, len(times) // blocks)
    return [min(times[end - size : end]) for end in range(len(times), size - 1, -size)][:blocks][::-1]


def falling(times: Sequence[float], by: float = 0.01) -> bool:
    """Whether later times tend to be lower than earlier ones (over three quarters of all pairs, Kendall's measure),
    more than `by` from one half to the other. Pairs see a slow trend that no two neighbours show, but not a step
    near an end: that is every time of the first quarter above every one of the last."""
    half, quarter = len(times) // 2, len(times) // 4
    if half < 1:
        return True  # nothing known yet
    if quarter >= 4 and (1 - by) * min(times[:quarter]) > max(times[-quarter:]):
        return True
    pairs = list(itertools.combinations(times, 2))
    fell = sum((later < earlier) + 0.5 * (later == earlier) for earlier, later in pairs)
    return fell > 0.75 * len(pairs) and statistics.median(times[-half:]) < (1 - by) * statistics.median(times[:half])


def calls_per_window(timer: Timer, call: Call, seconds: float, now: Now = time.perf_counter) -> int:
    """How many calls make a window last about `seconds` by the wall, the timer's own overhead included.

    One that takes half of that is enough: another would say nothing new, and give interference more time to hit.
    """
    calls = 1
    while True:
        elapsed = max(_elapsed(timer, call, calls, now), 1e-9)
        if calls == 1 and seconds / 2 <= elapsed < 1:  # something may have come between: a pause of up to 0.1 s
            elapsed = min(elapsed, _elapsed(timer, call, calls, now))
        if elapsed >= seconds / 2:
            return max(1, round(calls * seconds / elapsed)) if calls > 1 else 1
        calls *= min(10, max(2, int(seconds / elapsed)))


@dataclass(frozen=True)
class Plan:
    """How one timer takes its turn on one case."""

    timer: Timer
    calls: int  # a window
    slots: int  # windows a turn


def plan(timer: Timer, call: Call, policy: Policy, now: Now = time.perf_counter) -> Plan:
    """Slots of `policy.slot` seconds; calls longer than that get fewer slots, so that a turn stays about as long."""
    calls = calls_per_window(timer, call, policy.slot, now)
    elapsed = _elapsed(timer, call, calls, now)
    if calls > 1 and elapsed > 1.5 * policy.slot:  # many calls are fitted to a slot: something came between
        elapsed = min(elapsed, _elapsed(timer, call, calls, now))
    longest = max(elapsed, policy.slot)
    return Plan(timer, calls, max(1, min(policy.slots, round(policy.slots * policy.slot / longest))))


def _elapsed(timer: Timer, call: Call, calls: int, now: Now) -> float:
    start = now()
    timer.window(call, calls)
    return now() - start


def turn(
    plans: list[Plan], call: Placeable, rng: random.Random, page_faults: Callable[[], int] = lambda: 0
) -> dict[str, tuple[float, ...]]:
    """One turn: for every slot new places for the inputs, calls to touch them, then a window of each timer.

    Answers every window's time by metric, and the page faults a call of the first timer's windows.
    """
    values: dict[str, list[float]] = {plan.timer.metric: [] for plan in plans}
    faults: list[float] = []
    slots = max(plan.slots for plan in plans)
    for slot in range(slots):
        call.place(rng)
        if slots > 1:  # a call longer than the whole turn would only be doubled
            _settle(call, rng, plans[0].calls)
        for plan in plans:
            if slot >= plan.slots:
                continue
            before = page_faults()
            values[plan.timer.metric].append(plan.timer.window(call, plan.calls))
            if plan is plans[0]:
                faults.append((page_faults() - before) / plan.calls)
    return {metric: tuple(taken) for metric, taken in values.items()} | {"page_faults": tuple(faults)}


def _settle(call: Placeable, rng: random.Random, calls: int) -> None:
    """Touch everything, and go to other places, for at most `calls` calls, until outputs lie where the last one lay.

    How many places outputs take in turns is settled by how the heap happens to look, mostly once a process and for all
    its life. Each more costs 6 % at 4 MiB, since that much more has to lie in the caches: one process in five was 5 to
    12 % slower than its likes.
    """
    several = 4 if calls >= 16 else 2
    for left in reversed(range(max(2, calls // several))):
        first = call.touch()
        if not first or all(call.touch() == first for _ in range(1, several)):
            return
        if left:  # the last place is touched and kept
            call.place(rng)
