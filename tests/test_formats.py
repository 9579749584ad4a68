"""Every format says everything: each status with its reason, each number with its doubt; and pictures are pictures."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console
from runs import case, metric, ok, run_of, showcase

from bench.formats import FILES, FORMATS, csv, html, markdown, terminal, write_report
from bench.formats.files import replace_file
from bench.formats.look import scale
from bench.model import Measurement, Metric, Run, Status
from bench.table import compare_runs


def on_terminal(run: Run, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(terminal.render(run))
    return written(console)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Text(HTMLParser):
    """What a reader of the page sees, tags and styles gone."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.found.append(data)

    def __str__(self) -> str:
        return " ".join(" ".join(self.found).split())


def as_html(run: Run) -> str:
    return str(Text(html.render(run)))


everywhere = pytest.mark.parametrize("render", [on_terminal, markdown.render, as_html, csv.render])
to_read = pytest.mark.parametrize("render", [on_terminal, markdown.render, as_html])
Render = Callable[[Run], str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert all(path.stat().st_size for path in write_report(showcase(), folder))
    return folder


@everywhere
def test_every_status_appears_with_its_reason(render: Render) -> None:
    text = render(showcase())
    for status in ("skipped", "incorrect", "failed", "missing"):
        assert status in text
    for reason in ("no C++ compiler", "output has NaN", "out of memory", "not measured yet"):
        assert reason in text


@everywhere
def test_warnings_travel_with_the_numbers(render: Render) -> None:
    text = render(run_of(ok(case(), 1e-3, warnings=("samples under throttling", "above the roofline"))))
    assert "samples under throttling" in text
    assert "above the roofline" in text


@everywhere
def test_a_metric_never_heard_of_is_shown(render: Render) -> None:
    text = render(run_of(ok(case(), 1e-3, metric(5.0, name="wobble", unit="T", noise=0, about="how it wobbles"))))
    assert "wobble" in text
    assert "5.00 T" in text or "wobble [T]" in text


@everywhere
def test_names_in_any_script_survive(render: Render) -> None:
    assert "Слой-β" in render(showcase())


@to_read
def test_a_lone_round_shows_its_spread_as_unknown_and_never_as_zero(render: Render) -> None:
    text = render(
        run_of(ok(case(), metric(1e-3, rounds=1, noise=0)), ok(case(variant="native"), metric(5e-4, rounds=1, noise=0)))
    )
    assert "1.00 ms ± n/a" in text
    assert "2.00× [n/a]" in text.replace("\\", "")
    assert "± 0" not in text


@to_read
def test_the_verdict_the_error_and_the_speedup_are_in_words(render: Render) -> None:
    text = render(run_of(ok(case(), metric(2e-3)), ok(case(variant="native"), metric(1e-3, seed=1), error=3e-7)))
    assert "faster" in text
    assert "baseline" in text
    assert "3e-07" in text
    assert "2.00×" in text or "1.99×" in text or "2.01×" in text


@to_read
def test_a_surprise_and_an_expected_failure_are_told_apart(render: Render) -> None:
    text = render(showcase())
    assert "incorrect, as expected: output differs for negated input" in text
    assert "incorrect: output has NaN (expected ok)" in text


@to_read
def test_what_was_wrong_with_the_file_and_what_is_missing_comes_first(render: Render) -> None:
    run = run_of(ok(case(), metric(1e-3, noise=0)), missing=[case(variant="native")], problems=("line 7 is cut off",))
    text = render(run)
    assert text.index("line 7 is cut off") < text.index("1.00 ms")
    assert text.index("1 of 2 cases are not measured yet") < text.index("1.00 ms")


@pytest.mark.parametrize("render", [markdown.render, as_html])
def test_torchscript_is_called_deprecated_where_it_is_used(render: Render) -> None:
    assert "deprecated" not in render(run_of(ok(case(), 1e-3)))
    assert "deprecated" in " ".join(render(run_of(ok(case(variant="script"), 1e-3), baseline="script")).split())


@everywhere
def test_a_baseline_that_is_not_in_the_run_is_said_once_to_be_why_there_is_no_speedup(render: Render) -> None:
    why = "the baseline eager is not in this run"
    others = [ok(case(variant="native"), 1e-3), Measurement(case(variant="trace"), Status.FAILED, "boom")]
    assert render(run_of(*others)).count(why) == 1
    assert why not in render(run_of(ok(case(), 1e-3), *others))
    assert why not in render(run_of(others[1]))  # nothing was to be compared


@to_read
def test_a_missing_baseline_leaves_the_verdict_unknown(render: Render) -> None:
    failed = Measurement(case(), Status.FAILED, "crashed")
    text = render(run_of(failed, ok(case(variant="native"), 1e-3)))
    assert "n/a" in text
    assert "×" not in text.split("latency:")[0].split("Words")[0]


def test_html_escapes_what_a_run_says_and_stays_one_file(report: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Example CPU &lt;9000&gt;" in page
    assert "data:image/svg+xml;base64," in page
    assert not {"script", "link", "iframe"} & set(Text(page).tags)
    assert 'src="http' not in page


@pytest.mark.parametrize("render", [markdown.render, as_html])
def test_facts_that_are_bytes_watts_or_clocks_have_their_unit(render: Render) -> None:
    run = run_of(ok(case(), 1e-3))
    card = {"memory": 150109880320, "l2_cache": 62914560, "power": 83.966, "clock_max": 1980, "temperature": 39}
    run.header.environment.update(memory={"total": 25276514304, "limit": None}, gpu={"devices": [card]})
    text = " ".join(render(run).replace("\\", "").replace(":", "").split())
    for words in ("total 23.5 GiB", "limit n/a", "memory 140 GiB", "l2_cache 60.0 MiB", "power 83.966 W", "39 °C"):
        assert words in text
    assert "clock_max 1980 MHz" in text


def test_words_of_a_cell_may_wrap_between_them_and_numbers_never() -> None:
    page = html.render(run_of(ok(case(), 1e-3, stopped="time limit"), ok(case(variant="native"), 1e-3)))
    assert '<td class="wraps">20, time\u00a0limit</td>' in page
    style = page[: page.index("</style>")]
    assert re.search(r"th, td {[^}]*white-space: nowrap", style)
    assert re.search(r"td\.wraps {[^}]*white-space: normal", style)
    assert page.count('class="wraps"') == 2


def test_html_shows_any_nesting_of_environment_facts() -> None:
    run = run_of(ok(case(), 1e-3))
    run.header.environment["gpus"] = [{"name": "H200", "clocks": {"sm": 1980}}, {"name": "H100"}]
    for render in (as_html, markdown.render):
        text = render(run)
        assert all(fact in text for fact in ("H200", "1980", "H100", "denormals kept", "0123abc"))


def test_markdown_tables_stay_whole_whatever_names_hold() -> None:
    odd = "a|b*c\n<d>"
    text = markdown.render(
        run_of(ok(case(variant=odd), 1e-3), Measurement(case(variant="x"), Status.FAILED, odd), baseline=odd)
    )
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "a\\|b\\*c \\<d\\>" in text


def test_csv_reads_back_with_every_value() -> None:
    run = showcase()
    table = pd.read_csv(io.StringIO(csv.render(run)), keep_default_na=True)
    assert len(table) == len(run.header.suite.cases())
    measured = [one.metric("latency") for one in run.measurements if one.status is Status.OK]
    expected = [float(np.median(one.lows)) for one in measured if one]
    assert table["latency [s]"].dropna().tolist() == pytest.approx(expected, rel=1e-12)
    assert table["reason"].dropna().str.contains("<script>alert(1)</script> | install g++", regex=False).sum() == 8
    assert table["error"].max() == float("inf")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_of_the_terminal_table_is_wider_than_the_terminal(width: int) -> None:
    text = on_terminal(showcase(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "9.96 µs ± 0.56 %" in text
    assert ("too narrow for: " in text) == (width < 160)


def gpu_run() -> Run:
    """A GPU block whose device times tell another story than its latencies, a little too wide for 80 columns."""

    def one(variant: str, latency: float, device: float, stopped: str = "time limit") -> Measurement:
        busy = metric(device, name="device", clock="events", seed=7)
        first = metric(0.5, name="first_call", rounds=1)
        what = case(variant=variant, device="cuda")
        return ok(
            what, metric(latency, noise=0.003), busy, first, notes=("a note",), warnings=("hot",), stopped=stopped
        )

    wrong = Measurement(case(variant="trace", device="cuda"), Status.INCORRECT, "wrong")
    native = one("native", 5e-5, 6e-6, "target")
    return run_of(one("eager", 5e-5, 3e-6), native, one("custom_op", 2e-5, 3e-6), wrong)


def test_at_80_columns_intervals_go_before_verdicts_and_what_went_is_named() -> None:
    text = " ".join(on_terminal(gpu_run(), 80).split())
    assert "variant latency device time speed-up device speed-up ─" in text
    assert re.search(r"native \[1\] \S+ µs ± \S+ % \d\S+ µs 1\.00× same 0\.500× slower", text)
    assert re.search(r"custom_op \[1\] \S+ µs ± \S+ % \d\S+ µs 2\.50× faster 1\.00× same", text)
    assert "trace incorrect" in text
    left_out = text[text.index("too narrow for: ") : text.index("; the report has them")]
    for what in ("interval of device time", "interval of speed-up", "interval of device speed-up", "error", "rounds"):
        assert what in left_out


def test_where_there_is_room_the_terminal_leaves_nothing_out() -> None:
    text = on_terminal(gpu_run(), 200)
    assert "too narrow" not in text
    assert "0.500× [0.500, 0.500] slower" in text
    assert "20, target" in text


@pytest.mark.parametrize("width", range(40, 120))
def test_the_first_column_is_named_in_one_word_where_all_variants_are_shorter(width: int) -> None:
    text = on_terminal(run_of(ok(case(), 1e-3), ok(case(variant="trace"), 2e-3)), width)
    assert re.search(r"^ *variant +latency", text, re.MULTILINE)


def test_what_several_variants_failed_of_is_said_once() -> None:
    same = [Measurement(case(variant=name), Status.FAILED, "no such key") for name in ("native", "script")]
    run = run_of(ok(case(), 1e-3), *same, Measurement(case(variant="trace"), Status.FAILED, "another"))
    for text in (on_terminal(run, 100), markdown.render(run), re.sub("<[^>]+>", "", as_html(run))):
        assert text.count("no such key") == 1
        assert re.search(r"native, script failed: no such key", text)
        assert re.search(r"trace failed: another", text)


@pytest.mark.parametrize(("faults", "shown"), [((0.0, 0.0, 0.0, 0.02), False), ((3.0, 3.0, 3.0, 0.0), True)])
def test_a_column_that_would_say_zero_in_every_row_is_left_out(faults: tuple[float, ...], shown: bool) -> None:
    counted = Metric("page_faults", "1", tuple((value,) for value in faults))
    assert ("page_faults" in on_terminal(run_of(ok(case(), 1e-3, counted)), 200)) is shown


def test_numbers_line_up_whatever_word_follows_them() -> None:
    rows = [line for line in on_terminal(gpu_run(), 80).splitlines() if "×" in line]
    assert len({line.index("×") for line in rows}) == 1
    assert len({line.rindex("×") for line in rows}) == 1


def test_the_terminal_explains_its_words_in_six_lines_at_most() -> None:
    text = on_terminal(gpu_run(), 80)
    words = text[text.index("device time: ") :]
    assert len(words.splitlines()) <= 6
    for word in ("±", "speed-up", "faster, slower", "same", "undecided", "error"):
        assert f"{word}: " in words


@to_read
def test_the_legend_says_what_a_time_and_a_speedup_are_and_which_interval_decides(render: Render) -> None:
    text = " ".join(render(gpu_run()).replace("**", "").split())
    assert re.search("times:? median of the lowest of each turn's slots", text)
    assert "trimmed mean of paired rounds, not the medians' ratio" in text
    assert re.search("faster, slower:? the 99.5 % interval is over 3 % from 1", text)
    assert re.search("same:? the 95 % interval is within 3 % of 1", text)


@pytest.mark.parametrize("render", [markdown.render, as_html])
def test_words_are_explained_where_they_stand(render: Render) -> None:
    faults = [Metric("page_faults", "1", ((count,),), about="page faults a call") for count in (0.0, 3.0)]
    usual, faulty = (render(run_of(ok(case(), 1e-3, metric))) for metric in faults)
    assert "page faults a call" not in usual
    assert "page faults a call" in faulty
    assert "launch-bound: enqueueing" not in usual
    assert "ran and gave wrong results" not in usual
    limited = ok(case(), 1e-3, limit="launch-bound: 5 us over 3")
    assert "launch-bound: enqueueing" in render(run_of(limited))
    assert "ran and gave wrong results" in render(showcase())


@to_read
def test_undecided_is_explained_by_those_of_its_causes_that_are_there(render: Render) -> None:
    def text(*more: Metric) -> str:
        step = case(direction="forward_backward")
        return " ".join(render(run_of(ok(step, 1e-3, *more))).replace("**", "").split())

    waited, moved = (
        Metric(name, "1", ((value,),), hidden=True) for name, value in (("cpu_wait_share", 0.43), ("output_bytes", 4e6))
    )
    usual, starved, streams = (
        "the 99.5 % interval crosses that limit, or none",
        "one of the two had no CPU for over 25 % of its time",
        "within 8 %, one of the two is a CPU training step that mostly moves memory",
    )
    assert usual in text()
    assert not [words for words in (starved, streams) if words in text()]
    assert f"{usual}; or {starved}; or {streams}" in text(waited, moved)


@pytest.mark.parametrize("render", [markdown.render, as_html])
def test_inference_is_explained_where_it_is_measured(render: Render) -> None:
    words = "in eval mode under torch.no_grad(); all other directions in training mode"
    assert words in render(run_of(ok(case(direction="inference"), 1e-3))).replace("\\", "")
    assert words not in render(run_of(ok(case(), 1e-3))).replace("\\", "")


@pytest.mark.parametrize("render", [markdown.render, as_html])
def test_latency_and_device_time_each_have_a_verdict(render: Render) -> None:
    row = next(line for line in re.split(r"\n|(?= eager | native | custom_op )", render(gpu_run())) if "0.500×" in line)
    assert re.search(r"× \[[\d., ]+\] same .*0\.500× \[0\.500, 0\.500\] (\*\*)?slower", row)


@pytest.mark.parametrize("render", [markdown.render, as_html])
def test_how_sampling_ended_is_in_the_table_and_not_among_the_notes(render: Render) -> None:
    text = render(gpu_run())
    assert "20, target" in text
    assert text.count("20, time limit") == 2
    assert "a note" in text


@to_read
def test_blocks_not_measured_yet_are_one_line(render: Render) -> None:
    far = [
        case(variant=name, direction=way) for way in ("forward_backward", "backward") for name in ("eager", "native")
    ]
    text = render(run_of(ok(case(), 1e-3), missing=[case(variant="native"), *far]))
    assert "not measured yet: forward_backward; backward" in " ".join(text.replace("\\", "").split())
    assert text.count("missing: not measured yet") == 1


def test_labels_of_a_logarithmic_axis_never_overlap() -> None:
    for low, high in itertools.product((1e-6, 3e-6, 7e-5), (25, 70, 400, 1e4, 1e7)):
        for inches in (1.8, 3.0, 7.0):
            figure = Figure(figsize=(inches, 2))
            axes = figure.add_axes((0, 0.3, 1, 0.7))
            scale(axes, "x", "s", (low, low * high), log=True)
            figure.draw_without_rendering()
            boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert 1 <= len(boxes) <= 4
            assert all(one.x1 + 2 < other.x0 for one, other in itertools.pairwise(boxes))


def test_colour_is_only_on_top_of_words() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(terminal.render(showcase()))
    assert re.search(r"\d\] \x1b\[32mfaster", written(console))
    assert re.search(r"\x1b\[[\d;]*31m *failed", written(console))
    assert "\x1b" not in on_terminal(showcase())


def test_text_of_a_run_is_never_read_as_rich_markup() -> None:
    text = on_terminal(run_of(Measurement(case(layer="[red]a"), Status.FAILED, "[/nonsense] [bold]x")))
    assert "[red]a" in text
    assert "[/nonsense] [bold]x" in text


def test_the_comparison_of_two_runs_shows_changes_losses_and_doubts() -> None:
    old = run_of(ok(case(), metric(2e-3)), ok(case(variant="native"), 1e-3))
    new = run_of(ok(case(), metric(1e-3, seed=1), warnings=("hot",)), ok(case(variant="compile"), 1e-3))
    console = Console(width=140, file=io.StringIO(), color_system=None)
    console.print(terminal.render_comparison(compare_runs(new, old, 0.03), 0.03))
    text = written(console)
    assert "faster" in text
    assert "not in the old run" in text
    assert "not in the new run" in text
    assert "new: hot" in text


def test_the_footnotes_of_a_comparison_are_as_many_as_its_kinds_of_doubt_and_not_its_cases() -> None:
    def waited(shares: range) -> Run:
        return run_of(
            *(
                ok(case(k=k), 1e-3, warnings=(f"load {k} on 2 CPUs", f"waited {share}%"))
                for k, share in enumerate(shares)
            )
        )

    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(terminal.render_comparison(compare_runs(waited(range(30, 48)), waited(range(10, 28)), 0.03), 0.03))
    assert [line.strip() for line in written(console).splitlines() if line.startswith("[")] == [
        "[1] new: load 0 to 17 on 2 CPUs",
        "[2] new: waited 30 to 47%",
        "[3] old: load 0 to 17 on 2 CPUs",
        "[4] old: waited 10 to 27%",
    ]
    assert written(console).count("eager [1,2,3,4] ") == 18
    assert "of trimmed means, not the medians beside it" in " ".join(written(console).split())
    assert "undecided: the 99.5 % interval crosses that limit, or none" in " ".join(written(console).split())


def test_two_runs_that_share_no_case_name_each_once() -> None:
    old, new = (
        run_of(*(ok(case(layer, direction=way, k=k), 1e-3) for k in range(3)))
        for layer, way in (("shift", "backward"), ("vecadd", "inference"))
    )
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(terminal.render_comparison(compare_runs(new, old, 0.03), 0.03))
    text = written(console)
    assert [text.count(f"{layer} k={k} ") for layer in ("shift", "vecadd") for k in range(3)] == [1] * 6
    assert "3 cases: not in the old run\n3 cases: not in the new run" in "\n".join(map(str.strip, text.splitlines()))


def test_what_two_runs_have_in_common_is_a_sentence_with_the_factor_and_the_remedy() -> None:
    names = ("eager", "native", "script")
    old, new = (run_of(*(ok(case(variant=name), metric(time)) for name in names)) for time in (1e-3, 1.5e-3))
    changes = compare_runs(new, old, 0.08)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(terminal.render_comparison(changes, 0.08), terminal.comparison_summary(changes, 3))
    text = " ".join(written(console).split())
    assert "3 cases have about the same speed-up, 0.667× (latency on cpu): most likely the machine was slower" in text
    assert "no verdict rests on it; layerbench gate can tell, for it runs both sides in turns" in text
    assert "3 undecided" in text


def test_what_both_runs_skipped_is_a_line_and_cases_have_short_names() -> None:
    skipped = [Measurement(case(device="cuda", k=k), Status.SKIPPED, "no CUDA device") for k in (1, 2)]
    old, new = (run_of(ok(case(k=1), metric(centre)), ok(case(k=2), 1e-3), *skipped) for centre in (1e-3, 2e-3))
    changes = compare_runs(new, old, 0.03)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(terminal.render_comparison(changes, 0.03), terminal.comparison_summary(changes, 1))
    text = written(console)
    assert "shift k=1 forward eager" in text
    assert "2 skipped in both: no CUDA device" in text
    assert text.count("skipped") == 1
    assert "fail: something is slower or broken: 2 not compared, 1 same, 1 slower" in text


def test_a_report_is_documents_and_pictures_without_leftovers(report: Path) -> None:
    assert {path.name for path in report.iterdir()} == {*FILES.values(), "plots"}
    stems = {path.stem for path in (report / "plots").iterdir()}
    assert {"time-shift", "speedup-shift", "time-Слой-β", "scaling-unfold_conv2d-size"} <= stems
    assert {path.suffix for path in (report / "plots").iterdir()} == {".png", ".svg"}
    assert set(FILES) == set(FORMATS)


def test_pictures_are_of_readme_size_and_not_blank(report: Path) -> None:
    for path in (report / "plots").glob("*.png"):
        height, width, _ = imread(path).shape
        assert width == 1600
        assert 300 < height < 2400
        assert path.stat().st_size > 10_000
        assert imread(path).std() > 0.05


def test_pictures_are_whole_svg_and_the_markdown_links_them(report: Path) -> None:
    text = (report / "report.md").read_text(encoding="utf-8")
    for path in (report / "plots").glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")
        assert f"(plots/{path.stem}.png)" in text


def test_the_same_run_gives_the_same_report(report: Path, tmp_path: Path) -> None:
    for path in write_report(showcase(), tmp_path):
        assert path.read_bytes() == (report / path.relative_to(tmp_path)).read_bytes()


def test_a_run_without_an_ok_case_has_a_report_and_no_picture(tmp_path: Path) -> None:
    run = run_of(Measurement(case(), Status.FAILED, "crashed"), missing=[case(variant="native")])
    assert sorted(path.name for path in write_report(run, tmp_path)) == sorted(FILES.values())
    assert "crashed" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_thin_odd_and_huge_numbers_draw_without_a_complaint(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    slow = ok(case(variant="e$x$_{", k=-1), metric(3600.0, rounds=1))
    odd = ok(case(variant="nan", k=-1), metric(float("nan"), rounds=8))
    same = [ok(case(variant="e$x$_{", k=k), metric(1e-9, noise=0)) for k in (0, 1)]
    paths = write_report(run_of(slow, odd, *same, baseline="e$x$_{"), tmp_path)
    assert "scaling-shift-k.png" in {path.name for path in paths}
    assert [str(warning.message) for warning in recwarn] == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    replace_file(target, b"old")
    with pytest.raises(TypeError):
        replace_file(target, "not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"


def test_importing_the_formats_needs_neither_torch_nor_matplotlib() -> None:
    code = "import sys, bench.formats; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent).returncode == 0
