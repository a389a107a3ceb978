"""Large programs are equal after writing and reading in both text forms.

tests/unit/test_limits.py reads the largest window, micro-batch size and parameters.
"""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import compile_schedule


@pytest.mark.parametrize(
    ("name", "parameters", "width"), [("1f1b", {"D": 160, "N": 160}, 1), ("chimera_zb", {"D": 16, "N": 16}, 64)]
)
def test_a_large_program_is_equal_after_writing_and_reading(name: str, parameters: dict[str, int], width: int) -> None:
    compiled = compile_schedule(name, parameters, width).program
    json_text = program_to_json(compiled)
    assert len(compiled) > 50_000
    assert program_to_json(program_from_json(json_text)) == json_text
    assert program_to_json(program_from_text(program_to_text(compiled))) == json_text
