"""A found order as the text of a schedule: a listing for each rank, with loops where its tasks repeat."""

from __future__ import annotations

from collections.abc import Sequence

from chimerac.chimera_ir.diagnostics import Source, refuse
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.exchange.listing_text import cost_formula, pipe_names, stage_clauses, task_lines
from chimerac.compiler.format import format_schedule
from chimerac.compiler.pipeline import Compiled, compile_source
from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order

WINDOWS = (2, 3, 4, 8, 16, 64, 1024)  # tried in this order


def schedule_text(
    problem: Problem, order: Order, name: str, comment: Sequence[str], statements: Sequence[str]
) -> tuple[str, Compiled]:
    """Return the text of an order and the results of its compilation.

    Its costs are the integers of the problem, and its `hop` is the slowest link. The window is the first of WINDOWS with which
    no send lengthens the iteration.

    Args:
        comment: the lines of a comment above the text.
        statements: further statements of the text, such as one about all-reduces.

    Raises ChimeraError: the findings of the compilation, E002 if there is no such window.
    """
    for window in WINDOWS:
        text = _text(problem, order, name, comment, statements, window)
        compiled = compile_source(Source(name, text), {})
        if simulate(compiled.program).makespan == int(compiled.timing.end.max()):
            return text, compiled
    message = f"even with a window of {WINDOWS[-1]}, sends of this order wait for earlier ones, which lengthens the iteration"
    raise refuse("E002", message, help="give a smaller hop, or smaller links")


def _text(problem: Problem, order: Order, name: str, comment: Sequence[str], statements: Sequence[str], window: int) -> str:
    """Return the formatted text of an order with this window."""
    names = pipe_names([pipe.name for pipe in problem.pipes])
    hop = max((x for a, row in enumerate(problem.links) for b, x in enumerate(row) if a != b), default=0)
    lines = [*(f"# {line}".rstrip() for line in comment), "", f"schedule {name}", f"ranks {problem.ranks}"]
    lines.append(f"stages {problem.stages}")
    for pipe_name, pipe in zip(names, problem.pipes, strict=True):
        lines.append(f"pipe {pipe_name} {{ {stage_clauses(pipe.placement)}   micro_batches {pipe.micro_batches} }}")
    for kind, column in zip(problem.kinds, problem.durations, strict=True):
        lines.append(f"cost {kind}{cost_formula(column)}")
    lines += [f"cost hop = {hop}", f"window {window}", *statements, "order listing for rank r {"]
    t, kinds = problem.tasks, problem.kinds
    for r in range(problem.ranks):
        cells = [c for c, (p, s) in enumerate(t.cells) if problem.pipes[p].placement[s] == r]
        if not cells:
            continue
        # The pipe of each stage on this rank, also of pipes without micro-batches.
        placed = [p for p, pipe in enumerate(problem.pipes) for x in pipe.placement if x == r]
        words: dict[int, str] = {}  # by series: its tasks as the listing names them
        for c in cells:
            p, s = t.cells[c]
            suffix = ""
            if len(placed) > 1:
                suffix = f" {names[p]}" if placed.count(p) == 1 else f" {names[p]}({s})"
            words |= {c * len(kinds) + k: kind + suffix for k, kind in enumerate(kinds)}
        series = t.series[order.rows(r)].tolist()
        lines += [f"if r == {r} {{", *task_lines([words[k] for k in series]), "}"]
    return format_schedule(Source(name, "\n".join([*lines, "}"]) + "\n"))
