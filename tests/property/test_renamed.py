"""The compiler knows no scheme: with other names, a schedule compiles to the same streams.

Its pipes are also declared in another order, except for `order greedy`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.instructions import AllReduce, Instruction
from chimerac.chimera_ir.program import LIMITS, Program
from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import parse_source as parse
from chimerac.compiler.resolve.check_orders import GREEDY_NAMES
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.printer import print_schedule
from tests.helpers import SMALL

RESERVED = keywords() | {"F", "B", "I", "W", "R", "hop", "min", "max", *LIMITS}  # the names of the language


def new_name(word: str, reserved: frozenset[str] = RESERVED) -> str:
    """Return another name for a word; a reserved word stays as it is."""
    return word if word in reserved else f"x{len(word)}_{word[::-1]}"


def new_pipe_name(name: str) -> str:
    """Return the name that a pipe has in the renamed text.

    Args:
        name: with its index, if it has one, such as down[0].
    """
    return re.sub(r"^\w+", lambda match: new_name(match[0]), name)


def is_greedy(tree: n.Schedule) -> bool:
    return any(isinstance(s, n.Greedy) for s in tree.statements)


def renamed(source: Source) -> str:
    """Return the text with all of its own names replaced, and its pipes declared in reverse order.

    For `order greedy` the order of the pipes stays, because it breaks ties. The names s, m, p and r stay too, because this form
    defines them.
    """
    tree = parse(source)
    pipes = [s for s in tree.statements if isinstance(s, n.PipeDecl)]
    reordered = iter(pipes if is_greedy(tree) else pipes[::-1])
    statements = tuple(next(reordered) if isinstance(s, n.PipeDecl) else s for s in tree.statements)
    text = print_schedule(replace(tree, statements=statements))
    reserved = RESERVED | set(GREEDY_NAMES) if is_greedy(tree) else RESERVED
    return re.sub(r"[A-Za-z_]\w*", lambda match: new_name(match[0], reserved), text)


def by_name(p: Program, rename: bool) -> list[list[tuple[object, ...]]]:
    """Return the streams. An ALLREDUCE stays as it is.

    Every other instruction has the name of its pipe, and its micro-batches are numbered within the pipe.

    Args:
        rename: give the pipes the names that they have in the renamed text.
    """

    def with_names(i: Instruction) -> tuple[object, ...]:
        if isinstance(i, AllReduce):
            return (i,)
        pipe = p.header.pipes[i.pipe]
        name = new_pipe_name(pipe.name) if rename else pipe.name
        ids = tuple(pipe.micro_batches.index(m) for m in i.micro_batches)
        return (replace(i, pipe=0, micro_batches=(0,)), name, ids)

    return [[with_names(i) for i in p.stream(g)] for g in range(p.world)]


def test_every_schedule_of_the_library_is_tried() -> None:
    assert set(SMALL) == set(names())


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("schedule", SMALL)
def test_a_renamed_copy_compiles_to_the_same_streams(schedule: str, width: int) -> None:
    text = renamed(find(schedule))
    assert not set(re.findall(r"\w+", text)) & {schedule, "chimera", "dapple", "gpipe", "interleaved", "down", "up", "main"}
    for parameters in SMALL[schedule]:
        p = compile_schedule(schedule, parameters, width).program
        other = compile_text(text, {new_name(k): v for k, v in parameters.items()}, width).program
        assert other.header.schedule != p.header.schedule
        assert by_name(other, rename=False) == by_name(p, rename=True)
        # The parameters have the same values under their new names.
        assert other.header.parameters == {new_name(k): v for k, v in p.header.parameters.items()}
        # A text with several declarations of pipes has them in another order.
        if len({pipe.name.partition("[")[0] for pipe in p.header.pipes}) > 1 and not is_greedy(parse(find(schedule))):
            assert [pipe.name for pipe in other.header.pipes] != [new_pipe_name(pipe.name) for pipe in p.header.pipes]
