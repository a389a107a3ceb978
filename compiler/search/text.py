"""A found order as the text of a schedule: a listing for each rank, with loops where it repeats itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import Source, refuse
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.format import format_schedule
from chimerac.compiler.pipeline import Compiled, compile_source
from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order
from chimerac.compiler.syntax.grammar import keywords

LINE_WIDTH = 110  # the most characters of a line of tasks
MAX_PERIOD = 256  # the most tasks of the body of a loop
WINDOWS = (2, 3, 4, 8, 16, 64, 1024)  # tried in this order


def schedule_text(
    problem: Problem, order: Order, name: str, comment: Sequence[str], statements: Sequence[str]
) -> tuple[str, Compiled]:
    """Return the text and its compiled program. statements: further ones, such as about all-reduces.

    Its costs are the problem's integers; where links differ, `hop` is the slowest. The window is the first of WINDOWS that does
    not lengthen the iteration. Raises ChimeraError if the text does not compile or if there is no such window.
    """
    for window in WINDOWS:
        text = _text(problem, order, name, comment, statements, window)
        compiled = compile_source(Source(name, text), {})
        if simulate(compiled.program).makespan == int(compiled.timing.end.max()):
            return text, compiled
    message = f"even with window {WINDOWS[-1]} sends of this order wait for earlier ones, which lengthens the iteration"
    raise refuse("E002", message, help="give a smaller hop, or smaller links")


def _text(problem: Problem, order: Order, name: str, comment: Sequence[str], statements: Sequence[str], window: int) -> str:
    names = pipe_names([pipe.name for pipe in problem.pipes])
    hop = max((x for a, row in enumerate(problem.links) for b, x in enumerate(row) if a != b), default=0)
    lines = [*(f"# {line}".rstrip() for line in comment), "", f"schedule {name}", f"ranks {problem.ranks}"]
    lines.append(f"stages {problem.stages}")
    for own, pipe in zip(names, problem.pipes, strict=True):
        lines.append(f"pipe {own} {{ {_stages(pipe.placement)}   micro_batches {pipe.micro_batches} }}")
    for kind, column in zip(problem.kinds, problem.durations, strict=True):
        lines.append(f"cost {kind}{_formula(column)}")
    lines += [f"cost hop = {hop}", f"window {window}", *statements, "order listing for rank r {"]
    t, kinds = problem.tasks, problem.kinds
    for r in range(problem.ranks):
        cells = [c for c, (p, s) in enumerate(t.cells) if problem.pipes[p].placement[s] == r]
        if not cells:
            continue
        placed = [p for p, pipe in enumerate(problem.pipes) for x in pipe.placement if x == r]  # also without micro-batches
        words: dict[int, str] = {}
        for c in cells:
            p, s = t.cells[c]
            word = ""
            if len(placed) > 1:
                word = f" {names[p]}" if placed.count(p) == 1 else f" {names[p]}({s})"
            words |= {c * len(kinds) + k: kind + word for k, kind in enumerate(kinds)}
        letters = t.letter[order.rows(r)].tolist()
        lines += [f"if r == {r} {{", *_lines([words[a] for a in letters]), "}"]
    return format_schedule(Source(name, "\n".join([*lines, "}"]) + "\n"))


def pipe_names(given: Sequence[str]) -> list[str]:
    """Return names for pipes that a listing may use: no member of a family, no kind, no word of the language."""
    found: list[str] = []
    for name in given:
        word = re.sub(r"\W+", "_", name).strip("_") or "pipe"
        candidates = (with_suffix(word, "_" * k) for k in count())
        found.append(next(x for x in candidates if x not in found and x not in {"F", "B", "I", "W", "R", *keywords()}))
    return found


def with_suffix(name: str, suffix: str) -> str:
    """Return a name with a suffix. The name is cut where both together are longer than a name may be."""
    return name[: limits.NAME - len(suffix)] + suffix


def _stages(placement: Sequence[int]) -> str:
    """Return stage clauses: runs of stages on ranks that ascend, descend or stay."""
    runs: list[list[int]] = []
    for s, r in enumerate(placement):
        slope = r - placement[s - 1] if s else 0
        if runs and abs(slope) <= 1 and (len(runs[-1]) == 1 or slope == placement[s - 1] - placement[s - 2]):
            runs[-1].append(s)
        else:
            runs.append([s])
    clauses = []
    for run in runs:
        a, slope = placement[run[0]], placement[run[1]] - placement[run[0]] if len(run) > 1 else 0
        offset = a - slope * run[0]
        sign = f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else ""
        where = {0: f"{a}", 1: f"s{sign}", -1: f"{offset} - s"}[slope]
        span = "" if len(runs) == 1 else f" in {run[0]} .. {run[-1]}"
        clauses.append(f"stage s{span} on rank {where}")
    return " ".join(clauses)


def _formula(values: Sequence[int]) -> str:
    """Return ' = 3', or '(s) = ...' with the cost of each stage."""
    if len(set(values)) == 1:
        return f" = {values[0]}"

    def choose(a: int, b: int) -> str:
        if len(set(values[a:b])) == 1:
            return str(values[a])
        middle = (a + b) // 2
        return f"if s < {middle} then ({choose(a, middle)}) else ({choose(middle, b)})"

    return "(s) = " + re.sub(r"[(]([0-9]+)[)]", r"\1", choose(0, len(values)))


def _lines(words: list[str]) -> list[str]:
    """Return lines of tasks, with loops."""
    lines: list[str] = []
    line = ""
    for part in folded(words):
        if isinstance(part, str):
            if line and len(line) + 2 + len(part) > LINE_WIDTH:
                lines, line = [*lines, line], ""
            line += f"  {part}" if line else part
        else:
            times, body = part
            lines, line = [*lines, *([line] if line else [])], ""
            inner = _lines(body)
            one = f"repeat {times} {{ {inner[0]} }}"
            lines += [one] if len(inner) == 1 and len(one) <= LINE_WIDTH else [f"repeat {times} {{", *inner, "}"]
    return [*lines, *([line] if line else [])]


def folded(words: list[str]) -> list[str | tuple[int, list[str]]]:
    """Return words from left to right, with (times, words) for words that repeat: each time the repetition that saves most.

    The words of a repetition may contain repetitions, which are not folded here.
    """
    found: list[str | tuple[int, list[str]]] = []
    at, n = 0, len(words)
    while at < n:
        best, saved = (1, 1), 1
        for period in range(1, min((n - at) // 2, MAX_PERIOD) + 1):
            if words[at] != words[at + period]:
                continue
            times = 1
            while words[at + times * period : at + (times + 1) * period] == words[at : at + period]:
                times += 1
            if (times - 1) * period > saved:
                best, saved = (times, period), (times - 1) * period
        times, period = best
        if times == 1:
            found.append(words[at])
        else:
            found.append((times, words[at : at + period]))
        at += times * period
    return found
