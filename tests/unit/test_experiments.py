"""Experiments: grids, files and their mistakes, figures, comparisons and reports. No run is started."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chimerac.interpreter.experiments import plots
from chimerac.interpreter.experiments.__main__ import main
from chimerac.interpreter.experiments.compare import Compared
from chimerac.interpreter.experiments.execute import FORMAT, VERSION
from chimerac.interpreter.experiments.figures import Expected, figures_of
from chimerac.interpreter.experiments.file import Comparison, Experiment, find, read_experiment, shipped
from chimerac.interpreter.experiments.grid import RunValues, combinations
from chimerac.interpreter.experiments.runs import Run, check_comparison, plan_runs
from chimerac.interpreter.pipeline.programs import schedule_text

SMALL = """
title: Small
settings: {timed: 10}
grid:
  schedule: [1f1b, chimera]
  parameters: {D: 2, N: [2, 4]}
compare: {x: N, groups: schedule, baseline: {schedule: 1f1b}, figures: [samples_per_s, bubble]}
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "small.yaml"
        path.write_text(text)
        return path

    return write_file


def planned(path: Path) -> tuple[Experiment, list[Run]]:
    """Read an experiment file, check its comparison, and return the experiment and its runs."""
    experiment = read_experiment(path)
    runs, _ = plan_runs(experiment, path.parent / "runs" / experiment.name)
    check_comparison(experiment, runs)
    return experiment, runs


# --- grids --------------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_of_its_axes_and_cases() -> None:
    grid = {"schedule": ["a", "b"], "parameters": {"N": [1, 2], "D": 4}}
    cases = [{"width": 1, "parameters": {"f": 1}}, {"width": 2}]
    runs, unused_exclude = combinations({"lr": 0.1, "width": 9}, grid, cases, include=[], exclude=[])
    expected = []
    for schedule, n, (width, of_case) in itertools.product("ab", (1, 2), ((1, {"f": 1}), (2, {}))):
        settings = {"lr": 0.1, "width": width, "schedule": schedule, "parameters": {"N": n, "D": 4, **of_case}}
        expected.append(RunValues(settings, {}))
    assert unused_exclude is None
    assert sorted(map(str, runs)) == sorted(map(str, expected)) and len(runs) == 8


def test_runs_are_included_and_excluded() -> None:
    grid = {"schedule": ["a", "b"], "seed": [0, 1]}
    include = [{"schedule": "c", "labels": {"how": "other"}}, {"schedule": "a", "seed": 0}]
    runs, unused_exclude = combinations({}, grid, cases=[], include=include, exclude=[{"schedule": "b", "seed": 1}])
    assert unused_exclude is None
    assert [run.settings for run in runs[:3]] == [
        {"schedule": schedule, "seed": seed} for schedule, seed in (("a", 0), ("a", 1), ("b", 0))
    ]
    assert runs[3:] == [RunValues({"schedule": "c"}, {"how": "other"})], "the grid has the other included run already"


def test_with_include_and_without_a_grid_there_are_only_the_included_runs() -> None:
    assert combinations({"seed": 3}, {}, cases=[], include=[{"lr": 1.0}], exclude=[])[0] == [
        RunValues({"seed": 3, "lr": 1.0}, {})
    ]


# --- files --------------------------------------------------------------------------------------------------------------


def test_a_file_names_runs_and_their_comparison(write: Write) -> None:
    experiment, runs = planned(write(SMALL + "repetitions: 2\n"))
    assert experiment.title == "Small" and experiment.compare.groups == ("schedule",)
    assert [(r.labels["schedule"], r.labels["N"], r.repetition) for r in runs] == [
        (schedule, n, repetition) for repetition in (1, 2) for schedule in ("1f1b", "chimera") for n in (2, 4)
    ]
    assert all(r.ranks == 2 and r.settings.timed == 10 for r in runs)
    assert len({r.folder for r in runs}) == len(runs)


def test_runs_that_a_schedule_refuses_are_listed(write: Write) -> None:
    experiment = read_experiment(write(SMALL.replace("[2, 4]", "[2, 3]")))
    runs, impossible = plan_runs(experiment, Path("r"))
    assert len(runs) == 3 and len(impossible) == 1
    assert "chimera" in impossible[0].title and "N % D == 0" in impossible[0].reason


