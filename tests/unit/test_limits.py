"""Limits of schedules hold for program files too, and a program within them is short enough to be read back."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.instructions import MAX_ID, AllReduce, BwdWeight, Free, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.program import Header, Pipe, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.chimera_ir.textline import instruction_text
from chimerac.compiler import compile_text
from tests.helpers import codes_of_call, program

RIGHT = program("1f1b", D=2, N=2)
TASK = {"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [0]}
ALL_REDUCE = {"op": "ALLREDUCE", "group": "stage 0", "stage": 0, "ranks": [0, 1]}


# TASKS counts at least two tasks for every stage and micro-batch. RIGHT has 2 stages, so that is 4 for each micro-batch.
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": limits.RANKS + 1}, "window=2"),
        ({"window": MAX_ID}, "window=2"),
        ({"micro_batch_size": [limits.RANKS + 1, 1]}, "micro_batch_size=1/1"),
        ({"micro_batch_size": [1, MAX_ID]}, "micro_batch_size=1/1"),
        ({"width": limits.RANKS}, "width=1"),
        ({"ranks": limits.RANKS + 1}, "ranks=2"),
        ({"stages": limits.RANKS + 1}, "stages=2"),
        ({"micro_batches": limits.TASKS // 4 + 1}, "micro_batches=2"),
    ],
)
def test_a_size_beyond_its_limit_is_refused(change: dict[str, object], words: str) -> None:
    """change: new fields of the JSON form of RIGHT. words: a size in its text form, which gets the value of `change`."""
    file = json.loads(program_to_json(RIGHT)) | change
    assert codes_of_call(program_from_json, json.dumps(file)) <= {"E603", "E604"}
    name, text = words.split("=")[0], program_to_text(RIGHT)
    size = change[name]
    new_words = f"{name}={'/'.join(map(str, size)) if isinstance(size, list) else size}"
    assert words in text and codes_of_call(program_from_text, text.replace(words, new_words)) <= {"E603", "E604"}


def test_the_largest_window_micro_batch_size_and_parameters_are_read() -> None:
    file = json.loads(program_to_json(RIGHT))
    for change in ({"window": limits.RANKS}, {"micro_batch_size": [limits.RANKS, limits.RANKS]}):
        assert program_from_json(json.dumps(file | change))
    for value in (-limits.MAGNITUDE, limits.MAGNITUDE):
        assert program_from_json(json.dumps(file | {"parameters": {"D": value}}))
    most_parameters = {f"x{k}": k for k in range(limits.NAMES)}
    assert program_from_json(json.dumps(file | {"parameters": most_parameters}))
    for beyond in ({"D": limits.MAGNITUDE + 1}, most_parameters | {"one_more": 1}):
        assert codes_of_call(program_from_json, json.dumps(file | {"parameters": beyond})) == {"E603"}


@pytest.mark.parametrize("version", ["true", "1.0", '"1"', "null", "2", "[1]"])
def test_a_version_other_than_the_integer_1_is_refused(version: str) -> None:
    text = program_to_json(RIGHT)
    assert codes_of_call(program_from_json, text.replace('"version": 1', f'"version": {version}')) == {"E602"}


def test_a_group_of_too_many_micro_batches_is_refused() -> None:
    file = json.loads(program_to_json(RIGHT))
    for count, code in ((limits.RANKS, None), (limits.RANKS + 1, "E603")):
        task = TASK | {"micro_batches": list(range(count))}
        in_json = json.dumps(file | {"streams": [[task], []]})
        in_text = program_to_text(RIGHT).replace("FWD main s0 m0", f"FWD main s0 m{','.join(map(str, range(count)))}", 1)
        if code is None:
            assert program_from_json(in_json) and program_from_text(in_text)
        else:
            assert codes_of_call(program_from_json, in_json) == codes_of_call(program_from_text, in_text) == {code}


def in_one_group(order: str, n: int) -> str:
    """Return the text of a schedule with one forward, over n micro-batches.

    Args:
        order: the form of its order.
    """
    text = {
        "ticks": f"ticks {{ F(s, m = g*{n} .. g*{n} + {n - 1}) at m  B(s, m) at {n} + m }}",
        "listing": f"listing for rank r {{ F(0, 0 .. {n - 1}) repeat {n} {{ B }} }}",
        "greedy": f"greedy {{ prefer B, F group F by {n} }}",
    }[order]
    return f"schedule x ranks 1 stages 1 pipe p {{ stage s on rank 0 micro_batches {n} }} order {text}"


@pytest.mark.parametrize("order", ["ticks", "listing", "greedy"])
def test_groups_of_a_schedule_have_the_limit_of_a_file(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RANKS", 500)
    assert codes_of_call(compile_text, in_one_group(order, limits.RANKS + 1)) == {"E211"}
    compiled = compile_text(in_one_group(order, limits.RANKS)).program
    assert program_to_json(program_from_json(program_to_json(compiled))) == program_to_json(compiled)
    assert program_to_json(program_from_text(program_to_text(compiled))) == program_to_json(compiled)


@pytest.mark.parametrize(
    ("limit", "stream"),
    [
        ("TASKS", [TASK] * 101),
        ("CELLS", [ALL_REDUCE] * 101),
        ("INSTRUCTIONS", [TASK, ALL_REDUCE] * 51),
        ("RANKS", None),
    ],
)
def test_the_instructions_and_streams_of_a_file_are_counted_whatever_its_header_says(
    limit: str, stream: list[object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count does not rely on the header, which may be wrong.

    Args:
        stream: the instructions of rank 0, more than the limit; None for too many empty streams.
    """
    monkeypatch.setattr(limits, limit, 100)
    streams = [[]] * 101 if stream is None else [stream, []]
    file = json.loads(program_to_json(RIGHT)) | {"streams": streams}
    text_of = {str(TASK): "FWD main s0 m0", str(ALL_REDUCE): "ALLREDUCE s0 over 0,1"}
    text = program_to_text(RIGHT).split("\nrank 0:")[0]
    for rank, instructions in enumerate(streams):
        text += f"\nrank {rank}:" + "".join(f"\n  {text_of[str(i)]}" for i in instructions)
    assert codes_of_call(program_from_json, json.dumps(file)) == codes_of_call(program_from_text, text) == {"E604"}


