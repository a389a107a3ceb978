"""Parts of a listing's text: names of pipes, stage clauses, cost formulas, and lines of tasks with loops where they repeat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from chimerac.chimera_ir import limits
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.kinds import KINDS

LINE_WIDTH = 110  # the most characters of a line of tasks; one task or overlapped pair alone may have more
MAX_PERIOD = 256  # the most tasks or overlapped pairs of the body of a loop, before repetitions within it are folded


def pipe_names(given: Sequence[str]) -> list[str]:
    """Return for each pipe a name that a listing may use.

    Args:
        given: the pipes' own names.

    The text declares each pipe by itself and no families, so down[0] becomes down_0. No name is a kind of task, a word of the
    language, or that of another pipe.
    """
    names: list[str] = []
    for own_name in given:
        word = legal_name(own_name, "pipe")
        candidates = (with_suffix(word, "_" * k) for k in count())
        names.append(next(name for name in candidates if name not in {*names, *KINDS, *keywords()}))
    return names


def legal_name(text: str, prefix: str) -> str:
    """Return a text as a name of the language.

    Args:
        prefix: used if nothing is left of the text or a digit comes first.
    """
    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[: limits.NAME]
    return word if word[:1].isalpha() else f"{prefix}_{word}"[: limits.NAME].rstrip("_")


def with_suffix(name: str, suffix: str) -> str:
    """Return a name with a suffix. The name is cut if both together are longer than a name may be."""
    return name[: limits.NAME - len(suffix)] + suffix


def stage_clauses(placement: Sequence[int], suffix: str = "") -> str:
    """Return the stage clauses of a pipe: one for each run of stages whose ranks ascend by 1, descend by 1 or are equal.

    Args:
        placement: the rank of each stage.
        suffix: the end of each clause.
    """
    runs: list[list[int]] = []
    for s, r in enumerate(placement):
        slope = r - placement[s - 1] if s else 0
        if runs and abs(slope) <= 1 and (len(runs[-1]) == 1 or slope == placement[s - 1] - placement[s - 2]):
            runs[-1].append(s)
        else:
            runs.append([s])
    clauses = []
    for run in runs:
        first_rank = placement[run[0]]
        slope = placement[run[1]] - first_rank if len(run) > 1 else 0
        offset = first_rank - slope * run[0]
        sign = f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else ""
        where = {0: f"{first_rank}", 1: f"s{sign}", -1: f"{offset} - s"}[slope]
        span = "" if len(runs) == 1 else f" in {run[0]} .. {run[-1]}"
        clauses.append(f"stage s{span} on rank {where}{suffix}")
    return " ".join(clauses)


def cost_formula(values: Sequence[int]) -> str:
    """Return what follows the kind in a cost statement: ' = 3' if all stages have one cost, else '(s) = ' and a formula.

    Args:
        values: the costs, by stage.
    """
    if len(set(values)) == 1:
        return f" = {values[0]}"

    def choose(a: int, b: int) -> str:
        if len(set(values[a:b])) == 1:
            return str(values[a])
        middle = (a + b) // 2
        return f"if s < {middle} then ({choose(a, middle)}) else ({choose(middle, b)})"

    return "(s) = " + re.sub(r"[(]([0-9]+)[)]", r"\1", choose(0, len(values)))  # no parentheses around a number


def task_lines(words: list[str]) -> list[str]:
    """Return lines of tasks, with loops where they repeat.

    Args:
        words: the text of each task or overlapped pair.
    """
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
            inner = task_lines(body)
            loop = f"repeat {times} {{ {inner[0]} }}"
            lines += [loop] if len(inner) == 1 and len(loop) <= LINE_WIDTH else [f"repeat {times} {{", *inner, "}"]
    return [*lines, *([line] if line else [])]


def folded(words: list[str]) -> list[str | tuple[int, list[str]]]:
    """Return words from left to right, with (times, words) for consecutive words that repeat.

    Where several repetitions begin at a word, the one that saves most words is taken, if it saves more than one. The words of
    a repetition may contain repetitions, which are not folded here.
    """
    parts: list[str | tuple[int, list[str]]] = []
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
            parts.append(words[at])
        else:
            parts.append((times, words[at : at + period]))
        at += times * period
    return parts
