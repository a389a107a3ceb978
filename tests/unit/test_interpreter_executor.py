"""The executor and the trainer on one rank: gradients equal those of one process, and wrong programs have clear errors."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Bwd, Free, Fwd, Instruction, Recv
from chimerac.chimera_ir.program import Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.interpreter.errors import RankError
from chimerac.interpreter.pipeline.ranks import check_equal
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.reference import add_gradients, largest_difference, whole_model
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.training.trainer import Trainer
from chimerac.models.gpt import gpt
from tests.distributed.alone import Alone
from tests.distributed.integers import IntegerSamples, integer_model
from tests.distributed.programs import ONE_RANK

SAMPLES, LENGTH = 2, 16  # samples of a micro-batch; tokens of a sample of the GPT
SETTINGS = Settings(iterations=20, seed=3, micro_batch=SAMPLES, rate=1e-2)


def trainer_of(program: Program, transport: Alone | None = None) -> Trainer:
    model = integer_model(middle=3)
    return Trainer(
        program, partitioned(program, model, describe(model, SAMPLES)), IntegerSamples(), transport or Alone(), SETTINGS
    )


def replace_at(program: Program, at: int, *new: Instruction) -> Program:
    """Return the program with instruction `at` of its only rank replaced by the new ones, or removed."""
    stream = list(program.stream(0))
    stream[at : at + 1] = new
    return program_of(program.header, [stream])


def test_full_and_split_backwards_leave_the_gradients_of_one_process() -> None:
    trainer = trainer_of(ONE_RANK)
    whole = whole_model(trainer.model.model, SETTINGS.seed)
    assert trainer.gradients(0) == add_gradients(whole, trainer, 0)
    gradients = [p.grad for s in sorted(trainer.pipeline.stages) for p in trainer.pipeline.stages[s].parameters()]
    expected = [p.grad for p in whole.parameters()]
    assert len(gradients) == len(expected) == 4  # one for each layer but the last, which has no parameter
    for found, wanted in zip(gradients, expected, strict=True):
        assert found is not None and wanted is not None and wanted.any() and found.equal(wanted)


def test_the_comparison_with_one_process_detects_a_wrong_gradient() -> None:
    trainer = trainer_of(ONE_RANK)
    trainer.gradients(0)
    assert largest_difference(trainer) == 0
    parameter = next(trainer.pipeline.stages[1].parameters())
    assert parameter.grad is not None
    parameter.grad[0, 0] += 1
    assert largest_difference(trainer) > 1e-4
    parameter.grad[0, 0] = math.nan
    assert largest_difference(trainer) == math.inf


def test_the_update_moves_weights_and_clears_gradients() -> None:
    trainer = trainer_of(ONE_RANK)
    before = [p.clone() for stage in trainer.pipeline.stages.values() for p in stage.parameters()]
    losses = []
    for iteration in range(6):
        loss = trainer.gradients(0)  # always of the same batch, so the loss has to fall
        losses.append(trainer.update(iteration, loss).loss)
        assert all(p.grad is None for stage in trainer.pipeline.stages.values() for p in stage.parameters())
    after = [p for stage in trainer.pipeline.stages.values() for p in stage.parameters()]
    assert not any(a.equal(b) for a, b in zip(before, after, strict=True))
    assert losses[-1] < losses[0]


def test_the_norm_is_that_of_one_process_before_clipping() -> None:
    trainer = trainer_of(ONE_RANK)
    whole = whole_model(trainer.model.model, SETTINGS.seed)
    add_gradients(whole, trainer, 0)
    squares = sum(float(p.grad.square().sum()) for p in whole.parameters() if p.grad is not None)
    assert trainer.update(0, trainer.gradients(0)).norm == squares**0.5


@pytest.mark.parametrize(
    ("program", "message"),
    [
        # Instruction 1 of ONE_RANK is the FWD of stage 1 on micro-batch 0. Instruction 11, the last one, is the
        # BWD_WEIGHT of stage 1 for micro-batch 1.
        (replace_at(ONE_RANK, 1, Bwd(0, 2, (0,))), "rank 0, instruction 1: BWD main s2 m0: its forward has not run"),
        (replace_at(ONE_RANK, 1), "rank 0, instruction 3: FWD main s2 m0 recompute: act of pipe 0, s2, m0 is not there"),
        (
            replace_at(ONE_RANK, 1, Free("act", 0, 1, (0,)), Fwd(0, 1, (0,))),
            "instruction 2: FWD main s1 m0: act of pipe 0, s1",
        ),
        (replace_at(ONE_RANK, 1, *[Fwd(0, 1, (0,))] * 2), "instruction 2: FWD main s1 m0: act of pipe 0, s2, m0 is already"),
        (replace_at(ONE_RANK, 1, Recv("act", 0, 1, (0,), 1)), "instruction 1: RECV act main s1 m0 <- 1: one rank receives"),
        (replace_at(ONE_RANK, 11), r"rank 0, epilogue: .*left .* and tasks \[\(0, 1, 1\)\] behind"),
    ],
)
def test_an_error_names_rank_instruction_text_and_cause(program: Program, message: str) -> None:
    trainer = trainer_of(program)
    with pytest.raises(RankError, match=message):
        trainer.gradients(0)


def test_dropout_is_the_same_in_a_pipeline_as_in_one_process_also_when_recomputed() -> None:
    class RandomBytes(IntegerSamples):
        def read(self, numbers: Sequence[int]) -> Tensor:
            generator = torch.Generator().manual_seed(numbers[0])
            return torch.randint(0, 256, (len(numbers), LENGTH + 1), generator=generator)

        def inputs(self, numbers: Sequence[int]) -> Values:
            return (self.read(numbers)[:, :-1],)

        def targets(self, numbers: Sequence[int]) -> Values:
            return (self.read(numbers)[:, 1:],)

    def trainer_with(dropout: float) -> Trainer:
        model = gpt("gpt-nano", LENGTH, dropout=dropout)
        return Trainer(ONE_RANK, partitioned(ONE_RANK, model, describe(model, SAMPLES)), RandomBytes(), Alone(), SETTINGS)

    trainer = trainer_with(dropout=0.5)
    loss = trainer.gradients(0)
    assert largest_difference(trainer) < 1e-6
    assert loss != trainer_with(dropout=0.0).gradients(0), "dropout changes the loss"


def test_tied_parameters_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ChimeraError, match="E805: the program ties embedding on stages 0, 2, but integers on no stage"):
        trainer_of(ONE_RANK.with_header(tied=(Tied("embedding", (0, 2)),)))


def test_ranks_with_different_programs_or_tables_are_refused() -> None:
    with pytest.raises(ChimeraError, match=r"E806: rank 0 and rank 1 have a different program: .* and abc"):
        trainer_of(ONE_RANK, Alone("abc"))
    with pytest.raises(ChimeraError, match=r"E807: rank 0 and rank 2 have a different table: abc and abd"):
        check_equal(Alone("abc", "abd"), "table", "E807", "abc")
    check_equal(Alone("abc", "abc"), "table", "E807", "abc")


def test_half_micro_batches_have_half_of_the_samples() -> None:
    halves = ONE_RANK.with_header(micro_batch_size=(1, 2))
    assert samples_per_micro_batch(halves, 4) == 2
    with pytest.raises(ChimeraError, match=r"E804: 1/2 of 3 samples is not a whole number of samples"):
        samples_per_micro_batch(halves, 3)
