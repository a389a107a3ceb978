"""`chimerac search`: its results and their certificates, which are checked again, bad input, and Ctrl-C."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.partition import partition_for
from chimerac.compiler import compile_schedule, compile_text, simulate
from chimerac.compiler.analyze.durations import profiled_durations
from chimerac.compiler.command import search_memory
from chimerac.compiler.command.main import main
from chimerac.compiler.command.values import state_of
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.profiles import find_profile
from chimerac.compiler.search import check
from chimerac.compiler.search.from_program import problem_of
from chimerac.compiler.search.given import given_from_durations
from chimerac.compiler.search.memory_limits import excess
from tests.helpers import EXAMPLE_PROFILE
from tests.helpers_loopback import deep_model, run_and_compare

ARGUMENTS = ["search", "chimera_zb", "-p", "D=4", "-p", "N=8", "--hop", "0.1", "--time", "2"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of one search: best.sched, and its certificate best.json."""
    folder = tmp_path_factory.mktemp("search")
    assert main([*ARGUMENTS, "-o", str(folder / "best.sched")]) == 0
    return folder


def test_a_result_is_simulated_as_certified(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = json.loads((written / "best.json").read_text())
    text = (written / "best.sched").read_text()
    compiled = compile_text(text)
    assert simulate(compiled.program).makespan == certificate["makespan"]
    # In tenths: 254 is the bound of the ranks, and 265 the makespan of the given schedule.
    assert 254 <= certificate["bound"] <= certificate["makespan"] <= 265
    assert check.main([str(written / "best.json"), str(written / "best.sched")]) == 0
    # A bound above that of the ranks is the solver's.
    expected = "both hold" if certificate["bound"] == 254 else "is the solver's, and was not proved again"
    assert expected in capsys.readouterr().out
    assert main(["fmt", "--check", str(written / "best.sched")]) == 0


def test_a_result_trains_as_one_process(written: Path) -> None:
    run_and_compare(compile_schedule(written / "best.sched").program, deep_model(6), seed=1)


def attained_by(certificate: dict[str, Any], name: str, field: str, value: int) -> list[dict[str, Any]]:
    """Return what a certificate says of its ranks, but for rank 1 with another task that gives its head or its tail."""
    ranks: list[dict[str, Any]] = copy.deepcopy(certificate["ranks"])
    ranks[1]["attained_by"][name][field] = value
    return ranks


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("makespan", lambda c: c["makespan"] - 1, "makespan: "),
        ("bound", lambda c: c["bound"] + 1, "bound: "),
        ("proved_optimal", lambda c: not c["proved_optimal"], "bound: "),
        ("limits", lambda c: [3] * 4, "its limit is 3"),
        ("digest", lambda c: "0" * 64, "digest"),
        ("links", lambda c: [[0] * 4] * 4, "makespan: "),
        ("costs", lambda c: {**c["costs"], "F": [9] * 4}, "costs of F: the certificate has [9, 9, 9, 9], and the schedule"),
        ("ranks", lambda c: [{**b, "head": b["head"] + 1} for b in c["ranks"]], "rank 0: "),
        ("ranks", lambda c: [{**b, "tail": b["tail"] + 1} for b in c["ranks"]], "rank 0: "),
        ("ranks", lambda c: [{**b, "busy": b["busy"] + 1} for b in c["ranks"]], "rank 0: "),
        ("ranks", lambda c: [], "rank 0: "),
        ("makespan", lambda c: None, "is no certificate"),
        ("costs", lambda c: {"F": c["costs"]["F"], "B": c["costs"]["I"]}, "is no certificate"),
        ("costs", lambda c: {**c["costs"], "F": [-1] * 4}, "0 or more"),
        ("links", lambda c: [], "is no certificate"),
        ("ranks", lambda c: attained_by(c, "head", "stage", 0), "says that its head is attained by"),
        ("ranks", lambda c: attained_by(c, "tail", "stage", 2), "says that its tail is attained by"),
        ("ranks", lambda c: attained_by(c, "head", "pipe", 7), "is no certificate"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_changed_certificate_is_refused(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: Any, message: str
) -> None:
    certificate = json.loads((written / "best.json").read_text())
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps({**certificate, field: value(certificate)}))
    assert check.main([str(changed), str(written / "best.sched")]) == 1
    assert message in capsys.readouterr().out


def test_the_kinds_of_tasks_in_a_certificate_may_have_any_order(written: Path, tmp_path: Path) -> None:
    certificate = json.loads((written / "best.json").read_text())
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps({**certificate, "costs": dict(reversed(certificate["costs"].items()))}))
    assert check.main([str(changed), str(written / "best.sched")]) == 0


