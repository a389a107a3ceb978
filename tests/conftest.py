"""Shared by all tests: options of pytest, skipped tests, and the settings of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Derandomized, so that all hosts test the same examples. `make proof` draws more examples, at random.
settings.register_profile(
    "default", deadline=None, derandomize=True, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "proof", deadline=None, max_examples=2000, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite the golden files instead of comparing with them")
    parser.addoption("--everything", action="store_true", help="run tests that need root, a browser or a GPU too")


NEEDS = {"root": "root", "browser": "a browser", "gpu": "a CUDA GPU"}  # a mark of tests -> what they need


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that need root, a browser or a GPU, unless --everything is given. The summary gives the reason."""
    if config.getoption("--everything"):
        return
    for item in items:
        for mark, requirement in NEEDS.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"needs {requirement}: make test-all runs it"))