def test_a_schedule_may_be_a_file_beside_the_experiment_or_one_with_replaced_text(tmp_path: Path, write: Write) -> None:
    (tmp_path / "own.sched").write_text(schedule_text("1f1b"))
    text = SMALL.replace("[1f1b, chimera]", "[own.sched, late]").replace("baseline: {schedule: 1f1b}, ", "")
    text += "schedules: {late: {of: chimera, replace: {sync eager where idle: sync at end}}}\n"
    _, runs = planned(write(text))
    assert [r.labels["schedule"] for r in runs] == ["own", "own", "late", "late"]
    late = Path(runs[-1].settings.schedule).read_text()
    assert "sync at end" in late and "where idle" not in late


def test_values_that_are_lists_are_compared_as_texts(write: Write) -> None:
    grid = "  betas: [[0.9, 0.95], [0.8, 0.9]]\n"
    text = SMALL.replace("timed: 10", "model: gpt-small").replace("N: [2, 4]}\n", "N: 2}\n" + grid).replace("x: N", "x: betas")
    text = text.replace("schedule: 1f1b}", "schedule: 1f1b, betas: [0.9, 0.95]}").replace(", bubble", "")
    path = finish(write(text))
    assert main([str(path), "--report", "--work-dir", str(path.parent)]) == 0
    report = (path.parent / "runs" / "small" / "report.md").read_text()
    assert "ratio to 1f1b, betas=0.9 0.95 |" in report
    ratios = {" ".join(line.split(" | ")[:2]): line.split(" | ")[-1] for line in report.splitlines()}  # by betas and schedule
    # 0.714 is 0.25 s / 0.35 s: the iteration times of the first and the second run that `finish` writes.
    assert ratios["| 0.9 0.95 1f1b"] == "1.000 |" and ratios["| 0.8 0.9 1f1b"] == "0.714 |"
    places = [line.split(" | ")[:2] for line in report.splitlines() if line.startswith("| 0.")]
    assert places[:2] == [["| 0.9 0.95", "1f1b"], ["| 0.9 0.95", "chimera"]], (
        "the groups of one x follow each other, as the bars of the plot do"
    )
    assert "\n| betas | schedule | samples/s |" in report and "\n|---|---|---:|" in report


def test_a_label_with_a_taken_name_is_refused(write: Write) -> None:
    with pytest.raises(ValueError, match=r"small\.yaml: labels: W: every run has a value of this name already"):
        planned(write(SMALL.replace("timed: 10", "timed: 10, labels: {W: x}")))


def test_a_label_of_two_lines_gives_a_title_of_one_line(write: Write) -> None:
    _, runs = planned(write(SMALL.replace("timed: 10", 'timed: 10, labels: {why: "a\\nb"}')))
    assert runs[0].title == "1f1b D=2 N=2 why=a b"


def test_a_folder_of_results_that_cannot_be_made_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL + "schedules: {late: {of: chimera, replace: {sync eager where idle: sync at end}}}\n"
    path = write(text.replace("[1f1b, chimera]", "[1f1b, late]"))
    assert main([str(path), "--dry-run", "--work-dir", str(path)]) == 1
    assert capsys.readouterr().err == f"error: {path}/runs/small/schedules: Not a directory\n"


