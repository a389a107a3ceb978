"""`chimerac compare`: its figures, the reasons of schedules that cannot run, its findings, and the forms of its output."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.instructions import AllReduce, Send
from chimerac.chimera_ir.model import TiedLayers, model_to_json
from chimerac.compiler import compile_schedule
from chimerac.compiler.command.main import main
from chimerac.compiler.descriptions import preset
from chimerac.compiler.library import find, names
from tests.helpers import without_colour
from tests.helpers_events import makespan


def compared(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Run `chimerac compare`, and return the rows of its JSON by schedule.

    Args:
        status: the expected exit status.
    """
    assert main(["compare", *words, "--emit", "json"]) == status
    found = json.loads(capsys.readouterr().out)
    return {row["schedule"]: row for row in found["schedules"]}


# Makespan, and the most wall bubble and the most activations of a rank, at D=4, N=8, F=1, B=2: published, or from an
# independent simulation. A rank of `interleaved` has two stages, so a micro-batch alive on one of them counts as half an
# activation. A micro-batch of `chimera_halving` is half as large as in the other schedules, and counts as half an activation.
KNOWN = {
    "gpipe": (33, 9, 8),
    "1f1b": (33, 9, 4),
    "chimera": (30, 6, 4),
    "chimera_doubling": (28, 4, 8),
    "chimera_halving": (26, 2, 4),
    "interleaved": (28.5, 4.5, 5.5),
    "zb_h1": (27, 3, 4),
    "dualpipe": (26, 2, 5),
    "chimera_fill": (25, 1, 4),
}


def test_makespans_bubbles_and_activations_are_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    rows = compared(capsys, "-p", "D=4", "-p", "N=8")
    assert sorted(rows) == names()
    most = 1  # the index in a pair: the least and the most of all ranks
    for name, (time, bubble, activations) in KNOWN.items():
        row = rows[name]
        assert (row["makespan"], row["wall_bubble"][most], row["activations"][most]) == (time, bubble, activations), name
    two_copies = ("bitpipe", "chimera", "chimera_any", "chimera_doubling", "chimera_fill", "chimera_halving",
                  "chimera_recompute", "chimera_zb", "dualpipe", "gems")  # fmt: skip
    assert {name: row["weights"][most] for name, row in rows.items()} == dict.fromkeys(rows, 1) | dict.fromkeys(two_copies, 2)
    times = [row["makespan"] for row in rows.values()]
    assert times == sorted(times), "the rows begin with the fastest schedule"


