"""How many examples hypothesis draws: as many as a test says, times CHIMERA_EXAMPLES, which `make proof` sets."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int) -> settings:
    """Return the setting for a test that draws `count` examples in the everyday run."""
    return settings(max_examples=count * int(os.environ.get("CHIMERA_EXAMPLES", "1")))