def test_what_is_no_certificate_is_refused(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k, text in enumerate(("[" * 100_000, "[]", "", "1")):
        (path := tmp_path / f"{k}.json").write_text(text)
        assert check.main([str(path), str(written / "best.sched")]) == 1
        assert "is no certificate" in capsys.readouterr().out


def test_a_bound_of_the_solver_is_proved_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pipes, four micro-batches in all, a hop of 0.1. The solver proves 135 tenths, one more than the ranks' bound."""
    paths = [str(tmp_path / "best.json"), str(tmp_path / "best.sched")]
    arguments = ["chimera_zb", "-p", "D=4", "--hop", "0.1", "--time", "60", "-o", paths[1]]
    assert main(["search", *arguments]) == 0
    certificate = json.loads(Path(paths[0]).read_text())
    assert (certificate["solver"]["bound"], certificate["makespan"]) == (135, 135)
    assert check.main(paths) == 0
    assert "bound 135 is the solver's, and was not proved again" in capsys.readouterr().out
    assert check.main([*paths, "--solve", "60"]) == 0
    assert "makespan 135, bound 135: both hold" in capsys.readouterr().out
    certificate["ranks"].append({"rank": 99, "head": 135, "busy": 0, "tail": 0, "residence": 0})  # of no rank
    Path(paths[0]).write_text(json.dumps(certificate))
    assert check.main(paths) == 0
    assert "bound 135 is the solver's, and was not proved again" in capsys.readouterr().out
    certificate["solver"]["bound"] = certificate["bound"] = 136
    Path(paths[0]).write_text(json.dumps(certificate))
    assert check.main([*paths, "--solve", "60"]) == 1
    assert "the solver does not prove its bound 136 again" in capsys.readouterr().out


def test_uneven_stages_and_links_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs: dict[str, Any] = {"format": "chimera-search-costs", "version": 1, "F": [1, 1.5, 1, 2], "B": [2, 3, 2, 4.5]}
    costs |= {"links": [[abs(a - b) / 4 for a in range(4)] for b in range(4)], "activations": [30, 20, 20, 10]}
    costs |= {"limits": [90, 60, 40, 20]}
    path, out = tmp_path / "costs.json", tmp_path / "found.sched"
    path.write_text(json.dumps(costs))
    assert main(["search", "1f1b", "-p", "D=4", "-p", "N=6", "--costs", str(path), "--time", "5", "-o", str(out)]) == 0
    assert check.main([str(tmp_path / "found.json"), str(out)]) == 0
    certificate = json.loads((tmp_path / "found.json").read_text())
    assert certificate["costs"]["F"] == [4, 6, 4, 8] and certificate["links"][0] == [0, 1, 2, 3]
    assert certificate["proved_optimal"] and certificate["per_unit"] == "4"
    assert "proved optimal" in capsys.readouterr().err


def test_an_output_may_have_the_name_of_a_schedule_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["search", "1f1b", "-p", "D=2", "-p", "N=2", "--time", "5", "-o", "1f1b"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1f1b", "1f1b.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "--limit", "0"], "no order holds at most 0 on rank 0: one micro-batch there takes 1"),
        (["zb_v", "--limit", "1"], "the least limit of all ranks that has an order is 2"),
        (["1f1b", "--cost", "F=-1"], "expected a number like 2"),
        (["1f1b", "--hop=-1"], "--hop -1: expected a number like 2"),
        (["1f1b", "--time", "0"], "--time 0: expected seconds"),
        (["1f1b", "--time", "nan"], "--time nan: expected seconds"),
        (["1f1b", "--hop", "1", "--cost", "hop=1"], "leave one of them out"),
        (["1f1b", "--cost", "R=1"], "no recomputation"),
        (["chimera_recompute"], "orders no recomputation"),
        (["1f1b", "--costs", "negative.json"], "negative.json: F[1]: expected 0 or more, found -1"),
        (["1f1b", "--costs", "short.json"], "3 costs of F are given, and the schedule has 4 stages"),
        (["1f1b", "--costs", "links.json"], "links has 2 rows of 2 numbers; expected 4 rows of 4 numbers"),
        (["1f1b", "--costs", "held.json"], "no limit of what a rank may hold"),
        (["1f1b", "--costs", "other.json"], "is not a file of costs for a search"),
        (["1f1b", "-p", "N=20000"], "could not be written as a listing"),
        (["1f1b", "-o", "x.sched", "--certificate", "x.sched"], "is named twice"),
        (["1f1b", "-o", "x.sched", "--certificate", "./x.sched"], "is named twice"),
        (["1f1b", "-o", "links.sched", "--model", "links.json", "--memory", "1GB"], "links.json is named twice"),
        (
            ["1f1b", "-o", "links.sched", "--model", "gpt-nano", "--memory", "1GB", "--partition", "links.json"],
            "is named twice",
        ),
        (["1f1b", "-o", "none/x.sched"], "none/x.sched cannot be written: there is no folder none"),
        (["1f1b", "--seed", "-1"], "--seed -1: expected a number from 0"),
        (["1f1b", "--seed", "9999999999"], "--seed 9999999999: expected a number from 0"),
        (["1f1b", "--limit", "D"], "--limit D: expected a number of activations"),
        (["1f1b", "--costs", "both.json"], "both.json: hop and links both give the time of a message"),
        (["1f1b", "--tries", "5"], "--tries is for a search of texts"),
        (["1f1b", "--texts", "--profile", "p100", "-p", "D=4"], "is for a search of orders"),
        (["1f1b", "--texts", "-p", "D=4"], "-p is for a search of orders, not with --texts"),
        (["1f1b", "--model", "bert48"], "give --profile NAME, too"),
        (["1f1b", "--memory", "1GB"], "--memory needs a model: --model NAME"),
        (["1f1b", "--model", "gpt-nano", "--memory", "2MB", "--limit", "2"], "and --limit counts activations"),
        (
            ["1f1b", "--model", "gpt-nano", "--memory", "9MB", "--costs", "full.json"],
            "says what a rank may hold in other units",
        ),
        (["1f1b", "--optimizer", "adamw"], "--optimizer is for --memory"),
        (["1f1b", "--model", "gpt-nano", "--memory", "1MB"], "one micro-batch at a time needs "),
        (["1f1b", "--model", "bert48", "--profile", "p100", "--hop", "1"], "--profile and --hop both say"),
        (["1f1b", "--model", "bert48", "--profile", "p100", "--cost", "F=1"], "--profile and --cost both say"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "negative": {"F": [1, -1, 1, 1]},
        "short": {"F": [1, 1, 1]},
        "links": {"links": [[0, 1], [1, 0]]},
        "both": {"hop": 1, "links": [[0] * 4] * 4},
        "held": {"activations": [10] * 4},
        "full": {"activations": [10] * 4, "limits": [40] * 4},
        "other": {"format": "chimera-partition"},
    }
    for name, fields in files.items():
        Path(f"{name}.json").write_text(json.dumps({"format": "chimera-search-costs", "version": 1} | fields))
    given = arguments if "-p" in arguments else [*arguments, "-p", "D=4"]
    assert main(["search", *given]) == 2
    assert message in capsys.readouterr().err
    assert not Path("x.sched").exists()