# The text of a wrong file, and a part of the message about it.
MISTAKES = {
    "titel: x": "small.yaml, line 1: titel: unknown key; did you mean 'title'?",
    "title: x": "the key 'compare' is missing",
    "title: 3\ncompare: {x: N}": "line 1: title: expected a text, found 3",
    "title: x\ncompare: {x: N, group: D}": "line 2: compare: group: unknown key; did you mean 'groups'?",
    "title: x\ncompare: {x: N, figures: [bubbel]}": "line 2: compare: figures: entry 1: unknown figure 'bubbel'; did",
    "title: x\ncompare: {x: N}\ngrid:\n  schedul: [a]": "line 4: grid: schedul: entry 1: unknown setting 'schedul'; did",
    "title: x\ncompare: {x: N}\ngrid:\n  N: [4]": "a parameter of the schedule belongs below parameters: N: ...",
    "title: x\ncompare: {x: N}\ngrid:\n  lr: [0.1, no]": "line 4: grid: lr: entry 2: expected a number, found 'no'",
    "title: x\ncompare: {x: N}\ngrid: {seed: []}": "expected at least one value, found an empty list",
    "title: x\ncompare: {x: N}\ngrid: {parameters: {D: [2, x]}}": "grid: parameters: D: entry 2: D: expected an integer",
    "title: x\ncompare: {x: N}\nsettings: {log-file: a}": "the runner writes the log of each run",
    "title: x\ncompare: {x: N}\ncases:\n  - {seed: 1}\n  - {seed: -1}": "line 5: cases: entry 2: seed: expected 0 or more",
    "title: x\ncompare: {x: N}\nexclude: [{seed: 5}]": "exclude: entry 1: no run has these values",
    "title: x\ncompare: {x: N}\ngrid: {seed: 5}\nexclude: [{seed: 5}]": "the file names no run",
    "title: x\ncompare: {x: N}\nminutes: .inf": "line 3: minutes: expected a finite number, found inf",
    "title: x\ncompare: {x: N}\nschedules:\n  a: {of: gpipe, replace: {}}": "replace: expected at least one line of the form",
    "title: x\ncompare: {x: N}\nrepetitions: 0": "line 3: repetitions: expected 1 or more, found 0",
    "title: x\ncompare: {x: N}\nschedules: {a: {of: chimara, replace: {a: b}}}": "did you mean 'chimera'?",
    "title: x\ncompare: {x: N}\nschedules: {a: {of: chimera, replace: {sink: b}}}": "replace: sink: chimera does not have this",
    "title: [x\n": "line 2: ",
    "- a": "expected lines of the form 'key: value'",
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_named_with_its_file(text: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(write(text))])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert MISTAKES[text] in message and "small.yaml" in message, message


def test_a_pipe_whose_reader_has_ended_causes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)  # every write to the pipe now fails
    for options in (["--list"], ["baseline", "--dry-run"]):
        command = [sys.executable, "-m", "chimerac.interpreter.experiments", *options]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
        assert (ended.returncode, ended.stderr) == (0, "")
    os.close(writer)


def test_a_name_of_neither_a_file_nor_an_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("baselin", "x" * 300):
        with pytest.raises(SystemExit):
            main([name])
        assert "and no experiment of that name; " in capsys.readouterr().err


def test_a_comparison_that_cannot_tell_runs_apart_or_has_an_unknown_name_is_refused(write: Write) -> None:
    with pytest.raises(ValueError, match=r"two runs have the same N, and differ in .*schedule"):
        planned(write(SMALL.replace("groups: schedule, ", "")))
    with pytest.raises(ValueError, match="compare: no run has 'M'; known: D, N"):
        planned(write(SMALL.replace("x: N", "x: M")))
    with pytest.raises(ValueError, match=r"two runs are the same, .*: name it once"):
        planned(write(SMALL.replace("grid:", "include: [{schedule: 1f1b, parameters: {D: 2, N: 2}, seed: 0}]\ngrid:")))


def test_settings_that_exclude_each_other_are_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(write(SMALL.replace("timed: 10", "timed: 10, loopback: true")))])
    assert "--timed needs ranks that sleep at the same time" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(write(SMALL.replace("timed: 10", "timed: 10, transport: nccl")))])
    assert "--timed has stages that sleep on processors: leave out --transport nccl" in capsys.readouterr().err


@pytest.mark.parametrize("name", shipped())
def test_shipped_experiments_are_possible(name: str, tmp_path: Path) -> None:
    experiment = read_experiment(find(name))
    small = tuple(run for run in experiment.runs if run.settings.get("width", 1) <= 16)  # the others take seconds to compile
    experiment = replace(experiment, runs=small, repetitions=1)
    runs, impossible = plan_runs(experiment, tmp_path)
    check_comparison(experiment, runs)
    assert runs and not impossible
    assert experiment.title and experiment.about


