"""How many examples hypothesis draws: the count that a test states, times CHIMERA_EXAMPLES, which `make proof` sets."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int) -> settings:
    """Return the settings of a test that draws `count` examples when CHIMERA_EXAMPLES is not set."""
    return settings(max_examples=count * int(os.environ.get("CHIMERA_EXAMPLES", "1")))