@pytest.mark.parametrize("name", names())
def test_all_schedules_do_the_same_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Busy time is the makespan without the bubble. Its mean over the ranks is N (F + B), whatever the number of stages is."""
    row = compared(capsys, name, "-p", "D=4", "-p", "N=8", "--cost", "F=2", "--cost", "B=3", "--recompute", "none")[name]
    busy = row["makespan"] * (1 - row["bubble_ratio"])
    assert busy == pytest.approx(8 * (2 + 3), rel=1e-4)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "chimera", "chimera_halving", "gems", "zb_v"])
def test_communication_is_as_much_as_the_streams_have(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = compared(capsys, name, "-p", "D=4", "-p", "N=8", "--width", "2", "--cost", "hop=1/3")[name]
    # The size of a micro-batch, in micro-batches of the other schedules.
    size = Fraction(1, 2) if name == "chimera_halving" else Fraction(1)
    program = compile_schedule(name, {"D": 4, "N": int(8 / size)}, width=2).program
    # The size of a stage, in shares. A share is the model divided by the ranks.
    share = Fraction(4, program.header.stages)
    sent, all_reduced = Counter[int](), Counter[int]()
    for rank in range(program.world):
        for i in program.stream(rank):
            if isinstance(i, Send):
                sent[rank] += len(i.micro_batches)
            if isinstance(i, AllReduce):
                all_reduced[rank] += 2 * Fraction(len(i.ranks) - 1, len(i.ranks)) * share  # what a rank of a ring sends
    assert row["messages"] == max(sent.values()) * size
    assert row["all_reduced"] == pytest.approx(float(max(all_reduced.values())), abs=1e-6)


def test_the_memory_is_that_of_the_report_and_the_bytes_sent_are_those_computed_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ["--model", "gpt-small", "--optimizer", "adamw"]
    row = compared(capsys, "chimera", "-p", "D=2", "-p", "N=4", *model)["chimera"]
    assert main(["chimera", "-p", "D=2", "-p", "N=4", *model, "--emit", "report"]) == 0
    table = capsys.readouterr().out.split("memory of")[1]
    assert row["memory_bytes"] == max(  # of the last numbers in the rows of the ranks: the peaks
        int(peak.replace(",", "")) for peak in re.findall(r"^ +\d .* ([\d,]+)$", table, re.MULTILINE)
    )
    # A message has 4 samples x 128 tokens x 128 numbers of 4 bytes. Each rank sends 2 activations and 2 gradients. Each
    # rank also has both stages. In a ring of 2 ranks, it sends as many bytes as their gradients have.
    assert row["message_bytes"] == 4 * 4 * 128 * 128 * 4
    assert row["all_reduced_bytes"] == 4 * preset("gpt-small").description(4).parameters
    assert main(["compare", "chimera", "-p", "D=2", "-p", "N=4", *model]) == 0
    notes = " ".join(capsys.readouterr().out.split())
    assert "Activations and weights are in shares" in notes and "Messages, all-reduce and memory are bytes" in notes


def test_a_tied_parameter_is_reduced_once_and_not_with_the_other_parameters_of_its_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = preset("gpt-nano").description(4)
    tied = TiedLayers("embedding", layers=(0, 3), parameters=1024, weight_bytes=4096, gradient_bytes=4096)
    (tmp_path / "m.json").write_text(model_to_json(replace(model, tied=(tied,))))
    (tmp_path / "t.sched").write_text(find("1f1b").text.replace("order ", "tied embedding on stages 0, 1\norder ", 1))
    words = (str(tmp_path / "t.sched"), "-p", "D=2", "--width", "2", "--model", str(tmp_path / "m.json"))
    row = compared(capsys, *words)[words[0]]
    first, second = (4 * sum(layer.parameters for layer in model.layers[a:b]) for a, b in ((0, 2), (2, 4)))
    # A ring of 2 ranks all-reduces the stage without the tied parameter, a ring of 4 ranks the tied parameter.
    assert row["all_reduced_bytes"] == max(first, second) - 4096 + 4096 * 2 * 3 // 4
    assert row["all_reduced"] == 1, "each of 2 ranks sends as much as its stage has; tied parameters are not counted"


def test_a_schedule_that_cannot_run_has_the_reason_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = compared(capsys, "chimera", "1f1b", "gems", "-p", "D=4", "-p", "N=5")
    assert rows["1f1b"]["makespan"] == 24
    assert rows["chimera"]["reason"] == "E210: this does not hold: N >= 1 and N % D == 0; give -p N=4 or -p N=8"
    assert "N % 2 == 0" in rows["gems"]["reason"]
    rows = compared(capsys, "gpipe", "1f1b", "-p", "D=2", "-p", "N=8", "--model", "gpt-nano", "--memory", "6MB")
    assert rows["gpipe"]["reason"].startswith("E461") and "makespan" in rows["1f1b"]
    assert "stage 7" in compared(capsys, "1f1b", "--recompute", "7", status=1)["1f1b"]["reason"]


def test_a_file_has_a_row_named_by_its_path_unless_it_is_wrong_at_every_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.sched"
    own.write_text("schedule mine  param N = 2  ranks 2  stages 2  pipe a { stage s on rank s micro_batches N }\n"
                   "order ticks { F(s, m) at s + m  B(s, m) at 99 - s + m }")  # fmt: skip
    rows = compared(capsys, str(own), "1f1b", "-p", "D=2", "-p", "N=2")
    assert rows[str(own)]["makespan"] == rows["1f1b"]["makespan"] == 9
    assert compared(capsys, str(own), "1f1b")[str(own)]["reason"] == "it has 2 ranks, and the setting has 4"
    own.write_text(own.read_text().replace("ranks 2 ", "param D = 4  let q = 12 // (D - 3)  require q > 0  ranks 2 "))
    assert compared(capsys, str(own), "1f1b", "-p", "D=3")[str(own)]["reason"].startswith("E205"), "D - 3 is 0"
    own.write_text(own.read_text().replace("s + m ", "s + x "))
    assert main(["compare", str(own), "1f1b"]) == 1
    assert "E201" in capsys.readouterr().err, "an error at every size is a finding of the command, and not a row of the table"


def test_the_setting_has_costs_recomputation_and_other_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("interleaved", "1f1b", "-p", "D=4", "-p", "N=4", "-p", "v=3", "--cost", "hop=0.5", "--recompute", "0..3")
    rows = compared(capsys, *words)
    program = compile_schedule("1f1b", {"D": 4, "N": 4}, recompute="0..3").program
    costs = replace(  # in halves of the unit of the command line: costs of a program are integers
        program.costs, FWD=(2,) * 4, BWD=(4,) * 4, BWD_INPUT=(2,) * 4, BWD_WEIGHT=(2,) * 4, RECOMPUTE=(2,) * 4, hop=1
    )
    assert rows["1f1b"]["makespan"] * 2 == makespan(replace(program, costs=costs))
    assert rows["interleaved"]["recomputed_stages"] == rows["1f1b"]["recomputed_stages"] == [0, 1, 2, 3]
    small = compared(capsys, "1f1b", "-p", "D=2", "-p", "N=2", "--cost", "F=3e-8", "--cost", "I=0", "--cost", "W=0")
    assert small["1f1b"]["makespan"] == 9e-8, "three forwards one after another"


@pytest.mark.parametrize(
    ("words", "status", "fact"),
    [
        (["chimera", "-p", "Q=4"], 1, "none of these schedules has a parameter 'Q'"),
        (["chimera", "-p", "D=0"], 2, "-p D=0: expected 1 or more"),
        (["chimera", "--width", "0"], 2, "--width 0: expected 1 or more"),
        (["chimra"], 2, "did you mean 'chimera'?"),
        (["compar"], 2, "help: known: 1f1b"),
        (["chimera", "--cost", "F=x"], 2, "expected a number"),
        (["chimera", "--model", "gpt-smal"], 1, "did you mean 'gpt-small'?"),
        (["chimera", "--optimizer", "adamw"], 2, "give --model"),
        (["chimera", "--memory", "1GB"], 2, "--memory needs a model"),
        (["chimera", "--recompute", "x"], 2, "'x' is no stage"),
        (["chimera", "--emit", "timeline", "--columns", "19"], 2, "--columns 19: a timeline needs at least 20"),
    ],
)
def test_wrong_options_are_findings(words: list[str], status: int, fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == status
    out, err = capsys.readouterr()
    assert fact in err and not out


def test_the_timelines_have_the_colours_of_tasks_and_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "1f1b", "chimera", "-p", "D=2", "-p", "N=4", "--emit", "timeline", "--columns", "60"]
    shown = []
    for choice in ("never", "always"):
        assert main([*words, "--color", choice]) == 0
        shown.append(capsys.readouterr().out)
    plain, coloured = shown
    assert "\x1b" not in plain
    rows = [[line for line in text.splitlines() if line.startswith("rank")] for text in (plain, coloured)]
    # Idle time is drawn as dots without colours, and as blanks with colours.
    assert [line.replace(".", " ") for line in rows[0]] == [without_colour(line) for line in rows[1]]
    # 48;5;NUMBER sets the background colour. Rows 0 and 1 are those of 1f1b, rows 2 and 3 those of chimera.
    shades = [re.findall(r"48;5;(\d+)m([FB])", line) for line in rows[1]]
    assert len({shade for shade, _ in shades[0]}) == 2, "one pipe: a colour for F, and one for B"
    assert len({shade for shade, _ in shades[2]}) == 4, "two pipes"


def test_a_name_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a\x1b[31m.sched").write_bytes(find("1f1b").text.encode())
    for emit in ("table", "markdown", "timeline"):
        assert main(["compare", "a\x1b[31m.sched", "--emit", emit]) == 0
        out = capsys.readouterr().out
        assert "a\\x1b[31m.sched" in out and "\x1b" not in out


def test_a_description_fits_schedules_with_micro_batches_of_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.json").write_text(model_to_json(preset("gpt-nano").description(4)))
    words = ("chimera_halving", "1f1b", "-p", "D=4", "-p", "N=4", "--model", str(tmp_path / "m.json"), "--micro-batch", "8")
    rows = compared(capsys, *words)
    # The micro-batches of chimera_halving then have four samples, those of 1f1b eight.
    assert "makespan" in rows["chimera_halving"] and rows["1f1b"]["reason"].startswith("E002: --micro-batch 8: ")


def test_the_table_and_the_markdown_have_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "chimera", "1f1b", "gpipe", "gems", "-p", "D=4", "-p", "N=7"]
    forms = {}
    for emit in ("table", "markdown"):
        assert main([*words, "--emit", emit, "-o", str(tmp_path / emit)]) == 0
        forms[emit] = (tmp_path / emit).read_text().splitlines()
    table = [re.split(r"  +", line) for line in forms["table"][2:7]]  # the cells of the head and of four schedules
    markdown = [[c.strip() for c in line.split("|")[1:-1]] for line in forms["markdown"] if line.startswith("|")]
    del markdown[1]  # the line of dashes below the head
    assert [[c for c in row if c] for row in markdown] == table
    _, chimera, one_f_one_b, gpipe, _ = table
    assert len(chimera) == 2 and chimera[1].startswith("E210"), "a schedule that cannot run has its reason instead of numbers"
    assert one_f_one_b[:3] == ["1f1b", "30", "1.00"], "the first schedule that can run has speed 1"
    assert gpipe[1:3] == ["30", "1.00"], "a schedule that is as fast has speed 1 too"


def test_the_title_has_the_costs_that_are_used_and_numbers_are_without_exponents(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "1f1b", "-p", "D=2", "-p", "N=2", "--cost", "F=12345.6"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "; F=12346 B=2 I=1 W=1 for the share of one rank, hop=0\n" in out and " 37043 " in out and "recomputed" not in out
    assert main([*words, "--recompute", "0", "--cost", "hop=1/3"]) == 0
    out = capsys.readouterr().out
    assert "; F=12346 B=2 I=1 W=1 R=12346 for the share of one rank, hop=0.3333; recompute 0\n" in out
    assert "recomputed: the stages that" in out
    assert main(["compare", "1f1b", "--recompute", "7", "--emit", "markdown"]) == 1
    assert capsys.readouterr().out.endswith("|\n"), "there are no notes, and no empty line for them"


def test_a_backward_costs_as_much_as_its_halves(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("zb_h1", "1f1b", "-p", "D=4", "-p", "N=8", "--cost", "B=3")
    assert compared(capsys, *words, "--cost", "I=1") == compared(capsys, *words, "--cost", "I=1", "--cost", "W=2")
    assert main(["compare", *words, "--cost", "I=4"]) == main(["compare", *words, "--cost", "I=1", "--cost", "W=1"]) == 2
    assert "B=3, I=1, W=1" in capsys.readouterr().err
