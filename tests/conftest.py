"""What all tests share: the option --golden, and how hard hypothesis tries."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Derandomized everywhere: a failure that one machine shows, all show. `--hypothesis-profile=hunt` looks further.
settings.register_profile(
    "default", deadline=None, derandomize=True, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("hunt", deadline=None, max_examples=2000, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew instead of comparing with them")
