"""Energy of a call, where a card counts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.machine import nvml
from bench.model import Metric

Now = Callable[[], float]  # seconds


class Energy:
    """Energy of a call by the card's own counter. `state` says why there is no figure; empty where there is one."""

    STEP = 0.02  # s of work between two looks at the counter, which moves in steps of tens of milliseconds

    def __init__(
        self, device: str, uuid: str | None = None, *, library: Any = None, now: Now = time.perf_counter
    ) -> None:
        self.state = ""
        self._now = now
        try:
            if not device.startswith("cuda"):
                raise nvml.Absent("only GPUs count energy")
            self._nvml = library or nvml.find()
            self._card = nvml.find_card(self._nvml, uuid)
            if self._sliced():
                raise nvml.Absent("a MIG slice shares its card's energy counter")
            self._joules()
        except nvml.Absent as reason:
            self.state = str(reason)

    def per_call(self, run: Callable[[int], None], seconds: float = 0.5) -> Metric | None:
        """J per call over about `seconds` of work, the card's idle power included; None: see `state`.

        `run(n)` makes n calls back to back and waits for the device. At most four times `seconds` is spent on a
        counter that does not move, and never less than three steps. What `run` raises is raised.
        """
        if self.state:
            return None
        try:
            value = self._measure(run, self._calls_per_step(run), seconds)
        except nvml.Absent as reason:
            self.state = str(reason)
            return None
        about = "energy of one call of the whole card, idle power included, calls back to back"
        return Metric("energy", "J", ((value,),), "nvml", about)

    def _measure(self, run: Callable[[int], None], calls: int, seconds: float) -> float:
        """From one step of the counter to another: between them it stands still, and a window would catch any part."""
        start, done, last = self._now(), 0, self._joules()
        moved: list[tuple[float, int, float]] = []
        while True:
            run(calls)
            done += 1
            joules, time_now = self._joules(), self._now()
            if joules != last:
                moved.append((time_now, done, joules))
                last = joules
            if len(moved) > 1 and time_now - moved[0][0] >= seconds:
                break
            if time_now - start >= 4 * seconds and done >= 3:
                break
        if len(moved) < 2 or moved[-1][2] < moved[0][2]:
            raise nvml.Absent(f"the energy counter did not move in {self._now() - start:.1f} s")
        (_, first, low), (_, final, high) = moved[0], moved[-1]
        return (high - low) / ((final - first) * calls)

    def _calls_per_step(self, run: Callable[[int], None]) -> int:
        calls = 1
        while calls < 10**7:
            start = self._now()
            run(calls)
            took = max(self._now() - start, 1e-9)
            if took >= self.STEP / 2:
                return max(1, round(calls * self.STEP / took))
            calls *= min(10, max(2, int(self.STEP / took)))
        return calls

    def _sliced(self) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(self._card)[0])
        except Exception:  # a card that knows no slices
            return False

    def _joules(self) -> float:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card)) * 1e-3
        except Exception as error:
            raise nvml.Absent(f"no energy counter: {nvml.reason(error)}") from None
