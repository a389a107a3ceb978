"""Suggested changes work: each is made here as the help describes it, and then the order or the program runs."""

from __future__ import annotations

import random
import re
from itertools import islice
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.instructions import Bwd, BwdInput, Fwd, Recv
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.program import Machine, Program
from chimerac.chimera_ir.textline import instruction_text
from chimerac.compiler import compile_schedule, compile_text, verify
from chimerac.compiler.command.main import main
from chimerac.compiler.diagnose.repair import MAX_SHOWN, moves_help, repair_order
from chimerac.compiler.diagnose.trials import _reordered
from chimerac.compiler.library import find
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.lower.width import tasks_only
from chimerac.compiler.pipeline import compile_source, verify_program
from chimerac.compiler.tasks import TaskIndex, data_edges, earliest, task_costs
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import hang_on
from tests.helpers import SMALL, program, streams, with_move, with_streams
from tests.helpers_events import makespan as makespan_of
from tests.proof.disorder import with_own_orders
from tests.proof.drawn import MACHINES, random_tasks
from tests.proof.explorer import candidates


def code_and_help(text: str, parameters: dict[str, int]) -> tuple[str, str]:
    """Return the code and the help of the first finding for a schedule; empty if there is none."""
    try:
        compile_text(text, parameters, name="broken.sched")
    except ChimeraError as error:
        return error.diagnostics[0].code, error.diagnostics[0].help
    return "", ""


def with_edits(text: str, help: str) -> str:
    """Return the text after the edits that a help describes; empty if it describes none."""
    edits, tried, _ = help.partition("; tried with ")
    lines = text.split("\n")
    for edit in edits.split("\n")[::-1] if tried else []:  # from right to left: columns stay valid
        found = re.fullmatch(r"broken.sched:(\d+):(\d+): (?:write '(.*)' instead of|remove) '(.*)'", edit)
        assert found
        line, column = int(found[1]) - 1, int(found[2]) - 1
        before, after = lines[line][:column], lines[line][column:]
        assert after.startswith(found[4])
        lines[line] = before + (found[3] or "") + after.removeprefix(found[4])
    return "\n".join(lines) if tried else ""


def sizes_tried(help: str) -> list[dict[str, int]]:
    """Return the parameters with which an edit was tried and runs, as its help says."""
    without_limits = "(?:, at the other sizes? without the limits)?"
    rest = "(?:; with [^;]* the program stays the same)?(?:; it does not run with [^;]*)?"
    found = re.search(rf"; tried with (.*?){without_limits}: it then runs, makespan \d+, activations \d+{rest}$", help)
    assert found, help
    return [parameters_in(size) for size in re.split(" and with |, with ", found[1])]


def parameters_in(text: str) -> dict[str, int]:
    """Return the parameters in a text such as 'D=4 N=8', which is how a help writes them."""
    return {k: int(v) for k, v in (x.split("=") for x in text.split())}


def sizes_unchanged(help: str) -> list[dict[str, int]]:
    """Return the parameters with which an edit does not change the program, as its help says; none if it does not say so."""
    found = re.search(r"; with ([^;]*) the program stays the same", help)
    return [parameters_in(size) for size in re.split(" and with |, with ", found[1])] if found else []


def test_reordered_tasks_over_several_micro_batches_are_counted() -> None:
    """`forwards` numbers its lists of micro-batches in another order. So tasks must be compared by their micro-batches."""
    p = tasks_only(program("1f1b", D=1, N=4))
    original = with_streams(p, [[Fwd(0, 0, (0, 1)), Fwd(0, 0, (2, 3)), Bwd(0, 0, (0, 1)), Bwd(0, 0, (2, 3))]])
    forwards = with_streams(p, [[Fwd(0, 0, (2, 3)), Fwd(0, 0, (0, 1)), Bwd(0, 0, (0, 1)), Bwd(0, 0, (2, 3))]])
    kinds = with_streams(p, [[Fwd(0, 0, (0, 1)), Bwd(0, 0, (0, 1)), Fwd(0, 0, (2, 3)), Bwd(0, 0, (2, 3))]])
    # Pairs of neighbours whose order has changed: among all tasks, and among tasks of one kind.
    assert [_reordered(original, other) for other in (original, forwards, kinds)] == [(0, 0), (1, 1), (1, 0)]