def test_importing_the_command_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys, chimerac.interpreter.experiments.__main__; print({'torch', 'matplotlib'} & set(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "set()\n"


# --- figures ------------------------------------------------------------------------------------------------------------


def write_log(path: Path, times: list[float], **more: Any) -> None:
    """Write the log of a run whose iterations took these seconds.

    Args:
        more: further fields of the line of each iteration.
    """
    lines: list[dict[str, Any]] = [{"format": "chimera-log"}]
    for number, seconds in enumerate(times, 1):
        line = {"iteration": number, "iteration_s": seconds, "bubble": [0.1, 0.3], "peak_memory_bytes": [number, 10 * number]}
        lines.append(line | {name: [0.5, 1.5] for name in ("value_wait_s", "send_wait_s", "all_reduce_wait_s")} | more)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_figures_are_computed_from_the_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_log(log, [9.0, 1.0, 2.0, 3.0, 4.0, 5.0], loss=3.5, tokens_per_second=7.0)
    log.write_text(log.read_text() + '{"iteration": 7, "iter')  # killed while it wrote a line
    expected = Expected(samples=12, bubble=0.25, iteration_s=2.0)
    found = figures_of(log, discard=1, expected=expected)
    assert (found["iteration_s"], found["iteration_q1_s"], found["iteration_q3_s"]) == (3.0, 2.0, 4.0)
    assert found["samples_per_s"] == 4.0 and found["predicted_samples_per_s"] == 6.0 and found["tokens_per_s"] == 7.0
    assert found["busy_of_ranks"] == [0.9, 0.7] and found["bubble"] == pytest.approx(0.2)
    assert found["peak_memory_bytes"] == 60 and found["all_reduce_wait_s"] == 1.0 and found["loss"] == 3.5
    assert "recompute_s" not in found, "the log is from a version that did not measure it"
    assert "held_out_loss" not in found and found["iterations"] == 5
    write_log(log, [9.0, 1.0, 2.0], recompute_s=[0.25, 0.75])
    assert figures_of(log, discard=1, expected=expected)["recompute_s"] == 0.5


def test_only_the_last_attempt_of_a_run_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_log(log, [9.0, 9.0])
    first = log.read_text()
    write_log(log, [1.0])
    log.write_text(first + log.read_text())
    expected = Expected(samples=1, bubble=0.0, iteration_s=None)
    assert figures_of(log, discard=5, expected=expected)["iteration_s"] == 1.0, "the last iteration is always counted"
    log.write_text("")
    with pytest.raises(ValueError, match="no iteration"):
        figures_of(log, discard=1, expected=expected)


def row(**values: Any) -> dict[str, Any]:
    """Return a row of the table of results: one run."""
    return {"repetition": 1, "seed": 0, **values}


def test_points_are_medians_with_their_spread_and_ratio() -> None:
    rows = [row(schedule="a", N=2, loss=value) for value in (1.0, 5.0, 2.0)]
    rows += [row(schedule="b", N=2, loss=8.0), row(schedule="b", N=4, loss=3.0)]
    compared = Compared(Comparison(x="N", groups=("schedule",), baseline={"schedule": "a"}), rows)
    point = compared.point("loss", panel="", group="b", x=2)
    assert point is not None and (point.value, point.ratio, point.count) == (8.0, 4.0, 1)
    point = compared.point("loss", panel="", group="a", x=2)
    assert point is not None and (point.value, point.low, point.high) == (2.0, 1.0, 5.0)
    point = compared.point("loss", panel="", group="b", x=4)
    assert point is not None and point.ratio is None, "there is no baseline at this N"
    assert compared.point("loss", panel="", group="a", x=4) is None, "there is no such run"
    assert compared.point("bubble", panel="", group="a", x=2) is None, "the runs lack this figure"


def test_the_spread_of_one_run_is_that_of_its_iterations() -> None:
    only_run = row(N=2, iteration_s=2.0, iteration_q1_s=1.0, iteration_q3_s=4.0, samples_per_s=10.0)
    compared = Compared(Comparison(x="N"), [only_run])
    time, speed = (compared.point(name, panel="", group="", x=2) for name in ("iteration_s", "samples_per_s"))
    assert time is not None and (time.low, time.high) == (1.0, 4.0)
    assert speed is not None and (speed.low, speed.high) == (5.0, 20.0)


# --- reports ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(write: Write) -> Path:
    """Return the file of an experiment whose runs are all done, except for one that failed."""
    return finish(write(SMALL.replace("title: Small", "title: <b>Small</b> & more")), failed=3)


def finish(path: Path, failed: int | None = None) -> Path:
    """Write results for all runs of an experiment, and return the path of its file.

    Args:
        failed: the index of the run that failed; None: all are done.

    The counted iterations of run k, from 0, take 0.2 (k + 1) s and 0.3 s.
    """
    _, runs = planned(path)
    for number, run in enumerate(runs):
        run.prepare()
        write_log(run.log, [0.1, 0.2 * (number + 1), 0.3])
        state = {"state": "failed", "exit_code": 1} if number == failed else {"state": "done", "exit_code": 0}
        record = {
            "format": FORMAT,
            "version": VERSION,
            "reason": "exit status 1" if number == failed else "",
            "started": "2020-01-02T00:00:00+00:00",
        }
        record |= {"seconds": 2.0, "host": {"name": "node7", "processor": "a processor", "processors": 2, "memory_gb": 4.0,
            "system": "Linux"}, "versions": {"torch": "9.9"}, "gpu_utilization": []}  # fmt: skip
        (run.folder / "result.json").write_text(json.dumps(record | state))
    return path


@pytest.mark.parametrize(
    "text, fact",
    [
        ("{", "is not JSON"),
        ("[]", "it is no object"),
        ('{"format": "chimera-experiment-run", "version": 2}', "'version': 2}, expected {'format': "),
        ('{"format": "chimera-experiment-run", "version": 1, "state": "done"}', "it has no 'exit_code'"),
    ],
)
@pytest.mark.parametrize("option", ["--report", "--dry-run", "--retry-failed"])
def test_a_result_that_cannot_be_read_is_named_and_kept(
    finished: Path, capsys: pytest.CaptureFixture[str], text: str, fact: str, option: str
) -> None:
    _, runs = planned(finished)
    result = runs[1].folder / "result.json"
    result.write_text(text)
    assert main([str(finished), option, "--work-dir", str(finished.parent)]) == 1
    error = capsys.readouterr().err
    assert str(result) in error and fact in error and "remove it, and its run is executed again" in error
    assert result.read_text() == text


def test_a_report_names_host_versions_settings_and_failures(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(finished), "--report", "--work-dir", str(finished.parent)]) == 1, "a run failed"
    assert "exit status 1" in capsys.readouterr().err
    folder = finished.parent / "runs" / "small"
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["schedule"], r["N"], r["host"]) for r in rows] == [(s, n, "node7") for s, n in (("1f1b", "2"), ("1f1b", "4"),
        ("chimera", "2"))]  # fmt: skip
    assert json.loads(rows[0]["busy_of_ranks"]) == [0.9, 0.7]
    markdown, page = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    for text in ("node7, a processor, 2 processors, 4.0 GB, Linux", "torch 9.9", "2020-01-02", "timed: 10",
        "3 of 4 are done, 1 failed", "chimera D=2 N=4",
        "with the costs in the schedules, and with free transfers for timed stages"):  # fmt: skip
        assert text in markdown and text in page, text
    assert "&lt;b&gt;Small&lt;/b&gt; &amp; more" in page and "<b>" not in page
    assert "src=" not in page and "<link" not in page and "<script" not in page, "the page needs no other file"
    ratio = next(line for line in markdown.splitlines() if line.startswith("| chimera | 2 |"))
    assert ratio.split(" | ")[-1] == "0.556 |"  # 0.25 s / 0.45 s: the iteration times of 1f1b and chimera (`finish`)


