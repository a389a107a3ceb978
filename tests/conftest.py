"""What all tests share: options, what is skipped, and how hard hypothesis tries."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Derandomized everywhere: a failure that one machine shows, all show. `make proof` looks further.
settings.register_profile(
    "default", deadline=None, derandomize=True, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("hunt", deadline=None, max_examples=2000, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew instead of comparing with them")
    parser.addoption("--everything", action="store_true", help="run tests that need root, a browser or a GPU too")


NEEDS = {"root": "root", "browser": "a browser", "gpu": "a CUDA GPU"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs more than Python, and say so in the summary."""
    if config.getoption("--everything"):
        return
    for item in items:
        for mark, what in NEEDS.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"needs {what}: make test-all runs it"))
