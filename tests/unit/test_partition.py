"""The balanced cut: compared with all cuts of a few layers, and with a simple dynamic program for many."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.partition import cut


def every_cut(layers: int, stages: int) -> list[tuple[range, ...]]:
    """Return the layers of each stage, for every way to cut."""
    cuts = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(range(a, b) for a, b in itertools.pairwise((0, *inner, layers))) for inner in cuts]


@given(st.lists(st.integers(0, 2**52), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_smaller_largest_stage(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    def largest(ranges: tuple[range, ...]) -> int:
        return max(sum(costs[k] for k in r) for r in ranges)

    found = cut(costs, stages)
    assert [k for r in found for k in r] == list(range(len(costs))) and all(found) and len(found) == stages
    assert largest(found) == min(map(largest, every_cut(len(costs), stages)))


def test_the_largest_costs_that_a_description_may_have_are_cut() -> None:
    assert [len(r) for r in cut([2**53] * 1024, 4)] == [256] * 4


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8), st.data())
def test_of_cuts_with_the_least_largest_stage_the_sum_of_squares_is_least(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    def quality(ranges: tuple[range, ...]) -> tuple[int, int]:
        sums = [sum(costs[k] for k in r) for r in ranges]
        return max(sums), sum(x * x for x in sums)

    assert quality(cut(costs, stages)) == min(map(quality, every_cut(len(costs), stages)))


def test_equal_layers_are_cut_evenly() -> None:
    assert [len(r) for r in cut([7] * 12, 4)] == [3, 3, 3, 3]
    assert [len(r) for r in cut([5] * 7, 3)] == [2, 2, 3]


@given(st.lists(st.integers(0, 9) | st.integers(0, 10**6), min_size=9, max_size=40), st.data())
def test_of_equally_good_cuts_the_later_stages_are_longer(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    assert cut(costs, stages) == simple_cut(costs, stages)


def simple_cut(costs: list[int], stages: int) -> tuple[range, ...]:
    """Return what `cut` must return, by trying all ranges: layers^2 x stages operations."""
    sums = [0, *itertools.accumulate(costs)]
    layers, infinity = len(costs), 10**30
    # By the number of layers that are cut so far: the least possible largest sum of a range.
    largest = [0] + [infinity] * layers
    for _ in range(stages):
        largest = [min((max(largest[i], sums[j] - sums[i]) for i in range(j)), default=infinity) for j in range(layers + 1)]
    # The same for the least sum of squares, if no range has a larger sum than that. choices: the first layer of the
    # last range; the least such layer if there are several.
    squares, choices = [0] + [infinity] * layers, []
    for _ in range(stages):
        rows = [
            [(squares[i] + (sums[j] - sums[i]) ** 2, i) for i in range(j) if sums[j] - sums[i] <= largest[layers]]
            for j in range(layers + 1)
        ]
        best = [min(row, default=(infinity, 0)) for row in rows]
        squares, choices = [min(square, infinity) for square, _ in best], [*choices, [i for _, i in best]]
    edges = [layers]
    for choice in reversed(choices):
        edges.insert(0, choice[edges[0]])
    return tuple(range(a, b) for a, b in itertools.pairwise(edges))
