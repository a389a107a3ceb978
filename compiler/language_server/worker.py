"""The process that compiles and formats texts for the language server: a request and a reply are a line of JSON each.

It is a process of its own so that the server can end it: a text within the limits may take a minute and some gigabytes.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from chimerac.chimera_ir.counts import count_text, sizes_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source
from chimerac.compiler import simulate
from chimerac.compiler.format import format_schedule
from chimerac.compiler.language_server.text import Text
from chimerac.compiler.pipeline import Compiled, compile_source
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.statements import check_globals, check_parameters
from chimerac.compiler.resolve.values import values
from chimerac.compiler.syntax.parse import parse

MAX_FINDINGS = 100  # findings of a text that an editor gets, at most
MAX_SHOWN = 32  # ranks or micro-batches of a pipe, and pipes of a family, that are listed, at most
MEMORY = 4 * 2**30  # bytes that this process may allocate


def main() -> None:
    """Answer requests until stdin is closed."""
    with suppress(ImportError, ValueError, OSError):  # not on this system, or a lower limit is set already
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer every line of `requests`: {"kind": "check" or "format", "name": str, "text": str}.

    A reply is what `check` or `formatted` returns, or {"stopped": the reason} if the memory is not enough.
    """
    for line in requests:
        request = json.loads(line)
        try:
            reply = (check if request["kind"] == "check" else formatted)(request["name"], request["text"])
        except MemoryError:
            reply = {"stopped": "it needs more memory than the compiler may take here"}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def formatted(name: str, text: str) -> dict[str, Any]:
    """Return {"text": the formatted text}, or {"text": None} for a text that cannot be parsed."""
    try:
        return {"text": format_schedule(Source(name, text))}
    except ChimeraError:
        return {"text": None}


def check(name: str, text: str) -> dict[str, Any]:
    """Return {"findings", "values", "pipes", "summary"} of a text with its default parameters.

    They are what `_finding`, `_values`, `_pipes` and `_summary` return; a text with findings has no pipes and no summary.
    """
    source = Source(name, text)
    try:
        compiled = compile_source(source, {})
    except ChimeraError as error:
        found = [_finding(d, Text(text)) for d in error.diagnostics[:MAX_FINDINGS]]
        return {"findings": found, "values": _values(source), "pipes": {}, "summary": ""}
    return {"findings": [], "values": _values(source), "pipes": _pipes(compiled), "summary": _summary(compiled)}


def _finding(d: Diagnostic, text: Text) -> dict[str, Any]:
    """Return a finding as a JSON object. start, end: offsets in the text; None if it has no place there."""
    start = end = None
    if d.span is not None:
        start = text.at(d.span.line, d.span.column)
        end = max(text.at(d.span.end_line, d.span.end_column), start)
    return {
        "code": d.code, "message": d.message, "label": d.label, "notes": list(d.notes), "help": d.help,
        "start": start, "end": end,
    }  # fmt: skip


def _values(source: Source) -> dict[str, str]:
    """Return the values of params and lets; nothing for a text that has findings before they are known."""
    with suppress(ChimeraError):
        schedule = parse(source)
        wrong: list[Diagnostic] = []
        check_parameters(schedule, {}, wrong)
        check_globals(schedule, wrong)
        if wrong:
            return {}
        value_of = values(schedule, {}, Budget())
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in value_of.items()}
    return {}


def _pipes(compiled: Compiled) -> dict[str, str]:
    """Return, by the declared name of a pipe, where its stages are and which micro-batches it has.

    A family has one line for each of its pipes, for at most MAX_SHOWN of them.
    """
    lines_of: dict[str, list[str]] = {}
    for pipe in compiled.spec.header.pipes:
        line = f"{pipe.name}: stages on ranks {_listed(pipe.placement)}; micro-batches {_listed(pipe.micro_batches)}"
        lines_of.setdefault(pipe.name.partition("[")[0], []).append(line)
    return {
        name: "\n".join([*lines[:MAX_SHOWN], *([f"and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else [])])
        for name, lines in lines_of.items()
    }


def _listed(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers[:MAX_SHOWN])) + (" ..." if len(numbers) > MAX_SHOWN else "")


def _summary(compiled: Compiled) -> str:
    """Return what the schedule compiles to, in one line."""
    header = compiled.spec.header
    sizes = " ".join(f"{name}={value}" for name, value in header.parameters.items())
    return (
        f"verified{' with ' if sizes else ''}{sizes}: {sizes_text(header.ranks, header.stages, header.micro_batches)}, "
        f"{count_text(len(compiled.program), 'instruction')}, makespan {simulate(compiled.program).makespan}"
    )


if __name__ == "__main__":
    main()
