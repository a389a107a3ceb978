"""Fields go from the batch to the stages that read them, and each loss is a mean over its own targets of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import IGNORED, Example, LayeredModel, Values, combined
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.evaluation import Evaluator
from chimerac.interpreter.training.reference import largest_difference, train, whole_model
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.integers import IntegerSamples

# Words of the vocabulary; features of a vector; words of a sample; samples of a micro-batch.
WORDS, WIDTH, LENGTH, SAMPLES = 8, 6, 5, 2
SCHEDULES = [  # name, parameters, number of replicas
    ("1f1b", {"D": 4, "N": 4}, 1),
    ("chimera", {"D": 4, "N": 4}, 1),
    ("chimera_zb", {"D": 2, "N": 2}, 2),
    ("chimera_doubling", {"D": 2, "N": 4, "again": 1}, 1),
    ("chimera_recompute", {"D": 2, "N": 4}, 1),
]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH)

    def forward(self, words: Tensor, kinds: Tensor) -> Tensor:
        return self.word(words) + self.kind(kinds)


class Mixed(nn.Module):
    """Adds to the vector of each word a function of the mean vector of those words of its sample that the mask lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weights = mask.unsqueeze(-1) / mask.sum(1).view(-1, 1, 1)
        return x + torch.tanh(self.linear((x * weights).sum(1, keepdim=True)))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Heads(nn.Module):
    """Returns the logits of the words and of the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.sample = nn.Linear(WIDTH, WORDS), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, kinds: Tensor) -> Values:
        return self.words(x), self.sample(x.mean(1) + kinds.sum(1, keepdim=True))


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Words(), Plain(), Mixed(), Plain(), Heads()]


def losses(outputs: Values, targets: Values) -> Values:
    """Return two losses: the cross-entropies, summed over the valid words and over the samples."""
    words = F.cross_entropy(outputs[0].flatten(0, 1), targets[0].flatten(), ignore_index=IGNORED, reduction="sum")
    return words, F.cross_entropy(outputs[1], targets[1], ignore_index=IGNORED, reduction="sum")


def batch(samples: int, seed: int = 1) -> tuple[Tensor, Values, dict[str, Tensor]]:
    """Return inputs, targets and fields. Sample k has k % LENGTH + 1 valid words: those with a target."""
    generator = torch.Generator().manual_seed(seed)
    words, kinds = (
        torch.randint(0, WORDS, (samples, LENGTH), generator=generator),
        torch.randint(0, 2, (samples, LENGTH), generator=generator),
    )
    is_valid = torch.arange(LENGTH) <= torch.arange(samples).unsqueeze(1) % LENGTH
    targets = torch.where(is_valid, (words + 1) % WORDS, IGNORED), torch.randint(0, 2, (samples,), generator=generator)
    mask = (torch.rand(samples, LENGTH, generator=generator) < 0.6).float()
    mask[:, 0] = 1
    return words, targets, {"mask": mask, "kinds": kinds}


def one_process(samples: int) -> tuple[float, list[Tensor]]:
    """Return the loss and the gradients of the whole batch, computed at once; torch takes the mean of each loss."""
    modules, (words, targets, fields) = layers(), batch(samples)
    x = modules[0](words, fields["kinds"])
    x = modules[3](modules[2](modules[1](x), fields["mask"]))
    logits = modules[4](x, fields["kinds"])
    loss = F.cross_entropy(logits[0].flatten(0, 1), targets[0].flatten()) + F.cross_entropy(logits[1], targets[1])
    loss.backward()
    return float(loss.detach()), [p.grad for m in modules for p in m.parameters() if p.grad is not None]


def pipeline(program: Program, transport: Transport, **options: Any) -> Pipeline:
    words, targets, fields = batch(program.header.samples(SAMPLES))
    given: dict[str, Any] = {"loss": losses, "inputs": words, "targets": targets, "fields": fields, "transport": transport}
    return Pipeline(layers(), program, **(given | options))


def step(pipe: Pipeline, samples: int, **options: Any) -> float:
    """Run a step with the samples of this rank's replica, without the fields that the rank does not read. Return its loss.

    Args:
        samples: of the whole batch.
        options: further arguments of Pipeline.step, or other values of the divisor and the fields.
    """
    words, targets, fields = batch(samples)
    width, replica = pipe.program.header.width, pipe.replica
    mine = {name: fields[name].chunk(width)[replica] for name in pipe.reads_fields}
    counts = [int((targets[0] != IGNORED).sum()), samples]
    parts = tuple(t.chunk(width)[replica] for t in targets)
    given: dict[str, Any] = {"divisor": counts} | mine | options
    return pipe.step(words.chunk(width)[replica], parts, **given)


@pytest.mark.parametrize(("name", "parameters", "width"), SCHEDULES)
def test_schedules_have_the_loss_and_the_gradients_of_one_process(name: str, parameters: Mapping[str, int], width: int) -> None:
    program = compile_schedule(name, parameters, width).program
    samples = program.header.samples(SAMPLES) * program.header.micro_batches * width
    expected, gradients = one_process(samples)

    def rank(transport: Transport) -> tuple[float, dict[str, Tensor], tuple[str, ...]]:
        pipe = pipeline(program, transport)
        loss = step(pipe, samples)
        return loss, {n: p.grad for n, p in pipe.named_parameters() if p.grad is not None}, pipe.reads_fields

    names = [f"{k}.{path}" for k, module in enumerate(layers()) for path, _ in module.named_parameters()]
    by_name = dict(zip(names, gradients, strict=True))
    found = run_in_loopback(program, rank)
    for loss, own, _ in found:
        assert loss == pytest.approx(expected, rel=1e-5)
        for parameter, gradient in own.items():
            torch.testing.assert_close(gradient, by_name[parameter], rtol=1e-4, atol=1e-6)
    assert set.union(*(set(own) for _, own, _ in found)) == set(names)
    if name == "1f1b":
        assert [reads for _, _, reads in found] == [("kinds",), (), ("mask",), ("kinds",)]


class WordsAndPlain(nn.Module):
    """The first two layers as one stage."""

    def __init__(self, words: nn.Module, plain: nn.Module) -> None:
        super().__init__()
        self.words, self.plain = words, plain

    def forward(self, words: Tensor, kinds: Tensor) -> Tensor:
        return self.plain(self.words(words, kinds))


def own_stages() -> list[nn.Module]:
    """Return the model as four stages, as a user may write them."""
    first, second, *others = layers()
    return [WordsAndPlain(first, second), *others]


@pytest.mark.parametrize("name", ["1f1b", "chimera"])
def test_stages_that_a_rank_builds_alone_read_the_fields_that_their_forward_names(name: str) -> None:
    program = compile_schedule(name, {"D": 4, "N": 4}).program
    samples = 4 * SAMPLES
    expected, gradients = one_process(samples)
    names = [f"stage{s}.{path}" for s, stage in enumerate(own_stages()) for path, _ in stage.named_parameters()]
    by_name = dict(zip(names, gradients, strict=True))

    def rank(transport: Transport, more: Mapping[str, Tensor]) -> tuple[set[str], tuple[str, ...]]:
        held = {
            s: (f"stage{s}", stage) for s, stage in enumerate(own_stages()) if transport.rank in program.header.holders([s])
        }
        words, _, fields = batch(SAMPLES)
        pipe = Pipeline(held, program, loss=losses, inputs=words, fields={**fields, **more}, transport=transport)
        assert step(pipe, samples) == pytest.approx(expected, rel=1e-5)
        found = {parameter: p.grad for parameter, p in pipe.named_parameters()}
        torch.testing.assert_close(found, {parameter: by_name[parameter] for parameter in found}, rtol=1e-4, atol=1e-6)
        return set(found), pipe.reads_fields

    found = run_in_loopback(program, lambda transport: rank(transport, {}))
    assert set.union(*(own for own, _ in found)) == set(names)
    if name == "1f1b":
        assert [reads for _, reads in found] == [("kinds",), ("mask",), (), ("kinds",)]

    def with_unread(transport: Transport) -> None:
        with pytest.raises(ValueError, match="no stage reads the field maks: "):
            rank(transport, {"maks": torch.zeros(SAMPLES)})

    run_in_loopback(program, with_unread)


def refused(run: Any) -> str:
    """Return the message of the ValueError of rank 0. Every rank must raise one.

    Args:
        run: takes a program and a transport.
    """
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program

    def rank(transport: Transport) -> str:
        with pytest.raises(ValueError) as error:
            run(program, transport)
        return str(error.value)

    return run_in_loopback(program, rank)[0]


def test_a_field_that_no_layer_reads_or_with_the_name_of_an_argument_is_refused() -> None:
    _, _, fields = batch(SAMPLES)
    found = refused(lambda p, t: pipeline(p, t, fields=fields | {"maks": fields["mask"]}))
    assert found.startswith("no layer reads the field maks")
    found = refused(lambda p, t: pipeline(p, t, fields={"sync": fields["mask"]}))
    assert "cannot have the name 'sync'" in found


def test_fields_that_do_not_fit_a_step_are_refused() -> None:
    _, _, fields = batch(2 * SAMPLES)
    kinds, mask = fields["kinds"], fields["mask"]
    assert "reads the field kinds" in refused(lambda p, t: step(pipeline(p, t), 2 * SAMPLES, kinds=None))
    message = refused(lambda p, t: step(pipeline(p, t), 2 * SAMPLES, kinds=kinds[:, 1:]))
    assert "the field kinds is torch.int64 of shape [4, 4]" in message and "torch.int64 of shape [4, 5]" in message
    message = refused(lambda p, t: step(pipeline(p, t), 2 * SAMPLES, masks=mask))
    assert message == "masks is none of the fields of this pipeline: mask, kinds"


def test_there_is_one_divisor_for_all_losses_or_one_for_each() -> None:
    two_losses = torch.ones(()), torch.ones(())
    assert combined(two_losses, [4]) == 0.5 and combined(two_losses, [1, 2]) == 1.5 and combined(two_losses[:1], [4]) == 0.25
    with pytest.raises(ValueError, match="the model has 2 losses, and 3 divisors were given"):
        combined(two_losses, [1.0, 2.0, 4.0])


class FieldSamples(IntegerSamples):
    """Samples with fields and two targets, computed from their numbers.

    Attributes:
        asked: the names of the fields that were asked for.
    """

    def __init__(self) -> None:
        super().__init__(LENGTH)
        self.asked: set[str] = set()

    def targets(self, numbers: Sequence[int]) -> Values:
        (words,) = self.inputs(numbers)
        is_valid = torch.arange(LENGTH) <= torch.tensor([n % LENGTH for n in numbers]).unsqueeze(1)
        return torch.where(is_valid, (words + 1) % WORDS, IGNORED), torch.tensor([n % 2 for n in numbers])

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        self.asked.add(name)
        places = torch.tensor([[n + j for j in range(LENGTH)] for n in numbers])
        return {"kinds": places % 2, "mask": (places % 3 > 0).float()}[name]

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        words, samples = self.targets(numbers) if numbers else (torch.zeros(0), torch.zeros(0))
        return int((words != IGNORED).sum()), len(samples)


def example(samples: int) -> Example:
    words, targets, fields = batch(samples)
    return Example((words,), targets, fields)


MODEL = LayeredModel(
    name="fields",
    layers=tuple((f"layer {k}", make) for k, make in enumerate((Words, Plain, Mixed, Plain, Heads))),
    loss=losses,
    example=example,
    fields=("kinds", "mask"),
)
SETTINGS = Settings(iterations=5, seed=3, micro_batch=SAMPLES, rate=1e-2)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainer_has_the_losses_of_one_process_and_each_rank_reads_its_own_fields(accumulate: int) -> None:
    program = compile_schedule("chimera", {"D": 4, "N": 4}).program
    settings = replace(SETTINGS, accumulate=accumulate)
    samples = 4 * SAMPLES * accumulate  # of an iteration
    whole = whole_model(MODEL, SETTINGS.seed)
    expected = [r.loss for r in train(whole, MODEL, FieldSamples(), settings, samples)]
    numbers, source = range(7), FieldSamples()
    inputs, fields = source.inputs(numbers), {name: source.field(numbers, name) for name in whole.reads}
    with torch.no_grad():
        outputs = whole(*inputs, **fields)
        expected_held_out = float(combined(losses(outputs, source.targets(numbers)), source.valid_targets(numbers)))

    def rank(transport: Transport) -> tuple[list[float], float, float, tuple[set[str], set[str]]]:
        own = FieldSamples()
        trainer = Trainer(program, partitioned(program, MODEL, describe(MODEL, SAMPLES)), own, transport, settings)
        first = trainer.gradients(0)
        asked, difference = own.asked.copy(), largest_difference(trainer)  # the comparison reads the other fields too
        results = [trainer.update(t, trainer.gradients(t) if t else first).loss for t in range(settings.iterations)]
        held_out = Evaluator(trainer, FieldSamples(), samples=len(numbers)).evaluate().loss
        return results, held_out, difference, (asked, set(trainer.pipeline.reads_fields))

    found = run_in_loopback(program, rank)
    for results, held_out, difference, (asked, reads) in found:
        assert difference < 1e-5 and asked == reads
        assert results == pytest.approx(expected, rel=1e-5) and held_out == pytest.approx(expected_held_out, rel=1e-5)
    assert [sorted(reads) for *_, (_, reads) in found] == [["kinds"], ["mask"], ["mask"], ["kinds"]]


def test_the_divisor_of_a_loss_without_valid_targets_is_one() -> None:
    class WithoutValidWords(FieldSamples):
        def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
            return 0, len(numbers)

    batch = Batch(WithoutValidWords(), seed=0, number=0, replica=0, width=1, micro_batches=2, size=2)
    assert batch.divisors == (1, 4)
