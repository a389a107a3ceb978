"""The plan of a run from the words of its command line."""

from __future__ import annotations

from typing import Any

from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan


def plan(*words: str) -> Any:
    """Return the plan that run.py makes from these words of its command line. Raises the ChimeraError that run.py prints."""
    return make_plan(parse_options(list(words)))
