"""The benchmark suite: what can be said without measuring, and that it measures."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import arguments, plots, results, table
from benchmarks.measure import medians, percentile, rate
from benchmarks.process import DriverFailed, Process
from benchmarks.progress import Progress
from benchmarks.run import count_steps, steps
from benchmarks.targets import Target, judge
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.growth import statements
from benchmarks.workloads.workload import Scale

ROOT = Path(__file__).resolve().parent.parent


# ------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["W99"], "unknown workload 'W99'; there are: W1, W2, W3, W4, W5, W6, W7, W8, W9, W10, W11, all"),
        (["W1", "--peers", "nobody"], "unknown peer 'nobody'; there are: "),
        (["W1", "--peers", ""], "unknown peer ''"),
        (["W1", "--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["W1", "--rounds", "many"], "invalid int value: 'many'"),
        (["W1", "--fast"], "--fast"),
        ([], "WORKLOAD"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.parse(words)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmarks: ")
    assert said in line


def test_all_is_every_workload_in_its_order():
    assert [each.name for each in arguments.parse(["all"]).workloads] == list(WORKLOADS)


def test_a_workload_named_twice_is_run_once():
    assert [each.name for each in arguments.parse(["W3", "W1", "W3"]).workloads] == ["W1", "W3"]


def test_without_peers_there_are_ours_and_the_limit():
    assert [each.name for each in arguments.parse(["W1", "--peers", "none"]).contenders] == ["django-dhara", "bare"]


def test_quick_is_one_round():
    assert arguments.parse(["W1", "--quick", "--rounds", "5"]).rounds == 1


# --------------------------------------------------------------------------------------------------------- figures


def test_a_percentile_is_one_of_the_values():
    values = range(1, 301)
    assert [percentile(values, percent) for percent in (50, 95, 99, 100)] == [150, 285, 297, 300]
    assert percentile([7.0], 1) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_rate_leaves_out_the_start():
    # Nothing happens for a second; then 100 tasks end evenly within one.
    samples = [(0.0, 100.0), (1.0, 100.0), (2.0, 0.0)]
    assert rate(samples, 0.05, 1.0) == pytest.approx(100)


def test_a_rate_is_taken_between_two_samples():
    samples = [(0.0, 100.0), (10.0, 50.0), (11.0, 0.0)]
    assert rate(samples, 0.5, 1.0) == pytest.approx(50)
    assert rate(samples, 0.25, 0.75) == pytest.approx(50 / 5.5)


def test_a_rate_needs_the_end():
    with pytest.raises(ValueError, match="as few as 0"):
        rate([(0.0, 10.0), (1.0, 1.0)], 0.05, 1.0)


def test_medians_are_of_the_rounds_that_have_the_figure():
    assert medians([{"a": 1.0, "b": 5.0}, {"a": 9.0}, {"a": 2.0}]) == {"a": 2.0, "b": 5.0}


# --------------------------------------------------------------------------------------------------------- targets

FIGURES = {
    "ours": {"rate": 90.0, "p99": 12.0},
    "slow": {"rate": 10.0, "p99": 20.0},
    "fast": {"rate": 100.0, "p99": 9.0},
}


def test_a_ratio_is_to_the_best_of_the_others():
    verdict = judge(Target("ours", "rate", 0.9, 1.2, of=("slow", "fast", "absent")), FIGURES)
    assert (verdict.beside, verdict.ratio) == ("fast", 0.9)
    assert (verdict.must_held, verdict.aim_held) == (True, False)


def test_the_best_latency_is_the_smallest():
    verdict = judge(Target("ours", "p99", 1.2, at_most=True, of=("slow", "fast")), FIGURES)
    assert verdict.beside == "fast"
    assert verdict.ratio == pytest.approx(12 / 9)
    assert verdict.must_held is False


def test_a_bound_without_others_is_of_the_figure_itself():
    assert judge(Target("ours", "p99", 12.0, 10.0, at_most=True), FIGURES).must_held is True
    assert judge(Target("ours", "p99", 12.0, 10.0, at_most=True), FIGURES).aim_held is False
    assert judge(Target("ours", "lost", 0, at_most=True), {"ours": {"lost": 0.0}}).must_held is True


def test_a_target_can_be_beside_another_figure_of_ours():
    figures = {"ours": {"rate": 100.0, "rate_2": 170.0}}
    verdict = judge(Target("ours", "rate_2", 1.3, 1.7, of=("ours",), of_metric="rate"), figures)
    assert (verdict.must_held, verdict.aim_held) == (True, True)


@pytest.mark.parametrize("row", ["ours", "absent"])
def test_what_was_not_measured_is_neither_held_nor_missed(row):
    verdict = judge(Target(row, "rate", 1.0, 1.0, of=("absent",)), FIGURES)
    assert (verdict.must_held, verdict.aim_held, verdict.ratio) == (None, None, None)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda each: each.name)
def test_every_target_speaks_of_a_figure_that_is_measured(workload):
    parts = workload.parts(Scale(long=True))
    names = {each.name for each in arguments.parse(["all"]).contenders}
    rows = {
        workload.row(each, part)
        for each in arguments.parse(["all", "--peers", "none"]).contenders
        for part in parts
        if workload.takes(each, part)
    }
    metrics = {metric.name for metric in workload.metrics}
    for target in workload.targets:
        assert target.row in rows
        assert {target.metric, target.of_metric or target.metric} <= metrics
        assert not target.of or set(target.of) & (rows | names)
    assert workload.primary in metrics
    assert set(workload.predicted) <= metrics


# ----------------------------------------------------------------------------------------------------------- order


def test_contenders_take_turns():
    given = arguments.parse(["W1", "--peers", "none"])
    order = [(part, each.name) for part, each in steps(WORKLOADS["W1"], given.contenders, Scale(), 0)]
    assert order == [
        ("1 process", "django-dhara"), ("1 process", "bare"), ("2 processes", "django-dhara"), ("2 processes", "bare")
    ]  # fmt: skip
    assert count_steps([WORKLOADS["W1"]], given.contenders, 3, Scale()) == 12


def test_what_takes_long_is_measured_once():
    given = arguments.parse(["W8", "--peers", "none"])
    assert [len(list(steps(WORKLOADS["W8"], given.contenders, Scale(long=True), n))) for n in range(2)] == [4, 2]


# ---------------------------------------------------------------------------------------------------------- output


@pytest.fixture
def section():
    target = Target("django-dhara", "rate", 0.9, 1.2, of=("peer",), says="beside the peer")
    figures = {"django-dhara": {"rate": 12_345.6}, "peer": {"rate": 10_000.0}}
    return {
        "workload": "W2", "title": "A title", "measures": "What it measures.", "prediction": "What is expected.",
        "predicted": {"rate": 12_000}, "primary": "rate",
        "metrics": [{"name": "rate", "title": "tasks/s", "digits": 0}],
        "date": "2026-11-30T00:00:00+00:00", "rounds": 2, "quick": False, "machine": {"cpu": "a processor"},
        "versions": {"PostgreSQL": "18.6"}, "server": {"fsync": "on"}, "contenders": {"peer": "its | settings"},
        "rows": {
            name: {"medians": each, "rounds": [each, each], "ratios": {"rate": 12_345.6 / each["rate"]}}
            for name, each in figures.items()
        },
        "failed": {"broken": "it does not start"}, "targets": [judge(target, figures).as_dict()], "series": {},
    }  # fmt: skip


def test_the_page_has_figures_ratios_targets_and_circumstances(section):
    page = results.render({"W2": section})
    for text in (
        "## W2: A title", "What is expected.", "| django-dhara | 12,346 |  |", "| peer | 10,000 | 1.23 x |",
        "| beside the peer | 1.23 x peer | ≥ 0.9 x | held | ≥ 1.2 x | held |", "| broken | failed |",
        "broken failed: it does not start", "| predicted | 12,000 |", "a processor", "fsync on", "its | settings",
    ):  # fmt: skip
        assert text in page


def test_the_page_keeps_the_sections_of_other_workloads(section, tmp_path):
    results.keep({**section, "workload": "W10", "title": "The old one"}, [], tmp_path)
    results.keep(section, ["w2.svg"], tmp_path)
    results.keep({**section, "title": "The new one"}, ["w2.svg"], tmp_path)
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## W2: The new one",
        "## W10: The old one",
    ]
    assert "![w2.svg](plots/w2.svg)" in page


def test_the_kept_page_is_made_from_the_kept_results():
    assert (results.FOLDER / "RESULTS.md").read_text(encoding="utf-8") == results.render(results.load())


def test_the_table_fits_a_terminal(section):
    shown = list(table.lines({**section, "failed": {"broken": "a reason " * 40}}))
    assert max(map(len, shown)) <= table.WIDTH
    assert any("broken" in line and "FAILED" in line for line in shown)


def test_without_matplotlib_there_are_no_plots_and_a_line_that_says_so(section, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = []
    assert plots.draw({**section, "workload": "W4"}, said.append, tmp_path) == []
    assert "matplotlib is not installed" in said[0]


@pytest.mark.parametrize(
    ("workload", "series", "names"),
    [
        ("W2", {}, []),
        ("W4", {"latencies": [1.0, 2.0, 30.0]}, ["w4-latency.svg"]),
        ("W7", {}, ["w7-shapes.svg"]),
        ("W8", {"churn": [[0, 5.0], [1, 7.0]], "pace": [[0, 300.0]]}, ["w8-churn.svg", "w8-pace.svg"]),
    ],
)
def test_plots_are_pictures_in_the_folder(section, tmp_path, workload, series, names):
    pytest.importorskip("matplotlib", reason="of the dependency group bench")
    given = {**section, "workload": workload, "series": {"django-dhara": series} if series else {}}
    assert plots.draw(given, print, tmp_path) == names
    for name in names:
        assert "<svg" in (tmp_path / name).read_text(encoding="utf-8")


def test_progress_elsewhere_than_on_a_terminal_is_a_line_now_and_then():
    stream = io.StringIO()
    progress = Progress(2, stream)
    for _ in range(100):
        progress.step("a step")
        progress.told(0.5)
    progress.say("a word")
    assert stream.getvalue().splitlines() == ["  0%         a step", "a word"]


# --------------------------------------------------------------------------------------------------------- drivers


def test_a_driver_that_fails_says_its_last_words():
    code = "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"
    with (
        Process([sys.executable, "-c", code], ["setup"], os.environ) as process,
        pytest.raises(DriverFailed, match="`setup` ended with exit code 3") as failed,
    ):
        process.finish(20)
    assert failed.value.tail == "what went wrong"


def test_a_driver_is_gone_with_all_that_it_started():
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60'], stdout=sys.stdout); print(p.pid); p.wait()"
    with Process(["sh", "-c", "exec " + sys.executable + ' -c "$0"'], [code], os.environ) as process:
        group = process.pid
        assert process.cpu_seconds() >= 0
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


@pytest.mark.parametrize("shape", ["empty", "1 M finished, 200,000 pending", "50 queues, 200,000 pending"])
@pytest.mark.django_db
def test_the_rows_of_a_shape_are_rows_that_a_claim_takes(shape, django_assert_max_num_queries):
    from django.db import connection

    from django_dhara.models import Task

    with connection.cursor() as cursor:
        for statement in statements(shape, Scale(quick=True)):
            cursor.execute(statement.replace("generate_series(1, ", "generate_series(1, 100 + 0 * "))
    assert Task.objects.ready().count() == 100
    ids = list(Task.objects.order_by("id").values_list("id", flat=True))
    assert ids == list(Task.objects.order_by("enqueued_at", "id").values_list("id", flat=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_says_all_of_it_in_one_object():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "W1", "W10", "--quick", "--peers", "none", "--json"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "BENCH_PROFILE": "test-bench"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    workloads = json.loads(run.stdout)["workloads"]
    assert list(workloads) == ["W1", "W10"]
    w1, w10 = workloads["W1"], workloads["W10"]
    for name in ("django-dhara", "bare"):
        assert w1["rows"][name]["medians"]["rate"] > 100
        assert w1["rows"][name]["medians"]["rate_2"] > 100
    assert 0 < w1["rows"]["django-dhara"]["medians"]["statements"] < 1
    assert all(math.isfinite(ratio) for ratio in w1["rows"]["bare"]["ratios"].values())
    assert {(each["says"], each["must_held"]) for each in w10["targets"]} == {
        ("tasks that never started", True), ("starts beyond the first", True), ("tasks not COMPLETED", True)
    }  # fmt: skip
    assert w1["failed"] == w10["failed"] == {}
    assert w1["machine"]["cores"]
    assert w1["versions"]["PostgreSQL"]
    assert "W10  A burst" in run.stderr
