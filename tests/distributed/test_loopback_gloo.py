"""With many schedules of the library, four ranks over gloo compute the loss and the gradients of one process, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.gloo_ranks import CASES
from tests.helpers_loopback import deep_model, one_process
from tests.helpers_processes import results_of

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run all cases, one after another, on the same four ranks."""
    out = tmp_path_factory.mktemp("ranks") / "results.json"
    return results_of("gloo_ranks.py", 4, out)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_bit_equal_to_one_process(name: str, results: Any) -> None:
    _, parameters, width, _ = CASES[name]
    assert [rank["wrong"] for rank in results[name]] == [[]] * 4
    expected, _ = one_process(deep_model(middle=6), parameters["N"] * width, iteration=1)
    assert sum(rank["loss"] for rank in results[name]) == expected != 0