def test_times_come_from_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forwards, and the slowest link, take as long as in the simulation of the given schedule with the same profile."""
    path = tmp_path / "my x.sched"
    words = ["1f1b", "-p", "D=4", "-p", "N=8", "--model", "bert48", "--profile", "p100", "--time", "1", "-o", str(path)]
    assert main(["search", *words]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"^makespan [0-9.]+ ms, wall", shown, re.MULTILINE) and "simulated with busy links" in shown
    command = shlex.split(shown.splitlines()[-1])  # python -m MODULE, then the arguments of `check`
    assert check.main(command[3:]) == 0
    program = compile_schedule("1f1b", {"D": 4, "N": 8}).program
    profile = find_profile("p100", "bert48")
    model = find_model("bert48", program.header.samples, seq_len=profile.seq_len)
    program = program.with_partition(partition_for(None, model, stages=4))
    durations = profiled_durations(program, model, profile)
    problem = problem_of(program, given_from_durations(program, durations))
    certificate = json.loads((tmp_path / "my x.json").read_text())
    assert certificate["costs"]["F"] == list(problem.durations[0])
    scale = problem.scale / durations.scale
    assert problem.durations[0] == tuple(int(x * scale) for x in durations.costs.FWD)
    sends = program.table.op == Op.SEND
    assert max(map(max, problem.links)) == (durations.latency + durations.occupied)[sends].max() * scale


def test_a_profile_in_half_precision_needs_the_same_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "half.json").write_text(EXAMPLE_PROFILE.read_text().replace('"float32"', '"bfloat16"'))
    words = ["search", "1f1b", "-p", "D=2", "--model", "gpt-nano", "--profile", str(tmp_path / "half.json"), "--time", "0.3"]
    assert main(words) == 1
    assert "has times in bfloat16, and --precision is float32" in capsys.readouterr().err
    assert main([*words, "--precision", "bfloat16", "-o", str(tmp_path / "x.sched")]) == 0
    assert check.main([str(tmp_path / "x.json"), str(tmp_path / "x.sched")]) == 0


@pytest.mark.parametrize("surplus", [0, 2_000_000])
def test_a_limit_in_bytes_is_kept_by_the_compiled_result(
    surplus: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1F1B needs 4,183,040 bytes.

    Args:
        surplus: by how many bytes the limits of the first search are too high.

    With a surplus, the found order needs too much, and the command searches again with lower limits.
    """
    exact = search_memory.memory_limits
    monkeypatch.setattr(search_memory, "memory_limits", lambda *given: exact(*given).lowered([-surplus] * 4))
    most_bytes, path = 4_000_000, tmp_path / "x.sched"
    words = ["1f1b", "-p", "D=4", "-p", "N=8", "--model", "gpt-nano", "--memory", str(most_bytes), "--optimizer", "adamw"]
    assert main(["search", *words, "--time", "0.5", "-o", str(path)]) == 0
    shown = capsys.readouterr().err
    assert ("searching again with lower limits" in shown) == (surplus > 0)
    assert check.main([str(tmp_path / "x.json"), str(path)]) == 0
    program = compile_schedule(path).program
    model = find_model("gpt-nano", program.header.samples)
    program = program.with_partition(partition_for(None, model, stages=4))
    assert not any(excess(program, model, state_of("adamw", zero=False), most_bytes))
    given = compile_schedule("1f1b", {"D": 4, "N": 8}).program.with_partition(program.partition)
    assert any(excess(given, model, state_of("adamw", zero=False), most_bytes))


