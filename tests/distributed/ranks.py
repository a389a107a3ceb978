"""Runs all programs of TWO_RANKS (programs.py) in the same two processes, and writes the results as JSON.

One of the programs also trains, with and without a sharded optimizer.

Usage: PYTHONPATH=. torchrun --nproc-per-node 2 tests/distributed/ranks.py OUT
"""

import json
import sys
from pathlib import Path

from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.reference import add_gradients, whole_model
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from tests.distributed.integers import IntegerSamples, integer_model
from tests.distributed.programs import TWO_RANKS


def different_gradients(trainer: Trainer, model: Model, iteration: int) -> list[str]:
    """Return the parameters of this rank whose gradient is not exactly that of one process."""
    whole = whole_model(model, trainer.settings.seed)
    add_gradients(whole, trainer, iteration)
    wrong = []
    for s, stage in trainer.pipeline.stages.items():
        expected = [p.grad for k in trainer.model.partition.layers[s] for p in whole.layers[k].parameters()]
        for n, (p, grad) in enumerate(zip(stage.parameters(), expected, strict=True)):
            assert grad is not None and bool(grad.any()), "the gradient to compare with is zero"
            if p.grad is None or not p.grad.equal(grad):
                wrong.append(f"s{s} parameter {n}")
    return wrong


def weights_after_training(model: Model, zero: bool, staged: bool) -> dict[str, list[float]]:
    """Return the weights of the whole model after two updates.

    Args:
        zero: with a sharded optimizer.
        staged: messages are copied through other memory, as those of a GPU through host memory.
    """
    settings = Settings(iterations=2, seed=3, micro_batch=2, rate=1e-3, zero=zero)
    program = TWO_RANKS["two pipes"]
    trainer = Trainer(program, partitioned(program, model, describe(model, 2)), IntegerSamples(), Gloo(staged=staged), settings)
    for iteration in range(2):
        trainer.update(iteration, trainer.gradients(iteration))
    trainer.pipeline.check_copies()
    return {name: t.view(-1).tolist() for name, t in trainer.pipeline.full_state_dict().items()}


def main() -> None:
    """Run two iterations of all programs without updates of weights, then three trainings of two updates each."""
    join(timeout_s=30)
    model = integer_model(middle=3)
    description = describe(model, samples=2)
    settings = Settings(iterations=2, seed=3, micro_batch=2, rate=1e-3)
    results = {}
    for name, program in TWO_RANKS.items():
        transport = Gloo()
        trainer = Trainer(program, partitioned(program, model, description), IntegerSamples(), transport, settings)
        iterations = []
        for iteration in range(2):
            loss = trainer.gradients(iteration)
            iterations.append({"loss": loss, "differing": different_gradients(trainer, model, iteration)})
            trainer.optimizer.zero_grad()
        gathered = transport.all_gather(json.dumps(iterations))
        losses_of_one_process = [add_gradients(whole_model(model, settings.seed), trainer, iteration) for iteration in range(2)]
        results[name] = {"ranks": [json.loads(text) for text in gathered], "one process": losses_of_one_process}
    expected = weights_after_training(model, zero=False, staged=False)
    sharded = [weights_after_training(model, zero=True, staged=staged) for staged in (False, True)]
    results["sharded optimizer"] = [weights == expected for weights in sharded]
    if transport.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    main()
