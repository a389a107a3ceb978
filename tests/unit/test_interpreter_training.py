"""The epilogue: norm, clipping, measurements of the ranks, a loss that is nan. Training in one process. Evaluations."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Tied
from chimerac.compiler import compile_schedule
from chimerac.interpreter.pipeline.gradient import ModelGradient
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import IGNORED, Values
from chimerac.interpreter.runtime.parameters import holders_by_group
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.evaluation import Evaluator, FirstSamples
from chimerac.interpreter.training.optimizer import learning_rate
from chimerac.interpreter.training.reference import train, whole_model
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone
from tests.distributed.integers import DIVISOR, IntegerSamples, integer_model
from tests.distributed.programs import ONE_RANK

SETTINGS = Settings(iterations=20, seed=3, micro_batch=2, rate=1e-2)
MODEL = integer_model(middle=3)


def trainer_of(settings: Settings = SETTINGS) -> Trainer:
    return Trainer(ONE_RANK, partitioned(ONE_RANK, MODEL, describe(MODEL, 2)), IntegerSamples(), Alone(), settings)


def test_a_gradient_above_the_clip_norm_is_scaled_and_a_smaller_one_is_not() -> None:
    """The norms of the gradients are compared, not the updates: the first update of AdamW is nearly the same for every norm."""
    for clip in (1e-3, 1e9):
        trainer = trainer_of(replace(SETTINGS, clip=clip))
        norms: list[float] = []
        assert trainer.optimizer is not None
        trainer.optimizer.register_step_pre_hook(lambda *_, t=trainer, norms=norms: norms.append(norm_of(t)))
        result = trainer.update(0, trainer.gradients(0))
        assert norms == [pytest.approx(min(clip, result.norm), rel=1e-6)] and result.norm > 1


def norm_of(trainer: Trainer) -> float:
    """Return the norm of all gradients."""
    grads = [p.grad for group in trainer.pipeline.executor.groups.values() for p in group]
    return sum(float(g.double().square().sum()) for g in grads if g is not None) ** 0.5


def test_a_tied_parameter_counts_once() -> None:
    trainer = trainer_of()
    trainer.gradients(0)
    executor = trainer.pipeline.executor
    before = trainer.pipeline.gradient.counted_parameters()
    shared = nn.Parameter(torch.zeros(1))
    executor.groups["embedding"] = [shared]
    holders = holders_by_group(ONE_RANK.with_header(tied=(Tied("embedding", (0, 2)),)).header)
    gradient = ModelGradient(executor, holders, trainer.transport)
    assert [id(p) for p in gradient.counted_parameters()] == [*map(id, before), id(shared)]


@pytest.mark.parametrize(("name", "parameters", "width"), [("chimera", {"D": 2}, 2), ("gpipe", {"D": 2, "N": 2}, 1)])
def test_every_parameter_counts_once_over_all_ranks(name: str, parameters: dict[str, int], width: int) -> None:
    program = compile_schedule(name, parameters, width).program

    def counted(transport: Transport) -> int:
        trainer = Trainer(program, partitioned(program, MODEL, describe(MODEL, 2)), IntegerSamples(), transport, SETTINGS)
        return sum(p.numel() for p in trainer.pipeline.gradient.counted_parameters())

    assert sum(run_in_loopback(program, counted)) == sum(p.numel() for p in whole_model(MODEL, seed=3).parameters())


def test_an_update_returns_the_figures_of_all_ranks_by_rank() -> None:
    program = compile_schedule("gpipe", {"D": 3, "N": 1}).program

    def figures_by_rank(transport: Transport) -> object:
        trainer = Trainer(program, partitioned(program, MODEL, describe(MODEL, 2)), IntegerSamples(), transport, SETTINGS)
        return trainer.update(0, trainer.gradients(0), figures=(transport.rank, 10.5 + transport.rank)).figures

    assert run_in_loopback(program, figures_by_rank) == [((0, 10.5), (1, 11.5), (2, 12.5))] * 3


def test_a_loss_that_is_nan_ends_the_run_with_a_finding() -> None:
    trainer = trainer_of()
    trainer.gradients(0)
    with pytest.raises(ChimeraError, match="E812: iteration 5 has the loss nan and the gradient norm"):
        trainer.update(4, float("nan"))


def test_the_reference_equals_a_training_loop_of_torch_alone() -> None:
    """The reference is the training in one process to which schedules are compared."""
    settings, trained, by_torch = replace(SETTINGS, iterations=3), whole_model(MODEL, seed=3), whole_model(MODEL, seed=3)
    results = list(train(trained, MODEL, IntegerSamples(), settings, samples=4))
    groups = [{"params": [p], "weight_decay": 0.1 if p.dim() > 1 else 0.0} for p in by_torch.parameters()]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: learning_rate(settings, t))
    for t, result in enumerate(results):
        numbers = range(4 * t, 4 * t + 4)
        loss = MODEL.loss(by_torch(*IntegerSamples().inputs(numbers)), IntegerSamples().targets(numbers))[0] / DIVISOR
        optimizer.zero_grad()
        loss.backward()
        assert result.loss == loss.item()
        assert result.norm == nn.utils.clip_grad_norm_(by_torch.parameters(), settings.clip).item()
        optimizer.step()
        scheduler.step()
    for a, b in zip(trained.parameters(), by_torch.parameters(), strict=True):
        assert a.equal(b)


class TwoTargetsEach(IntegerSamples):
    """Samples with two valid targets each."""

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return (2 * len(numbers),)


def test_first_samples_ignores_the_targets_beyond_its_count() -> None:
    first = FirstSamples(TwoTargetsEach(), count=3)
    (targets,) = first.targets([1, 2, 3, 4])
    assert (targets[2:] == IGNORED).all() and targets[:2].equal(TwoTargetsEach().targets([1, 2])[0])
    assert first.valid_targets([1, 2, 3, 4]) == (4,)


def test_an_evaluation_of_several_batches_counts_its_targets_once() -> None:
    counted = []

    class Recording(TwoTargetsEach):
        def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
            counted.extend(numbers)
            return super().valid_targets(numbers)

    trainer = trainer_of()
    evaluator = Evaluator(trainer, Recording(), samples=40)
    evaluator.evaluate()
    assert trainer.samples_per_iteration < 40 and counted == list(range(40))


@pytest.mark.parametrize("samples", [3, 4, 7])
def test_an_evaluation_returns_the_mean_over_its_targets_and_changes_neither_mode_nor_gradients(samples: int) -> None:
    def masked(outputs: Values, targets: Values) -> Values:
        return ((outputs[0].sum(-1) * targets[0] * (targets[0] != IGNORED)).sum(),)

    model = replace(MODEL, loss=masked)
    trainer = Trainer(ONE_RANK, partitioned(ONE_RANK, model, describe(model, 2)), TwoTargetsEach(), Alone(), SETTINGS)
    (tokens,), targets = TwoTargetsEach().inputs(range(samples)), TwoTargetsEach().targets(range(samples))
    expected = masked(whole_model(model, seed=3).eval()(tokens), targets)[0].item() / (2 * samples)
    evaluator = Evaluator(trainer, TwoTargetsEach(), samples)
    losses = [evaluator.evaluate().loss for _ in range(2)]
    assert expected != 0 and losses == pytest.approx([expected, expected], rel=1e-12)
    assert all(stage.training for stage in trainer.pipeline.stages.values())
    assert all(p.grad is None for stage in trainer.pipeline.stages.values() for p in stage.parameters())
