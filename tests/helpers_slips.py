"""Correct schedules, typical mistakes in them (slips), and the findings of the compiler for these mistakes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from chimerac.compiler.library import find
from tests.helpers import findings_of_call, replaced

_HEAD = "schedule mine\nparam D = 4\nparam N = 8\nranks D\nstages D\n"
_PIPE = "pipe main { stage s on rank s   micro_batches N }\n"
RIGHT = {  # the texts of the correct schedules
    "gpipe": _HEAD
    + _PIPE
    + """order ticks {
    F(s, m) at s + m
    B(s, m) at (N + D - 1) + (D - 1 - s) + (N - 1 - m)
}
""",
    "1f1b": _HEAD
    + _PIPE
    + """order ticks {
    F(s, m) at s + 2*m
    B(s, m) at 2*D - 1 - s + 2*m
}
""",
    "greedy": _HEAD
    + _PIPE
    + """order greedy {
    cost F = 1, B = 2
    prefer B, F
    then smaller m
    limit F - B <= D - r
}
sync eager
""",
    "listing": _HEAD
    + _PIPE
    + """order listing for rank r {
    let w = min(N, D - r)
    repeat w { F }
    repeat N - w { B  F }
    repeat w { B }
}
""",
    "vee": _HEAD.replace("stages D", "stages 2*D")
    + """pipe main {
    stage s in 0 .. D - 1 on rank s
    stage s in D .. 2*D - 1 on rank 2*D - 1 - s
    micro_batches N
}
order greedy {
    prefer I, F, W
    then smaller m, later s
    limit F - W <= 2*D
}
""",
    "chimera": """schedule mine
param D = 4          require D % 2 == 0
param N = D          require N % D == 0
let unit = D // 2
ranks D
stages D
pipe down { stage s on rank s           micro_batches N // 2 }
pipe up   { stage s on rank D - 1 - s   micro_batches N // 2 }
order ticks {
    let start = 2*D*(m // unit) + 2*(m % unit)
    F(s, m) at start + s
    B(s, m) at start + 2*D - 1 - s
}
sync eager
""",
    # Schedules of the library, without the comments above the first empty line.
    **{name: find(name).text.partition("\n\n")[2] for name in ("interleaved", "zb_h1", "zb_v")},
}


def slip(base: str, *changes: tuple[str, str]) -> str:
    """Return the text of a correct schedule with these replacements (old, new), each made once."""
    return replaced(RIGHT[base], *changes)


def slip_lines(name: str) -> list[str]:
    """Return the lines of the table tests/unit/NAME, without comments. The first comment of a table says what a line has."""
    lines = (Path(__file__).parent / "unit" / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def with_slip(line: str) -> tuple[str, str]:
    """Return the name of the schedule in a line of a table, and the text of this schedule with the slip of that line.

    The line is `SCHEDULE: RIGHT ==> WRONG`, with \\n for a line break. The slip replaces RIGHT by WRONG, which may be empty.
    """
    base, _, change = line.partition(": ")
    right, _, wrong = change.replace("\\n", "\n").partition(" ==>")
    return base, slip(base, (right, wrong.removeprefix(" ")))


@cache
def right_program(base: str) -> Program:
    """Return the program of a correct schedule."""
    return compile_text(RIGHT[base]).program


def findings_of(text: str) -> list[Diagnostic]:
    """Return the findings of the compiler for a wrong text."""
    return findings_of_call(compile_text, text, name="slip.sched")


def location(finding: Diagnostic) -> str:
    """Return the line number and the marked text of a finding: '8: m'."""
    assert finding.span is not None
    return f"{finding.span.line}: {finding.span.text}"


def with_edits(text: str, finding: Diagnostic) -> str:
    """Return the text after the edits that the help of a finding describes.

    Each line of the help describes one edit; what follows a semicolon is ignored. The edit is at the caret of the finding, with
    these exceptions. "write 'new' instead of 'old'" and "remove 'old'" may begin with another position. "did you mean 'new'
    instead of 'old'?" is at the last 'old' in the line of the caret up to the end of the marked text. "write 'new' at the end
    of line 7" adds to that line.
    """
    lines, edits = text.split("\n"), []
    for edit in finding.help.split("\n"):
        suggestion = re.match(r"did you mean '(.+?)'(?: instead of '(.+?)')?\?$", edit)
        if suggestion:
            assert finding.span is not None
            old, line = suggestion[2] or finding.span.text, finding.span.line
            column = lines[line - 1].rindex(old, 0, finding.span.end_column) + 1 if suggestion[2] else finding.span.column
            edits.append((line, column, old, suggestion[1]))
            continue
        replacement = re.match(r"(?:slip.sched:(\d+):(\d+): )?(?:write '(.+?)' instead of '(.+?)'|remove '(.+?)')(?:;|$)", edit)
        end = re.match(r"write '(.+?)' at the end of line (\d+)(?:;|$)", edit)
        assert replacement or end, edit
        if replacement:
            assert finding.span is not None
            position = (
                (int(replacement[1]), int(replacement[2])) if replacement[1] else (finding.span.line, finding.span.column)
            )
            edits.append((*position, replacement[4] or replacement[5], replacement[3] or ""))
        elif end:
            edits.append((int(end[2]), len(lines[int(end[2]) - 1]) + 1, "", end[1]))
    for line, column, old, new in sorted(edits, reverse=True):  # the last one first: other positions stay valid
        before, after = lines[line - 1][: column - 1], lines[line - 1][column - 1 :]
        assert after.startswith(old), (after, old)
        lines[line - 1] = before + new + after.removeprefix(old)
    return "\n".join(lines)
