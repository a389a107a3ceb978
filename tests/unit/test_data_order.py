"""The order of samples: in each epoch a permutation that looks uniformly random, each place computed without the others."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from chimerac.interpreter.data.order import sample_at
from tests.helpers_cost import peak


@given(st.integers(0, 2**40), st.integers(0, 5), st.integers(1, 700))
def test_every_epoch_reads_every_sample_once(seed: int, epoch: int, count: int) -> None:
    found = [sample_at(seed, number=epoch * count + k, count=count) for k in range(count)]
    assert sorted(found) == list(range(count))


def test_all_orders_of_four_samples_are_equally_likely() -> None:
    orders = Counter(tuple(sample_at(seed, number=k, count=4) for k in range(4)) for seed in range(4800))
    assert len(orders) == 24 and chisquare(list(orders.values())).pvalue > 1e-3


def test_places_and_samples_of_a_long_order_are_independent() -> None:
    count = 10_000
    # By (tenth of the places, tenth of the samples): how many places of this tenth have a sample of this tenth.
    cells = Counter((k * 10 // count, sample_at(seed=3, number=k, count=count) * 10 // count) for k in range(count))
    assert chisquare([cells[a, b] for a in range(10) for b in range(10)]).pvalue > 1e-3


def test_no_memory_grows_with_the_number_of_samples() -> None:
    def numbers() -> list[int]:
        return [sample_at(seed=0, number=k * 10**14 + 7, count=10**15) for k in range(50)]

    assert len(set(numbers())) == 50 and max(numbers()) < 10**15
    assert peak(numbers) < 100_000  # bytes