def test_a_report_names_schedules_that_have_the_same_runs(write: Write) -> None:
    text = SMALL.replace("[1f1b, chimera]", "[chimera, late]").replace("baseline: {schedule: 1f1b}, ", "")
    text += "schedules: {late: {of: chimera, replace: {sync eager where idle: sync at end}}}\n"
    path = finish(write(text))
    main([str(path), "--report", "--work-dir", str(path.parent)])
    report = (path.parent / "runs" / "small" / "report.md").read_text()
    for number in (2, 4):
        assert f"and so the same runs: N={number}, chimera and N={number}, late.\n" in report


def test_the_plots_are_in_the_page(finished: Path) -> None:
    pytest.importorskip("matplotlib")
    main([str(finished), "--report", "--work-dir", str(finished.parent)])
    folder = finished.parent / "runs" / "small"
    page = (folder / "report.html").read_text()
    assert page.count('<svg role="img" aria-label=') == 2
    for name in ("samples_per_s", "bubble"):
        assert (folder / f"{name}.svg").read_text().startswith("<svg") and f"]({name}.svg)" in (
            folder / "report.md"
        ).read_text()


def test_without_matplotlib_the_report_says_how_to_get_plots(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "is_available", lambda: False)
    main([str(finished), "--report", "--work-dir", str(finished.parent)])
    assert "pip install 'chimerac[report]'" in (finished.parent / "runs" / "small" / "report.md").read_text()