def test_tied_sets_count_with_the_pipes() -> None:
    """Pipes x (stages + stages of tied sets) is limited, in schedules and in files. Here it is 200 x (2 + 2 x 1000)."""
    sets, pipes = 1000, 200
    tied_sets = " ".join(f"tied t{k} on stages 0, 1" for k in range(sets))
    order = "order ticks { F p[i](s, m) at 9*i + s + 3*m B p[i](s, m) at 9*i + 3 - s + 3*m }"
    text = (
        f"schedule x ranks 2 stages 2 pipe p[i in 0 .. {pipes - 1}] "
        f"{{ stage s on rank s micro_batches if i == 0 then 1 else 0 }} {tied_sets} {order}"
    )
    assert codes_of_call(compile_text, text) == {"E211"}
    header = Header(
        "x", {}, ranks=2, stages=2, micro_batches=1,
        pipes=tuple(Pipe(f"p[{k}]", (0, 1), (0,) if k == 0 else ()) for k in range(pipes)),
        tied=tuple(Tied(f"t{k}", (0, 1)) for k in range(sets)),
    )  # fmt: skip
    too_many = program_of(header, [[], []])
    assert codes_of_call(program_from_json, program_to_json(too_many)) == {"E604"}
    assert codes_of_call(program_from_text, program_to_text(too_many)) == {"E604"}
    few = program_of(replace(header, tied=header.tied[:2]), [[], []])
    assert program_from_json(program_to_json(few)) == program_from_text(program_to_text(few)) == few


