"""A small schedule whose lines a test can replace, its program, and its findings."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from chimerac.compiler.library import find
from tests.helpers import LETTERS, findings_of_call, replaced, tasks

# The lines, by the names under which tests replace them. `extra` is for statements that a test adds. rule1 and rule2 are
# between the braces of the order.
LINES = {
    "param": "param D = 2   param N = 3",
    "ranks": "ranks D",
    "stages": "stages D",
    "pipe": "pipe main { stage s on rank s   micro_batches N }",
    "extra": "",
    "order": "order ticks {",
    "rule1": "F(s, m) at s + 2*m",
    "rule2": "B(s, m) at 2*D - 1 - s + 2*m",
    "end": "}",
}


def text(**changes: str) -> str:
    """Return the text of a 1F1B schedule with these lines replaced."""
    assert not set(changes) - set(LINES)
    return "schedule small\n" + "\n".join((LINES | changes).values()) + "\n"


def on_one_rank(rules: str) -> str:
    """Return the text of a schedule for one rank with two stages, ordered by these rules for ticks."""
    pipe = "pipe main { stage s on rank 0   micro_batches N }"
    return text(param="param N = 2", ranks="ranks 1", stages="stages 2", pipe=pipe, rule1=rules, rule2="")


def tied_1f1b(name: str = "shared") -> str:
    """Return the text of 1f1b with a tied set of this name on the first and the last stage."""
    return replaced(find("1f1b").text, ("order ticks", f"tied {name} on stages 0, D - 1\norder ticks"))


def small(parameters: dict[str, int] | None = None, width: int = 1, **changes: str) -> Program:
    """Return the program of `text(**changes)`.

    Args:
        parameters: None: the defaults.
        width: the number of replicas.
    """
    return compile_text(text(**changes), parameters, width).program


def findings_of(parameters: dict[str, int] | None = None, width: int = 1, **changes: str) -> list[Diagnostic]:
    """Return the findings for `text(**changes)`.

    Args:
        parameters, width: as of `small`.
    """
    return findings_of_call(small, parameters, width, **changes)


def tasks_of(program: Program, rank: int) -> str:
    """Return 'F0 F1 B0': the tasks of a rank with their first micro-batch, and with their stage where the rank has several."""
    order = list(tasks(program.stream(rank)))
    several = len({i.stage for i in order}) > 1
    return " ".join(f"{LETTERS[i.op]}{i.micro_batches[0]}" + (f".{i.stage}" if several else "") for i in order)
