"""The partition under a memory limit: compared with all partitions of random small models, whose needs `memory` computes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.model import Layer, ModelDescription, Shared, TiedLayers
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.workspace import Peaks
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState, memory
from chimerac.compiler.plan.needs import Needs
from chimerac.compiler.plan.partition import best_partition
from tests.helpers import program

ADAMW = OptimizerState(Fraction(2))
ADAMW_ZERO = OptimizerState(Fraction(2), zero=True)


def random_model(rng: random.Random, layers: int, extras: bool) -> ModelDescription:
    """Return a model with this number of layers, of random sizes.

    Args:
        extras: with peaks, with parameters that the first and the last layer share, and with memory that layers share.
    """
    dtypes = ("float32", "bool")
    random_layers = []
    for k in range(layers):
        boundary = tuple(
            Tensor((rng.randint(1, 30),), rng.choice(dtypes), gradient=rng.random() < 0.8) for _ in range(rng.randint(1, 2))
        )
        weights = rng.randint(0, 100)
        random_layers.append(
            Layer(f"l{k}", weights, 4 * weights, kept_bytes=rng.randint(0, 300), weight_kept_bytes=rng.randint(0, 200),
                  boundary=boundary, cost=rng.randint(0, 20),
                  gradient_bytes=4 * weights, split_kept_bytes=rng.randint(0, 300),
                  peaks=Peaks(*(rng.randint(0, 500) for _ in range(5))) if extras else None)
        )  # fmt: skip
    tied, shared = (), ()
    if extras:
        size = min(random_layers[0].parameters, random_layers[-1].parameters)
        tied = (TiedLayers("t", (0, layers - 1), size, weight_bytes=4 * size, gradient_bytes=4 * size),)
        shared = tuple(
            Shared(rng.randint(1, 200), rng.choice([None, made]), **{name: tuple(sorted(rng.sample(range(made, layers), 2)))})
            for made, name in ((0, "kept"), (1, "split_kept"), (layers // 2 - 1, "weight_kept"))
        )
    return ModelDescription("random", 1, tuple(random_layers), tied, shared)


def every_partition(layers: int, stages: int) -> list[Partition]:
    cuts = itertools.combinations(range(1, layers), stages - 1)
    return [Partition.of_cuts("random", [0, *inner, layers]) for inner in cuts]


def needed(p: Program, model: ModelDescription, partition: Partition, state: OptimizerState) -> int:
    """Return the bytes of the rank that needs most."""
    return max(x.peak for x in memory(replace(p, partition=partition), model, state))


def slowest(model: ModelDescription, partition: Partition) -> int:
    """Return the cost of the slowest stage."""
    return max(s.cost for s in model.stage_sums(partition.layers))


CASES = [
    ("1f1b", {"D": 3, "N": 4}),
    ("gpipe", {"D": 4, "N": 3}),
    ("chimera", {"D": 4, "N": 4}),
    ("chimera_zb", {"D": 4, "N": 4, "f": 2}),
    ("interleaved", {"D": 2, "N": 2, "v": 2}),
    ("zb_v", {"D": 2, "N": 3}),
    ("zb_h1", {"D": 3, "N": 3}),
    ("hanayo", {"D": 2, "N": 2}),
    ("bitpipe", {"D": 2, "N": 2}),
    ("chimera_doubling", {"D": 4, "N": 8, "again": 1}),
]


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("state", [NO_STATE, ADAMW_ZERO], ids=["", "zero"])
def test_the_largest_need_is_the_largest_peak_of_memory(name: str, parameters: dict[str, int], state: OptimizerState) -> None:
    rng = random.Random(name)
    for width, extras in ((1, False), (2, True)):
        p = program(name, width, **parameters)
        stages = p.header.stages
        model = random_model(rng, stages + 3, extras)
        needs = Needs(p, model, state)
        for partition in rng.sample(every_partition(stages + 3, stages), 3):
            assert needs.most(partition.cuts) == needed(p, model, partition, state)


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=lambda x: x if isinstance(x, str) else "")
@given(seed=st.integers(0, 10**6), share=st.floats(0, 1))
@settings(max_examples=5, deadline=None)
def test_the_partition_is_the_best_of_all_that_fit(name: str, parameters: dict[str, int], seed: int, share: float) -> None:
    """share: where the limit is among the sorted needs of all partitions; 0 for the least, 1 for the largest."""
    p, rng = program(name, **parameters), random.Random(seed)
    stages = p.header.stages
    layers = stages + rng.randint(0, 4)
    model = random_model(rng, layers, rng.random() < 0.5)
    state = rng.choice([NO_STATE, ADAMW, ADAMW_ZERO])
    of_partitions = [(needed(p, model, x, state), slowest(model, x)) for x in every_partition(layers, stages)]
    needs = sorted({need for need, _ in of_partitions})
    limit = needs[int(share * (len(needs) - 1))] - rng.randint(0, 1)  # a need, or one byte less
    fitting = [cost for need, cost in of_partitions if need <= limit]
    if not fitting:
        with pytest.raises(ChimeraError, match="E709") as error:
            best_partition(p, model, limit, state=state)
        assert f"{needs[0]:,}" in error.value.diagnostics[0].help
        return
    found = best_partition(p, model, limit, state=state)
    assert needed(p, model, found.partition, state) <= limit
    assert (found.slowest, found.bound) == (min(fitting), min(fitting)) and slowest(model, found.partition) == found.slowest


def test_given_costs_take_the_place_of_those_of_the_description() -> None:
    p, model = program("1f1b", D=3, N=4), random_model(random.Random(1), 6, extras=False)
    assert best_partition(p, model, costs=[9, 1, 1, 1, 1, 1]).partition.cuts == [0, 1, 3, 6]
    most = needed(p, model, best_partition(p, model).partition, NO_STATE)
    assert best_partition(p, model, most * 10, costs=[0] * 6).slowest == 0
    with pytest.raises(ChimeraError, match="E709"):
        best_partition(p, model, 1, costs=[0] * 6)
    with pytest.raises(ChimeraError, match="5 costs for the 6 layers"):
        best_partition(p, model, costs=[1] * 5)


def test_with_zero_the_holders_of_a_stage_share_out_the_state_of_the_optimizer() -> None:
    model = random_model(random.Random(2), 6, extras=False)
    for width in (1, 2):
        p = program("chimera", width, D=4, N=4)
        without, whole, shares = (memory(p, model, state) for state in (NO_STATE, ADAMW, ADAMW_ZERO))
        for no_state, own, share in zip(without, whole, shares, strict=True):  # of one rank
            assert own.optimizer == 2 * no_state.gradients and own.peak == no_state.peak + own.optimizer
            assert share.peak == no_state.peak + share.optimizer
        one_copy = 2 * sum(layer.gradient_bytes or 0 for layer in model.layers)
        # A rank holds two stages. Its share of the state of each is rounded up to a whole byte.
        assert one_copy <= sum(share.optimizer for share in shares) <= one_copy + 2 * p.world
