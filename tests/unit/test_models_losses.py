"""GPT-2, BERT and CNNs train under schedules as they do without a pipeline."""

import pytest

from tools.equal_losses import SCHEDULES, compare

TOLERANCE = 1e-4  # relative: sums in another order make rounding errors, which add up over twenty updates


@pytest.mark.parametrize("name", ["gpt2-nano", "bert-nano", "cnn-digits/2", "cnn-digits-gn/2"])
def test_twenty_losses_are_those_without_a_pipeline(name: str) -> None:
    comparisons = list(compare(name, iterations=20, micro_batch=2, length=16, rate=1e-3))
    assert [c.schedule for c in comparisons] == list(SCHEDULES)
    for c in comparisons:
        assert len(set(c.losses)) == 20, "every update changes the loss"
        assert c.difference < TOLERANCE, (c.schedule, c.difference)
