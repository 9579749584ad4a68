"""What a person sees while a suite runs."""

from __future__ import annotations

import pytest
from rich.text import Text
from runs import case, metric, ok

from bench.model import Policy
from bench.progress import outlook, result_line
from bench.units import duration


def test_a_long_run_says_how_many_cases_it_has_and_how_long_they_take() -> None:
    text = outlook(655_360, Policy())
    assert "655,360 cases: sampling takes 29 hours at the least and 38 days at the most" in text
    assert "--only takes a part" in text
    least = Policy(seconds=0.1)  # no more than the most
    assert "18 hours at the least and 18 hours at the most" in outlook(655_360, least)


def test_a_short_run_says_nothing_of_its_length() -> None:
    assert outlook(28, Policy(seconds=1)) == ""


def test_a_wait_is_in_the_unit_that_people_think_in() -> None:
    seconds = (50, 119, 120, 2 * 3600, 2 * 86400, 38 * 86400)
    assert [duration(one) for one in seconds] == ["50 s", "119 s", "2 minutes", "2 hours", "2 days", "38 days"]


LOAD = "load 3 on 2 CPUs: other work is running"
WAITED = "waited for a CPU 51 % of the time it was sampled: other work is running"


@pytest.mark.parametrize(
    ("warnings", "width", "end"),
    [
        ((LOAD, WAITED), 80, " %  load 3 on 2 CPUs: othe… (2 warnings)"),
        ((LOAD, WAITED), 200, f" %  {LOAD} (2 warnings)"),
        ((LOAD,), 80, " %  load 3 on 2 CPUs: other work is run…"),
        ((LOAD, WAITED), 60, " %  2 warnings"),
        ((LOAD,), 60, " %  1 warning"),
        ((), 80, " %"),
    ],
)
def test_a_line_of_a_run_says_no_more_of_its_warnings_than_fits(
    warnings: tuple[str, ...], width: int, end: str
) -> None:
    line = Text.from_markup(result_line(ok(case(), metric(3e-6), warnings=warnings), width)).plain
    assert len(line) <= width
    assert line.endswith(end)


def test_a_line_with_device_time_and_warnings_fits_80_columns() -> None:
    device = metric(3e-6, name="device")
    line = Text.from_markup(result_line(ok(case(), metric(3e-6), device, warnings=(LOAD, WAITED)))).plain
    assert line.endswith(" %  2 warnings")
    assert len(line) <= 80