@pytest.mark.parametrize("schedule", ["chimera_zb", "zb_v", "1f1b"])
def test_the_least_memory_that_is_named_is_enough_and_one_byte_less_is_not(
    schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "search",
        schedule,
        "-p",
        "D=2",
        "-p",
        "N=4",
        "--model",
        "gpt-small",
        "--time",
        "0.3",
        "-o",
        str(tmp_path / "x.sched"),
    ]
    assert main([*words, "--memory", "1MiB"]) == 2
    named = re.search(r"give --memory (\d+) or more", capsys.readouterr().err)
    assert named is not None
    least = int(named[1])
    assert main([*words, "--memory", str(least)]) == 0
    capsys.readouterr()
    assert main([*words, "--memory", str(least - 1)]) == 2
    assert f"one micro-batch at a time needs {least:,}" in capsys.readouterr().err


def test_without_numba_and_ortools_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chimerac.compiler.command.search.find_spec", lambda name: None)
    assert main(["search", "1f1b"]) == 2
    assert "numba, ortools" in (err := capsys.readouterr().err) and "pip install 'chimerac[search]'" in err


@pytest.mark.parametrize("more", [[], ["--placements"]], ids=" ".join)
def test_ctrl_c_writes_the_best_so_far_with_its_certificate(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, best: Fraction, bound: Fraction) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chimerac.compiler.command.search_progress.Progress.show", interrupt)
    path = tmp_path / "best.sched"
    assert (
        main(["search", "chimera_zb", "-p", "D=4", "-p", "N=8", "--hop", "0.5", "--time", "600", *more, "-o", str(path)]) == 130
    )
    assert capsys.readouterr().err.endswith("interrupted: the best so far\n")
    assert check.main([str(tmp_path / "best.json"), str(path)]) == 0


def test_the_checker_imports_nothing_of_the_search() -> None:
    code = "import sys, chimerac.compiler.search.check; print(*(m for m in sys.modules if 'compiler.search.' in m))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["chimerac.compiler.search.check"]