def lengths(i: Instruction, names: tuple[str, ...]) -> tuple[int, int]:
    """Return how many characters the line of an instruction has in JSON and as text, without its one micro-batch or rank.

    Args:
        names: the names of the pipes.
    """
    file = program_to_json(program_of(Header("x", {}, ranks=1, stages=1, micro_batches=1, pipes=(Pipe("p", (0,), ()),)), [[i]]))
    ids = i.ranks if isinstance(i, AllReduce) else i.micro_batches
    in_json = len(file.split('"streams": [\n [')[1].removesuffix("]\n]}\n")) + len(",\n  ")
    in_text = len(instruction_text(i, names)) + len("  \n")
    return in_json - len(str(ids[0])), in_text - len(str(ids[0]))


def test_the_limit_of_a_file_follows_from_that_of_the_tasks() -> None:
    """Every valid program within the limits is shorter, in both forms, than the longest file that a reader accepts.

    Tied sets have two stages or more, as those of a schedule. Here a point is a stage and a micro-batch. There are at most
    TASKS / 2 points. A point is in at most four tasks, F, R, I and W, and in a SEND, a RECV and a FREE of each of its two
    values. The length of an instruction is that of its words, plus a number and a separator for each point. The limits on
    pipes, stages, micro-batches and ranks together bound the digits of the numbers.
    """
    points, longest = limits.TASKS // 2, [0, 0]  # longest: in JSON and as text
    for p, s, m in product(range(1, 5), range(1, 6), range(1, 8)):  # digits of pipes, stages and micro-batches
        # The least counts of pipes, stages and micro-batches whose last index, count - 1, has p, s and m digits.
        pipes, stages, micro_batches = (1 if k == 1 else 10 ** (k - 1) + 1 for k in (p, s, m))
        if pipes > limits.PIPES or pipes * stages > limits.CELLS or stages * micro_batches > points:
            continue
        pipe, stage, peer = 10**p - 1, 10**s - 1, limits.RANKS
        names = ("x" * 64 + "[" + "9" * 5 + "]",) * (pipe + 1)
        forward, backward = Fwd(pipe, stage, (0,), recompute=True, overlap=True), BwdWeight(pipe, stage, (0,), overlap=True)
        transfers = [Send("grad", pipe, stage, (0,), peer), Recv("grad", pipe, stage, (0,), peer)]
        free, all_reduce = Free("grad", pipe, stage, (0,)), AllReduce("x" * 64, stage, (0,))
        # Forwards, then the other tasks, of which BWD_WEIGHT has the longest name. Each value has a SEND, a RECV and a FREE.
        counts = [
            (forward, points),
            (backward, limits.TASKS - points),
            *((i, limits.TASKS) for i in (*transfers, free)),
            (all_reduce, limits.CELLS),
        ]
        assert sum(count for _, count in counts) == limits.INSTRUCTIONS
        for form, separator in ((0, ", "), (1, ",")):  # JSON and text
            length = sum(count * lengths(i, names)[form] for i, count in counts)
            # A point's micro-batch is in four tasks, two SENDs, two RECVs and two FREEs. The number of a rank has 5 digits.
            length += points * (4 + 2 + 2 + 2) * (m + len(separator)) + limits.MEMBERS * (5 + len(separator))
            longest[form] = max(longest[form], length)
    assert all(length + limits.HEADER <= limits.FILE for length in longest), longest
    # The header: names of pipes, placements and stages of tied sets, all micro-batches, costs, parameters, and names of sets: a
    # schedule gives a set at least two stages.
    placed, listed = limits.CELLS * len("65535, "), points * len("1048575, ")
    costs = 5 * limits.RANKS * (len(str(limits.COST)) + len(", "))  # F, B, I, W and R of every stage
    name = limits.NAME + 60  # with the words around it
    header = limits.PIPES * name + placed + listed + costs + limits.CELLS // 2 * name + limits.NAMES * name
    assert header < limits.HEADER
    assert max(longest) > limits.FILE // 2  # the limit is not much too large
