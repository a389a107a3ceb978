"""`chimerac search --objective memory`: its results, their certificates, bad input, and Ctrl-C."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.partition import partition_for
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.analyze.memory import held_bytes
from chimerac.compiler.command.main import main
from chimerac.compiler.command.search_progress import exact_figure
from chimerac.compiler.command.values import state_of
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.search import check
from chimerac.compiler.verify import peaks

ARGUMENTS = ["search", "gpipe", "-p", "D=4", "-p", "N=8", "--objective", "memory"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of one search: lean.sched, and its certificate lean.json."""
    folder = tmp_path_factory.mktemp("search")
    assert main([*ARGUMENTS, "--time", "20", "-o", str(folder / "lean.sched")]) == 0
    return folder


def test_a_result_holds_less_and_takes_no_longer_than_the_given_order(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, found = (compile_schedule(x, p).program for x, p in (("gpipe", {"D": 4, "N": 8}), (written / "lean.sched", {})))
    assert simulate(found).makespan <= simulate(given).makespan
    assert max(peaks(found).activations) < max(peaks(given).activations)
    certificate = json.loads((written / "lean.json").read_text())
    assert certificate["memory"]["proved_least"] and certificate["limits"] == [max(peaks(found).activations)] * 4
    assert certificate["memory"]["makespan"] == simulate(given).makespan
    assert check.main([str(written / "lean.json"), str(written / "lean.sched")]) == 0
    claim = "no order that keeps the ranks' own limits and holds at most 3 on every rank takes at most 33, so of the orders "
    claim += "that keep these limits and take at most 33 this one holds the least"
    assert f"the solver's claim was not proved again (--solve SECONDS): {claim}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("makespan", lambda c: c["makespan"] - 1, "an order may take "),
        ("makespan", lambda c: 10**6, "which does not exceed 1000000"),
        ("proved_least", lambda c: not c["memory"]["proved_least"], "memory: not proved least"),
        ("ruled_out", lambda c: c["memory"]["ruled_out"] - 1, "memory: proved least; the order holds 4 on a rank, and 2 is"),
        ("ruled_out", lambda c: 4, "memory: proved least; the order holds 4 on a rank, and 4 is ruled out"),
        ("own_limits", lambda c: c["limits"][1:], "an integer limit for each of 4 ranks"),
        ("own_limits", lambda c: [3, 8, 8, 8], "the own limit of rank 0 is 3, and the order holds 4"),
        ("solver", lambda c: None, "which does not exceed"),
    ],
)
def test_a_changed_certificate_is_refused(
    field: str, value: Any, message: str, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = json.loads((written / "lean.json").read_text())
    certificate["memory"][field] = value(certificate)
    (tmp_path / "lean.json").write_text(json.dumps(certificate))
    assert check.main([str(tmp_path / "lean.json"), str(written / "lean.sched")]) == 1
    assert message in capsys.readouterr().out


def test_what_the_solver_ruled_out_is_ruled_out_again(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = json.loads((written / "lean.json").read_text())
    assert check.main([str(written / "lean.json"), str(written / "lean.sched"), "--solve", "60"]) == 0
    assert "was not proved again" not in capsys.readouterr().out
    certificate["memory"] |= {"ruled_out": 4, "proved_least": False}  # the found order holds 4
    (tmp_path / "lean.json").write_text(json.dumps(certificate))
    assert check.main([str(tmp_path / "lean.json"), str(written / "lean.sched"), "--solve", "60"]) == 1
    assert "the solver does not prove its bound" in capsys.readouterr().out


def test_bytes_are_those_of_the_compiled_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpipe", "-p", "D=4", "-p", "N=8", "--model", "gpt-nano", "--optimizer", "adamw", "--objective", "memory"]
    assert main(["search", *words, "--time", "2", "-o", str(tmp_path / "lean.sched")]) == 0
    shown = capsys.readouterr().err
    assert check.main([str(tmp_path / "lean.json"), str(tmp_path / "lean.sched")]) == 0
    needed = []
    for schedule, sizes in ((tmp_path / "lean.sched", {}), ("gpipe", {"D": 4, "N": 8})):
        program = compile_schedule(schedule, sizes).program
        model = find_model("gpt-nano", program.header.samples)
        program = program.with_partition(partition_for(None, model, stages=4))
        needed.append(max(x.peak for x in held_bytes(program, model, state_of("adamw", zero=False)).ranks))
    assert needed[0] < needed[1]
    assert f"no rank needs more than {needed[0]:,} bytes, for a makespan of at most 33; given: {needed[1]:,} bytes" in shown
    assert "proved least" not in shown and json.loads((tmp_path / "lean.json").read_text())["memory"] is None
    assert main(["search", *words, "--time", "2", "--memory", str(needed[0])]) == 0  # so many bytes are enough
    assert main(["search", *words, "--time", "2", "--memory", "4000000"]) == 2
    assert "takes at most 33 within --memory: the best one needs" in capsys.readouterr().err


def test_an_order_that_must_be_faster_holds_more(tmp_path: Path) -> None:
    held = []
    for makespan in ("33", "39", "96"):
        path = tmp_path / f"{makespan}.sched"
        assert main([*ARGUMENTS, "--makespan", makespan, "--time", "3", "-o", str(path)]) == 0
        program = compile_schedule(path).program
        assert simulate(program).makespan <= int(makespan)
        held.append(max(peaks(program).activations))
    assert held[0] > held[1] > held[2] == 1


def test_if_no_order_is_fast_enough_the_fastest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The known orders take 52.3, and the time is too short to find another one."""
    path = tmp_path / "lean.sched"
    words = ["search", "chimera_zb", "-p", "D=8", "-p", "N=16", "--hop", "0.1", "--objective", "memory", "--makespan", "52"]
    assert main([*words, "--limit", "8", "--time", "0.01", "-o", str(path)]) == 0
    assert "no order was found that takes at most 52: this is the fastest that was found" in capsys.readouterr().err
    assert check.main([str(tmp_path / "lean.json"), str(path)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--makespan", "0"], "--makespan 0: expected a number above 0"),
        (["--makespan", "1e999999999"], "--makespan 1e999999999: expected a number above 0"),
        (["--makespan", "1/0"], "--makespan 1/0: expected a number above 0"),
        (["--makespan", "12"], "no order within the limits takes at most 12: each takes at least 26"),
        (["--makespan", "34", "--limit", "1"], "no order within the limits takes at most 34: each takes at least "),
        (["--placements"], "leave out --objective memory"),
        (["--model", "gpt-nano", "--limit", "3"], "--model makes the search count bytes, and --limit counts activations"),
        (["--optimizer", "adamw"], "--optimizer is for --memory: give it, too, or --model"),
        (["--makespan", "12"], "give --makespan with more than 12"),
        (["--limit", "2"], "takes at most 33, as the given order does: each takes at least "),
        (["--limit", "2"], "give larger limits, or --makespan with more than 33"),
        (["--hop", "1/7", "--makespan", "3"], "takes at most 3: each takes at least 188/7"),
        (["--texts"], "--objective is for a search of orders"),
        (["--objective", "makespan", "--makespan", "40"], "--makespan is for --objective memory: give it, too"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [x for x in ARGUMENTS if x not in ("-p", "D=4", "N=8")] if "--texts" in arguments else ARGUMENTS
    assert main([*given, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_writes_the_best_so_far_with_its_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chimerac.compiler.command.search_progress.Progress.show_text", interrupt)
    words = ["search", "chimera", "-p", "D=8", "-p", "N=16", "--hop", "0.1", "--objective", "memory", "--time", "600"]
    assert main([*words, "-o", str(tmp_path / "lean.sched")]) == 130
    assert capsys.readouterr().err.endswith("interrupted: the best so far\n")
    assert check.main([str(tmp_path / "lean.json"), str(tmp_path / "lean.sched")]) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(-3, 8), "-0.375"),
        (Fraction(44, 3), "44/3"),
        (Fraction(10**30), "1" + "0" * 30),
        (1 + Fraction(1, 2**45), "1.000000000000028421709430404007434844970703125"),  # more digits than a Decimal keeps
    ],
)
def test_an_exact_figure_is_not_rounded(value: Fraction, text: str) -> None:
    assert exact_figure(value) == text
