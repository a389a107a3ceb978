"""The batches of the current weight update. They are run again to find the first value that is not finite."""

from __future__ import annotations

from collections.abc import Mapping

from chimerac.interpreter.generators import Generators, States
from chimerac.interpreter.runtime.batch import MicroBatches
from chimerac.interpreter.runtime.buffers import unchanged_buffers
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.finite import Cause, FiniteCheck, first_cause


class History:
    """The batches of the current weight update, each with the states of torch's random generators before it ran.

    A run with sync completes a weight update. So the next run begins another one, and the batches before it are forgotten.

    Attributes:
        loss: this rank's share of the loss of the last run; 0.0 before the first one.
        has_run: whether a batch has run.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._generators = Generators(executor.transport.device)
        self._runs: list[tuple[MicroBatches, States]] = []
        self._is_complete = True  # whether the last run was with sync
        self.loss, self.has_run = 0.0, False

    def run(self, batch: MicroBatches, sync: bool) -> float:
        """Run a batch and return this rank's share of the loss.

        Args:
            sync: as in `Executor.run`.
        """
        if self._is_complete:
            self._runs.clear()
        self._runs.append((batch, self._generators.states()))
        self._is_complete = sync
        self.loss, self.has_run = self._executor.run(batch, sync), True
        return self.loss

    def first_cause(self, names: Mapping[int, str]) -> Cause | None:
        """Run the batches again, and return the first cause of a value that is not finite; called by all ranks together.

        Args:
            names: of this rank's parameters, by id.

        The new run begins without gradients. So a gradient that was not finite before the first of these batches is not found.
        If all values of the new run are finite, None is returned. Afterwards gradients, buffers and random generators are as
        they were.
        """
        executor, modules = self._executor, self._executor.stages.values()
        parameters = {id(p): p for module in modules for p in module.parameters()}.values()
        gradients = [(p, None if p.grad is None else p.grad.clone()) for p in parameters]
        for p in parameters:
            p.grad = None
        if self._runs:
            executor.rehearse(self._runs[0][0], FiniteCheck(executor, names).invoke)
        check = FiniteCheck(executor, names)
        with unchanged_buffers(modules):
            for number, (batch, states) in enumerate(self._runs, 1):
                with self._generators.restored(states):
                    is_last = number == len(self._runs)
                    executor.run(batch, sync=self._is_complete and is_last, invoke=check.invoke)
        check.end()
        for p, gradient in gradients:
            p.grad = gradient
        return first_cause(executor.transport, check.causes)
