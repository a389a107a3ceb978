"""Timed runs as jobs: their stages only sleep, and predicted and measured times are compared."""

from __future__ import annotations

from dataclasses import replace

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.counts import count_text, sizes_text
from chimerac.interpreter.launch.agreement import compare
from chimerac.interpreter.launch.job import derived, log_figures, log_header, training_defaults, training_settings
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.tracing import write_times
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.runtime.times import IterationTimes
from chimerac.interpreter.training.settings import samples_per_micro_batch
from chimerac.interpreter.training.timed import Comparison, Sleeper, ZeroSamples, measured_times, median_times, timed_model
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport


class TimedJob:
    """A timed run: the program with stages that only sleep, and that pass on tensors like `message`.

    Args:
        unit_ms: milliseconds for one unit of cost.
        message: the tensor that each stage passes to the next one.
    """

    def __init__(self, plan: Plan, settings: RunSettings, unit_ms: float, message: Tensor) -> None:
        self.plan, self.settings, self.unit_s = plan, settings, unit_ms / 1000
        size = samples_per_micro_batch(plan.program, settings.micro_batch)
        # The tied sets and the partition are those of the real model; the timed one has other layers.
        program = replace(plan.program.with_header(tied=()), partition=None)
        self.sleeper = Sleeper(self.unit_s)
        self.model = partitioned(program, *timed_model(plan.program, message, size, self.sleeper))

    def run(self, transport: Transport) -> int:
        """Run, report the times on rank 0, and return the exit code."""
        compare(transport, self.settings, derived(self.plan, self.model), defaults=training_defaults(self.settings))
        iterations, header = training_settings(self.settings).iterations, self.plan.program.header
        record = Record(transport.rank, iterations, self.settings.log_file, log_header(self.plan, self.settings))
        record.print_text(
            f"{header.schedule}: {sizes_text(self.plan.program.world, header.stages, header.micro_batches)}; "
            f"timed stages, {self.unit_s * 1000:g} ms for a unit of cost, "
            f"{count_text(iterations, 'iteration')}"
        )
        try:
            record.print_text("\n" + self.measure(transport, record).table())
        finally:
            record.close()
        return 0

    def measure(self, transport: Transport, record: Record) -> Comparison:
        """Run all iterations; return the predicted times and those of the median iteration; called by all ranks together."""
        trainer = self.trainer(transport)
        times = []
        for number in range(trainer.settings.iterations):
            times.append(measured_times(trainer, self.sleeper, number))
            figures = log_figures(times[-1], self.plan.predicted)
            record.write({"iteration": number + 1, "iteration_s": times[-1].last_task_end, **figures})
        write_times(trainer.pipeline, self.settings, record, trainer.settings.iterations)
        return Comparison(self.predicted, median_times(times))

    def trainer(self, transport: Transport) -> Trainer:
        """Return the trainer of this rank, after a first iteration that does not sleep; called by all ranks together."""
        arguments = (self.plan.program, self.model, ZeroSamples(), transport, training_settings(self.settings))
        trainer = Trainer(*arguments, profile_ranges=self.settings.profile_ranges, updates=False)
        self.sleeper.unit_s = 0.0
        measured_times(trainer, self.sleeper, 0)
        self.sleeper.unit_s = self.unit_s
        return trainer

    @property
    def predicted(self) -> IterationTimes | None:
        """Return the simulator's times, in seconds; None if the compiler is not installed."""
        times = self.plan.predicted
        return None if times is None else replace(times, last_task_end=times.last_task_end * self.unit_s)