def ends_of_formulas(text: str) -> list[int]:
    """Return the positions in a schedule at which the formulas of its ticks end."""
    return [m.end() for m in re.finditer(r"(?<= at )[^\n#]+?(?= *(#.*)?$)", text, re.MULTILINE)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "dapple", "chimera", "interleaved", "zb_h1", "gems"])
def test_the_suggested_formula_corrects_the_order(name: str) -> None:
    parameters, text = SMALL[name][1], find(name).text
    suggested = 0
    for end in ends_of_formulas(text):
        for change in (" - 40", " - 9*s", " + 2*s", " + 40 - 7*m"):
            broken = text[:end] + change + text[end:]
            code, help = code_and_help(broken, parameters)
            if code == "E304" and with_edits(broken, help):
                for size in sizes_tried(help):
                    assert code_and_help(with_edits(broken, help), size) == ("", "")
                suggested += 1
    assert suggested >= 2


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("s + 2*m", "2*D - s + 2*m"),  # one too late
        ("D - 1 - s + 2*m", "2*D - 1 - s + 2*m"),  # forwards from the last stage to the first
        ("s + 2*m", "2*D - 1 - s - 2*m"),  # a sign
        ("s + 2*m", "D - s + 2*m"),  # a warm-up that is too short
    ],
)
def test_a_slip_in_1f1b_is_corrected_to_an_order_as_good_as_1f1b(forward: str, backward: str) -> None:
    text = f"""schedule slip
param D = 4
param N = 8
ranks D   stages D
pipe main {{ stage s on rank s   micro_batches N }}
order ticks {{
    F(s, m) at {forward}
    B(s, m) at {backward}
}}
"""
    code, help = code_and_help(text, {})
    assert code in ("E303", "E304")
    sizes = "with D=4 N=8, with D=8 N=16 and with D=4 N=16"
    # 33 and 4: the makespan of 1F1B with D=4 and N=8, and the most activations of a rank.
    assert help.endswith(f"; tried {sizes}: it then runs, makespan 33, activations 4"), help
    assert makespan_of(compile_text(with_edits(text, help)).program) == 33


def test_a_suggestion_respects_the_limits_of_the_schedule() -> None:
    text = find("1f1b").text.replace("2*D - 1 - s + 2*m", "2*D - 1 - s - 2*m") + "limit activations <= 4\n"
    code, help = code_and_help(text, {"D": 4, "N": 8})
    assert code == "E304" and compile_text(with_edits(text, help), {"D": 4, "N": 8})


@pytest.mark.parametrize("name", ["1f1b", "dapple", "chimera", "zb_h1"])
def test_the_suggested_shift_separates_two_tasks(name: str) -> None:
    text = find(name).text
    for end in ends_of_formulas(text):
        for change in (" - 1", " + 1", " + s"):
            broken = text[:end] + change + text[end:]
            code, help = code_and_help(broken, SMALL[name][1])
            if code == "E303":
                for size in sizes_tried(help):
                    assert code_and_help(with_edits(broken, help), size) == ("", ""), help
                return
    pytest.fail("no change puts two tasks on one tick")


LISTING = """schedule listed
param D = 3
param N = 4
ranks D   stages D
pipe p { stage s on rank s   micro_batches N }
order listing for rank r {
    let warm_up = min(N, D - r)
    repeat warm_up { F }
    repeat N - warm_up { B  F }
    repeat warm_up { B }
}
"""


@pytest.mark.parametrize("wrong", ["min(N, r + 1)", "min(N, D - 1 - r)", "min(N, D + r)"])
def test_the_suggested_count_corrects_a_listing(wrong: str) -> None:
    right = compile_text(LISTING)
    broken = LISTING.replace("min(N, D - r)", wrong)
    code, help = code_and_help(broken, {})
    assert code == "E304"  # with each of these counts, tasks wait for each other
    for size in sizes_tried(help):
        assert code_and_help(with_edits(broken, help), size) == ("", "")
    assert makespan_of(compile_text(with_edits(broken, help)).program) == makespan_of(right.program)


