"""`chimerac plan`: its table, its JSON and its plan for run.py, bad input, and Ctrl-C."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.profile import TIMES, LayerTimes, profile_from_json, profile_to_json
from chimerac.compiler.command import plan as command
from chimerac.compiler.command.main import main
from chimerac.compiler.library import find
from chimerac.compiler.plan import explore
from chimerac.compiler.plan.explore import PlanResult
from chimerac.interpreter.launch.options import parse_options
from tests.helpers import EXAMPLE_PROFILE, replaced

SCHEDULES = ("1f1b", "chimera", "interleaved", "chimera_halving", "zb_h1")
OPTIONS = {"--model": "gpt-nano", "--ranks": "4", "--batch": "16", "--profile": str(EXAMPLE_PROFILE), "--memory": "1GiB"}


def words_of(given: Mapping[str, str]) -> list[str]:
    """Return these options as words of a command line, with those of OPTIONS that are not given."""
    return [word for option in (OPTIONS | dict(given)).items() for word in option]


def check_that_counts_add_up(counts: Mapping[str, Any]) -> None:
    """Check that a search that was not interrupted counts every configuration once.

    Args:
        counts: the field `configurations` of its JSON form.
    """
    left_out = sum(counts["impossible"].values()) + counts["too_large_before_compiling"]
    left_out += counts["slower_than_the_best_in_any_case"]
    assert counts["total"] == left_out + counts["compiled"]


def test_the_command_prints_a_table_and_writes_a_plan_that_run_py_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.yaml"
    assert main(["plan", "1f1b", "chimera", *words_of({"--processes": "1", "-o": str(path)})]) == 0
    output = capsys.readouterr()
    assert "samples/s of the best configuration for each D" in output.out and "loses by" in output.out
    settings = parse_options([str(path)])
    assert settings.model == "gpt-nano" and settings.width and settings.split
    command_line = output.out[output.out.index("torchrun") :].replace("\\\n", " ").split()
    assert command_line[:4] == ["torchrun", "--nproc-per-node", "4", "interpreter/run.py"]
    assert parse_options(command_line[4:]) == settings, "the command line that is printed has the settings of the file"
    assert parse_options([str(path), "--seed", "7"]).seed == 7
    with pytest.raises(SystemExit):  # the plan is a config file already, and a run has at most one
        parse_options([str(path), "--config", str(path)])


# For N <= 4 the limit allows no rank to run its first forward, so the order gets stuck (E305).
STUCK = """schedule stuck
param D = 4          require D >= 1
param N = 2*D        require N >= 1
ranks D
stages D
pipe main { stage s on rank s   micro_batches N }
order greedy { prefer B, F   limit F - B <= N - 4 }
"""


def test_an_order_that_gets_stuck_is_counted_once_as_impossible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stuck.sched"
    path.write_text(STUCK)
    assert main(["plan", str(path), "1f1b", *words_of({"--processes": "1", "--emit": "json"})]) == 0
    counts = json.loads(capsys.readouterr().out)["configurations"]
    assert counts["impossible"].get("E305"), counts
    check_that_counts_add_up(counts)


@pytest.mark.parametrize(
    ("line", "finding"),
    [("require M >= 1", "E201]: unknown name 'M'"), ("param x require x >= 1", "E204]: parameter 'x' has no value")],
)
def test_a_text_that_no_parameters_make_right_is_a_finding(
    line: str, finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.sched"
    path.write_text(replaced(STUCK, ("ranks D", f"{line}\nranks D")))
    assert main(["plan", str(path), *words_of({"--processes": "1"})]) == 1
    output = capsys.readouterr()
    assert not output.out and f"error[{finding}" in output.err and "wrong.sched:4" in output.err


def test_json_says_why_neighbours_of_the_best_lose(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "1f1b", "chimera", *words_of({"--processes": "1", "--emit": "json"})]
    assert main(words) == 0
    first = capsys.readouterr().out
    file = json.loads(first)
    check_that_counts_add_up(file["configurations"])
    assert file["best"]["samples_per_s"] > 0
    assert file["neighbours"] and all(x["loses_by"] for x in file["neighbours"])
    assert main(words) == 0 and capsys.readouterr().out == first, "the same search gives the same JSON"


@pytest.mark.parametrize(
    ("given", "code", "fact"),
    [
        ({"--ranks": "-4"}, "E002", "--ranks -4: expected a number from 1"),
        ({"--batch": "0"}, "E002", "--batch 0: expected a number from 1"),
        ({"--memory": "-1"}, "E002", "--memory -1: expected bytes"),
        ({"--processes": "0"}, "E002", "--processes 0"),
        ({"--micro-batch": "2,0"}, "E002", "--micro-batch 2,0: expected numbers"),
        ({"--micro-batch": "1" * 5000}, "E002", "expected numbers from 1 to 2147483648"),
        ({"--micro-batch": "1,99999999999"}, "E002", "expected numbers from 1 to 2147483648"),
        ({"-o": "none/x.yaml"}, "E003", "none/x.yaml cannot be written: there is no folder none"),
        ({"-o": str(EXAMPLE_PROFILE)}, "E002", "would write over the file of --profile"),
        ({"-p": "N=4"}, "E002", "N follows from --batch"),
        ({"-p": "ff=4"}, "E002", "no schedule has this parameter"),
        ({"-p": "f=x"}, "E002", "'x' is not an integer"),
        ({"-o": "-"}, "E002", "stdout gets the table"),
        (
            {"-o": "plan.json"},
            "E002",
            "-o plan.json: interpreter/run.py reads a plan only from a file whose name ends in .yaml",
        ),
        ({"--profile": "nowhere.json"}, "E001", "nowhere.json"),
        ({"--model": "gpt-micro"}, "E714", "is one of gpt-nano, and the model is gpt-micro"),
        ({"--memory": "1000"}, "E718", "a rank has 1,000 bytes"),
        ({"--batch": "1"}, "E719", "with 1 sample in"),
        ({"--ranks": "7"}, "E719", "on 7 ranks"),
    ],
)
def test_bad_input_is_a_finding(given: dict[str, str], code: str, fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["plan", "1f1b", "chimera", *words_of(given)])
    output = capsys.readouterr()
    assert status == (2 if code.startswith("E0") else 1) and not output.out
    assert f"error[{code}]" in output.err and fact in output.err


def test_a_schedule_whose_order_never_finishes_is_impossible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its sizes are allowed, so only its compilation shows that it is impossible."""
    stuck = tmp_path / "stuck.sched"
    text = find("1f1b").text
    stuck.write_text(text.replace("B(s, m) at 2*D - 1 - s + 2*m", "B(s, m) at s + 2*m - 1"))
    assert stuck.read_text() != text
    assert main(["plan", str(stuck), *words_of({"--memory": "1GiB"})]) == 1
    error = capsys.readouterr().err
    assert "error[E719]" in error and "E304: the order deadlocks" in error
    assert "compile the schedule by itself" in error


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_profiles_in_two_precisions_are_compared(factor: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In bfloat16, every layer takes `factor` times as long as in float32."""
    profile = profile_from_json(EXAMPLE_PROFILE.read_text())
    sizes = tuple(replace(size, layers=tuple(scaled(x, factor) for x in size.layers)) for size in profile.sizes)
    half, plan = tmp_path / "half.json", tmp_path / "plan.yaml"
    half.write_text(profile_to_json(replace(profile, precision="bfloat16", sizes=sizes)))
    words = ["plan", "1f1b", "chimera", *words_of({"--processes": "1"}), "--profile", str(half)]
    assert main([*words, "--emit", "json", "-o", str(plan)]) == 0
    found = json.loads(capsys.readouterr().out)
    speeds = {entry["precision"]: entry["samples_per_s"] for entry in found["precisions"]}
    assert speeds.keys() == {"float32", "bfloat16"} and found["best"]["samples_per_s"] == max(speeds.values())
    dtype, other = ("bf16", "float32") if factor < 1 else ("fp32", "bfloat16")
    assert found["settings"]["dtype"] == dtype and f'dtype: "{dtype}"' in plan.read_text()
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.lstrip().startswith(f"in {other}"))
    assert f" {speeds[other]:.1f} " in row
    assert "the row of another precision has the best configuration in it" in lines
    assert main([*words, "--profile", str(half)]) == 2
    assert "two profiles have times in bfloat16" in capsys.readouterr().err
    assert main([*words, "-o", str(half)]) == 2 and "the file of --profile" in capsys.readouterr().err


@pytest.mark.parametrize("first_fits", [True, False])
def test_ctrl_c_in_the_search_of_a_later_profile_keeps_the_result_of_the_first(
    first_fits: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "half.json"
    half.write_text(EXAMPLE_PROFILE.read_text().replace("float32", "bfloat16"))
    searches = 0

    def interrupted_later(*arguments: Any) -> PlanResult:
        nonlocal searches
        searches += 1
        if searches == 2:
            raise KeyboardInterrupt
        return explore.search(*arguments)

    monkeypatch.setattr(command, "search", interrupted_later)
    given = {"--processes": "1"} | ({} if first_fits else {"--memory": "1KiB"})
    assert main(["plan", "1f1b", *words_of(given), "--profile", str(half)]) == 130
    output = capsys.readouterr()
    assert ("in float32" in output.out and "interrupted: 1 profile not tried" in output.err) == first_fits


def scaled(times: LayerTimes, factor: float) -> LayerTimes:
    """Return the times of a layer, multiplied by a factor."""
    return replace(times, **{name: getattr(times, name) * factor for name in TIMES.values()})


def test_a_profile_in_a_precision_without_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "half.json"
    path.write_text(EXAMPLE_PROFILE.read_text().replace("float32", "float16"))
    assert main(["plan", "1f1b", *words_of({"--profile": str(path)})]) == 1
    assert "has times in float16, in which run.py does not train" in capsys.readouterr().err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_prints_and_writes_the_best_so_far(
    processes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int, total: int) -> None:
        assert done <= 5 < total
        if done == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "_progress", lambda stack: interrupt)
    path = tmp_path / "plan.yaml"
    assert main(["plan", *SCHEDULES, *words_of({"--processes": processes, "-o": str(path)})]) == 130
    output = capsys.readouterr()
    assert re.search(r"^interrupted: the best so far; \d+ configurations were not tried$", output.err, re.MULTILINE)
    assert "not tried" in output.out and parse_options([str(path)]).model == "gpt-nano"
    assert not multiprocessing.active_children()


def test_ctrl_c_while_the_neighbours_are_tried_prints_the_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explore, "_neighbours", interrupted)
    assert main(["plan", *SCHEDULES, *words_of({"--processes": "1"})]) == 130
    output = capsys.readouterr()
    assert "interrupted: its neighbours were not tried" in output.err and "gpt-nano" in output.out


def test_ctrl_c_before_anything_fits_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_progress", lambda stack: interrupt)
    given = {"--memory": "1000000", "--zero": "never", "--processes": "1"}
    assert main(["plan", *SCHEDULES, *words_of(given)]) == 130  # the status after SIGINT
