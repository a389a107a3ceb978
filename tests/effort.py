"""Settings of hypothesis for tests that state a number of examples. `make proof` multiplies it, with CHIMERA_EXAMPLES."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int) -> settings:
    """Return the settings of a test that draws `count` examples, times CHIMERA_EXAMPLES if that is set."""
    return settings(max_examples=count * int(os.environ.get("CHIMERA_EXAMPLES", "1")))