TWOS = """schedule twos
param D = 2
param N = 8
ranks D   stages D
pipe main { stage s on rank s   micro_batches N }
order listing for rank r {
    let warm_up = 2*(D - r)
    repeat warm_up { F }
    repeat (N - warm_up)//2 { B B F F }
    repeat warm_up { B }
}
"""


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_edit_for_one_size_leaves_the_programs_of_other_sizes_as_they_were(micro_batches: int) -> None:
    """With N=2, D and N are equal, and so are their doubles. There min(D, ...) would run too, but be slower for N=8."""
    code, help = code_and_help(TWOS, {"N": micro_batches})
    assert code == "E306" and "write 'min(N, 2*(D - r))' instead of '2*(D - r)'" in help
    edited = with_edits(TWOS, help)
    assert {"D": 2, "N": 8} in sizes_unchanged(help)
    for size in sizes_unchanged(help):
        assert compile_text(edited, size).program == compile_text(TWOS, size).program
    for size in sizes_tried(help):
        assert code_and_help(TWOS, size)[0] and code_and_help(edited, size) == ("", "")


def test_no_edit_changes_the_program_of_the_defaults() -> None:
    suggested = 0
    for body in ("B B F F", "B F B F", "B B & F F", "B  B  F & F"):
        text = TWOS.replace("B B F F", body)
        if code_and_help(text, {})[0]:
            continue
        for size in ({"N": n, "D": d} for n in range(1, 6) for d in (1, 2, 3)):
            code, help = code_and_help(text, size)
            if code and "tried" in help:
                assert compile_text(with_edits(text, help)).program == compile_text(text).program, (body, size)
                suggested += 1
    assert suggested >= 4


def test_edits_are_tried_at_sizes_where_the_parameters_have_another_ratio() -> None:
    """With D=4 and N=8, and with both doubled, N is 2*D. At another size it is not."""
    broken = LISTING.replace("min(N, D - r)", "min(N, r + 1)")
    code, help = code_and_help(broken, {"D": 4, "N": 8})
    assert code == "E304"
    sizes = sizes_tried(help)
    assert sizes[0] == {"D": 4, "N": 8} and any(size["N"] != 2 * size["D"] for size in sizes)


def test_a_suggested_value_of_a_parameter_compiles() -> None:
    """N=0 and N=2 meet the requirement too. But N=0 gives no micro-batches, and N=2 fewer than the warm-up needs."""
    text = TWOS.replace("ranks D ", "require N % 2 == 0\nranks D ")
    code, help = code_and_help(text, {"N": 1})
    assert (code, help) == ("E210", "give -p N=4")
    for refused in (0, 2):
        assert code_and_help(text, {"N": refused})[0]
    assert code_and_help(text, {"N": 4}) == ("", "")


def test_a_rank_counted_from_the_wrong_end_is_corrected_everywhere() -> None:
    broken = LISTING.replace("    let warm_up = min(N, D - r)\n", "").replace("warm_up", "r")
    code, help = code_and_help(broken, {})
    assert code == "E304" and help.count("write ") == 3
    assert code_and_help(with_edits(broken, help), {"D": 5, "N": 7}) == ("", "")


@pytest.mark.parametrize(
    ("first", "second", "edits", "makespan"),
    [
        ("repeat N { F  B }", "repeat N { F }  repeat N { B }", 1, 15),  # a loop that should be two
        ("F p(0, 0)  repeat N - 1 { B  F }  B", "repeat N { F }  repeat N { B }", 1, 24),  # two that should be one
        ("F p(0, 0)  repeat N - 1 { B  F }  B", "repeat N { F }\n  repeat N { B }", 2, 24),  # the same two, on two lines
        ("repeat N { F }  repeat N { B }", "repeat N { F & B }", 1, 15),  # a pair that needs its own result
        ("repeat N { F }  repeat N { B }", "repeat N { B  F }", 1, 15),  # the wrong way round
    ],
)
def test_regrouped_loops_correct_a_listing(first: str, second: str, edits: int, makespan: int) -> None:
    text = f"""schedule loops
param N = 4
ranks 2   stages 2
pipe p {{ stage s on rank s   micro_batches N }}
order listing for rank r {{
    if r == 0 {{ {first} }} else {{ {second} }}
}}
"""
    code, help = code_and_help(text, {})
    assert code == "E304" and len(help.split("\n")) == edits
    assert code_and_help(with_edits(text, help), {"N": 7}) == ("", "")
    assert makespan_of(compile_text(with_edits(text, help)).program) == makespan


