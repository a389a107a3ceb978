"""The two text forms of a program: whether a text has one of them, and parsing it."""

from __future__ import annotations

import re

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.jsonform import program_from_json
from chimerac.chimera_ir.program import FORMAT, Program
from chimerac.chimera_ir.textform import program_from_text

# How the texts begin.
_JSON, _TEXT = re.compile(r"\s*[{\[]"), re.compile(rf"\s*{FORMAT}")


def is_program(source: Source) -> bool:
    """Return whether a text is meant as a compiled program, not as a schedule: by its first characters, or by its name."""
    return bool(_JSON.match(source.text) or _TEXT.match(source.text)) or source.name.endswith(".json")


def read_program(source: Source) -> Program:
    """Return the program of a JSON or compact text, not verified yet. Raises ChimeraError E601 to E605 if it cannot be read."""
    parse = program_from_text if _TEXT.match(source.text) else program_from_json
    return parse(source.text, source.name)
