"""The matrix products of forwards, backwards and halves of backwards, counted as floating-point operations in loopback."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from torch.utils.flop_counter import FlopCounterMode

from chimerac.chimera_ir.instructions import Instruction, Task
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers import program
from tests.helpers_loopback import SEED, batch_of, deep_model, description_of, stages_of

Counts = dict[tuple[str, int], set[int]]  # (operation, stage) -> numbers of floating-point operations of a micro-batch


def products_of(p: Program) -> Counts:
    """Return how many floating-point operations the matrix products of a micro-batch have, by operation and stage."""
    model, counts = deep_model(middle=2 * p.header.stages - 2), Counts()  # twice as many layers as stages
    parts = partitioned(p, model, description_of(model))

    def count(call: Callable[[], None], i: Instruction) -> None:
        with FlopCounterMode(display=False) as counter:
            call()
        if isinstance(i, Task):
            flops, rest = divmod(counter.get_total_flops(), len(i.micro_batches))
            assert not rest
            counts.setdefault((type(i).__name__, i.stage), set()).add(flops)

    def run_rank(transport: Transport) -> None:
        transport.connect(p)
        executor = Executor(p, model, stages_of(p, parts, transport.rank, SEED), parts.boundary_table, transport)
        executor.calls = [partial(count, call, i) for call, i in zip(executor.calls, executor.stream, strict=True)]
        executor.run(batch_of(p, replica=0))

    run_in_loopback(p, run_rank)
    assert all(len(flops) == 1 for flops in counts.values()), "each micro-batch has the same number"
    return counts


@pytest.mark.parametrize("stage", [0, 1, 2], ids=["first", "middle", "last"])
def test_the_halves_of_a_backward_compute_as_much_as_the_whole_backward(stage: int) -> None:
    whole, split = products_of(program("1f1b", D=3, N=4)), products_of(program("zb_h1", D=3, N=4))
    (forward,), (backward,) = whole["Fwd", stage], whole["Bwd", stage]
    (of_input,), (of_weight,) = split["BwdInput", stage], split["BwdWeight", stage]
    assert split["Fwd", stage] == {forward} and forward > 0
    assert of_input + of_weight == backward, "no matrix product is computed twice, and the forward is not repeated"
    assert of_weight == of_input == forward, "each half computes as much as the forward"


def test_a_group_of_micro_batches_costs_as_much_as_its_micro_batches_one_by_one() -> None:
    one_by_one, grouped = products_of(program("chimera", D=2, N=4)), products_of(program("chimera_doubling", D=2, N=4))
    assert one_by_one == grouped


def test_recomputation_adds_one_forward_to_the_backward() -> None:
    plain, recomputing = (products_of(program("chimera_doubling", D=2, N=4, again=again)) for again in (0, 1))
    for stage in (0, 1):
        (forward,), (backward,) = plain["Fwd", stage], plain["Bwd", stage]
        assert recomputing["Fwd", stage] == {forward} and recomputing["Bwd", stage] == {backward + forward}