def test_a_stage_counted_up_instead_of_down_is_corrected() -> None:
    text = """schedule up_and_up
param N = 4
ranks 2   stages 4
pipe p { stage s on rank s % 2   micro_batches N }
order listing for rank r {
    repeat k in 0 .. 1 { repeat N { F(2*k + r) } }
    repeat k in 0 .. 1 { repeat N { B(2*k + r) } }
}
"""
    code, help = code_and_help(text, {})
    assert code == "E304" and "write '2*(1 - k) + r' instead of '2*k + r'" in help
    assert code_and_help(with_edits(text, help), {"N": 7}) == ("", "")


@pytest.mark.parametrize("machine", ["paired", "serial"])
def test_suggestions_are_arranged_for_the_machine_that_is_given(machine: Machine) -> None:
    broken = LISTING.replace("min(N, D - r)", "min(N, r + 1)")
    with pytest.raises(ChimeraError) as caught:
        compile_source(Source("broken.sched", broken), {}, machine=machine)
    help = caught.value.diagnostics[0].help
    assert f": it then runs with --for {machine}, makespan" in help
    assert compile_source(Source("broken.sched", with_edits(broken, help)), {}, machine=machine, arrange=True)


def test_a_suggestion_says_that_it_was_tried_without_the_limits_at_other_sizes() -> None:
    broken = LISTING.replace("min(N, D - r)", "min(N, r + 1)") + "limit activations <= 3\n"
    code, help = code_and_help(broken, {})
    assert code == "E304" and ", with D=6 N=8 and with D=3 N=8, at the other sizes without the limits: it then runs" in help
    assert code_and_help(with_edits(broken, help), {}) == ("", "")


def test_moving_the_suggested_tasks_earlier_makes_random_orders_run() -> None:
    """Every rank has a random order. The moves are made one by one, and no task is lost."""
    corrected = orders_with_many_moves = 0
    for seed in range(300):
        r = random.Random(seed)
        tasks = tasks_only(with_own_orders(r, random_tasks(r)))
        repaired = repair_order(tasks)
        assert repaired is not None
        changed, moves = repaired
        rows = [*range(len(tasks))]
        for row, before in moves:
            assert tasks.rank_of[row] == tasks.rank_of[before] and rows.index(row) > rows.index(before)
            rows.remove(row)
            rows.insert(rows.index(before), row)
        assert [tasks.text(row) for row in rows] == [changed.text(row) for row in range(len(changed))]
        old, new = (earliest(p, task_costs(p), data_edges(p, TaskIndex.of(p), hop=0)) for p in (tasks, changed))
        assert bool(old.stuck) == bool(moves) and not new.stuck
        corrected += bool(moves)
        orders_with_many_moves += len(moves) > 2
        count = moves_help(tasks, moves, "the order then runs").count("let rank")
        assert count == min(len(moves), MAX_SHOWN)
    assert corrected > 100 and orders_with_many_moves > 50


def test_the_help_for_a_program_that_deadlocks_was_tried() -> None:
    explained = 0
    for seed in range(40):
        r = random.Random(seed)
        p = with_own_orders(r, random_tasks(r))
        try:
            verify_program(p)
        except ChimeraError as error:
            assert {d.code for d in error.diagnostics} <= {"E440", "E453"}, error  # no others: every value reaches its readers
            assert all("tried" in d.help for d in error.diagnostics if d.code == "E440"), error
            explained += sum("its tasks wait for each other in a cycle" in d.help for d in error.diagnostics)
    assert explained > 10


def test_arranging_works_if_it_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs that deadlock, or whose collectives have no common order: the suggested option is given to chimerac."""
    suggested, path = 0, tmp_path / "hung.json"
    for _, p in islice(candidates(seed=5), 400):
        try:
            verify_program(p)
        except ChimeraError as error:
            named = re.search(
                r"use --for (\w+), which arranges transfers and collectives for it; tried", error.diagnostics[0].help
            )
            if not named:
                continue
            path.write_text(program_to_json(p))
            assert main([str(path), "--for", named[1], "--emit", "report"]) == 0, error
            suggested += 1
    capsys.readouterr()
    assert suggested > 10


def test_running_the_suggested_task_earlier_corrects_a_listing() -> None:
    text = """schedule exchanged
