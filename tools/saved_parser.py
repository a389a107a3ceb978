"""Writes the parser of the schedule language to compiler/syntax/grammar.tables, which compiler/syntax/grammar.py reads.

    python -m tools.saved_parser    write the file, unless it was made from this grammar by this version of lark

`make figures` runs this command.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from chimerac.compiler.syntax import grammar
from tools import ROOT

PARSER = ROOT / "compiler/syntax" / grammar.TABLES


def saved() -> bytes:
    """Return the content of the file. The bytes differ from call to call, because lark numbers its states differently."""
    file = io.BytesIO()
    grammar.generated().save(file)
    # Equal parts become one object, which makes the file a third smaller, and 2 ms faster to load.
    return grammar.first_line() + pickle.dumps(_shared(pickle.loads(file.getvalue()), {}), pickle.HIGHEST_PROTOCOL)


def _shared(value: Any, seen: dict[str, Any]) -> Any:
    """Return a value whose equal parts are one object.

    Args:
        seen: the parts so far, by their texts.
    """
    if isinstance(value, dict):
        value = {key: _shared(part, seen) for key, part in value.items()}
    elif isinstance(value, list | tuple):
        value = type(value)(_shared(part, seen) for part in value)
    return seen.setdefault(repr(value), value)


if __name__ == "__main__":
    if not PARSER.exists() or grammar.loaded(PARSER.read_bytes()) is None:
        PARSER.write_bytes(saved())
        print(f"wrote {PARSER.name}")