ranks 2   stages 2
pipe p { stage s on rank s   micro_batches 2 }
order listing for rank r {
    if r == 0 { repeat 2 { F }  repeat 2 { B } }
    if r == 1 {
        F p(1, 0)
        B p(1, 1)
        F p(1, 1)
        B p(1, 0)
    }
}
"""
    code, help = code_and_help(text, {})
    assert code == "E304"
    assert help == "let rank 1 run FWD p s1 m1 before BWD p s1 m1; tried: the order then runs"
    assert code_and_help(text.replace("B p(1, 1)\n        F p(1, 1)", "F p(1, 1)\n        B p(1, 1)"), {}) == ("", "")


def test_pairs_that_wait_for_pairs_are_separated() -> None:
    text = """schedule pairs
ranks 2   stages 2
pipe p[i in 0 .. 1] { stage s on rank (i + s) % 2   micro_batches 1 }
order listing for rank r {
    F p[r] &
    F p[1 - r]
    B p[1 - r]  B p[r]
}
"""
    assert code_and_help(text, {}) == ("E304", "overlap no tasks; tried: the order then runs")
    assert code_and_help(text.replace(" &", ""), {}) == ("", "")


def with_moves(p: Program, help: str) -> Program:
    """Return the program after the moves that a help describes."""
    for rank, number, side, text in re.findall(r"move rank (\d+), instruction (\d+): .*, right (before|after) ([^;\n]*)", help):
        changed = streams(p)
        stream = changed[int(rank)]
        (to,) = (k for k, i in enumerate(stream) if instruction_text(i, p.pipe_names) == text)
        assert (int(number) < to) == (side == "after")
        changed[int(rank)] = with_move(stream, int(number), to)
        p = with_streams(p, changed)
    return p


def with_some_late_receives(p: Program, r: random.Random) -> Program:
    """Return the program with many RECVs moved later, each still before its reader and in the order of its channel."""
    changed = streams(p)
    for stream in changed:
        for k in reversed(range(len(stream))):
            i = stream[k]
            if not isinstance(i, Recv) or r.random() < 0.2:
                continue
            reads = (Fwd,) if i.value == "act" else (Bwd, BwdInput)
            while k + 1 < len(stream) and r.random() < 0.95:
                after = stream[k + 1]
                is_reader = isinstance(after, reads) and (after.pipe, after.stage) == (i.pipe, i.stage)
                if is_reader or (isinstance(after, Recv) and after.peer == i.peer):
                    break
                stream[k], stream[k + 1], k = after, i, k + 1
    return with_streams(p, changed)


@pytest.mark.parametrize("machine", [machine for machine in MACHINES if machine != "posted"])
def test_the_suggested_moves_correct_the_program(machine: Machine) -> None:
    corrected = deadlocks = 0
    for name in SMALL:
        for seed in range(6):
            r = random.Random(f"{name} {seed} {machine}")
            p = arranged(program(name, **SMALL[name][1]), machine)
            assert p is not None
            p = with_some_late_receives(p, r).with_header(window=r.randint(0, 1) if machine == "window" else 2)
            try:
                verify(p)
            except ChimeraError as error:
                (d, *_) = error.diagnostics
                if d.code == "E440":
                    deadlocks += 1
                    name_of_machine = f"window({p.header.window})" if machine == "window" else machine
                    assert f"deadlock on the {name_of_machine}" in d.message
                    if "move" in d.help:
                        corrected += 1
                        assert verify(with_moves(p, d.help))
    # On machines with queues usually all transfers must be rearranged: then chimerac suggests --for instead of moves.
    assert deadlocks >= 5 and corrected >= (5 if machine in ("paired", "serial") else 0.5 * deadlocks)


@pytest.mark.parametrize("machine", MACHINES)
def test_programs_of_the_library_can_be_arranged_for_every_machine(machine: Machine) -> None:
    for name, sizes in SMALL.items():
        p = compile_schedule(name, sizes[1], width=2).program
        other = arranged(p, machine)
        assert other is not None and verify(other).header.machine == machine
        assert hang_on(ProgramIndex(p.with_header(machine=machine)), machine) is None or other != p
