"""Timed runs as jobs: their stages only sleep, and they print the predicted and the measured makespan and bubbles."""

from __future__ import annotations

from dataclasses import replace

from chimerac.interpreter.launch.agreement import compare
from chimerac.interpreter.launch.job import products, training_settings
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.tracing import write_trace
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.settings import samples_per_micro_batch
from chimerac.interpreter.training.timed import Comparison, Sleeper, ZeroSamples, measured_times, median_times, timed_model
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport


class TimedJob:
    """A timed run: the program with messages of the model's size, and stages that only sleep.

    unit_ms: milliseconds of sleep for one unit of cost; model: its first boundary value has the size of all messages.
    """

    def __init__(self, plan: Plan, settings: RunSettings, unit_ms: float, model: Model) -> None:
        self.plan, self.settings, self.unit_s = plan, settings, unit_ms / 1000
        size = samples_per_micro_batch(plan.program, settings.micro_batch)
        boundary = describe(model, size).layers[0].boundary[0]
        program = replace(plan.program.with_header(tied=()), partition=None)  # both are of the real model
        self.model = partitioned(program, *timed_model(plan.program, boundary, size, Sleeper(self.unit_s)))

    def run(self, transport: Transport) -> int:
        """Run, report the times on rank 0, and return the exit code."""
        compare(transport, self.settings, products(self.plan, self.model))
        iterations = training_settings(self.settings).iterations
        record, h = Record(transport.rank, iterations), self.plan.program.header
        record.print_text(
            f"{h.schedule}: {self.plan.program.world} ranks, {h.stages} stages, {h.micro_batches} micro-batches; "
            f"timed stages, {self.unit_s * 1000:g} ms for a unit of cost, {iterations} iterations"
        )
        record.print_text("\n" + self.measure(transport, record).table())
        return 0

    def measure(self, transport: Transport, record: Record | None = None) -> Comparison:
        """Run all iterations and return what was predicted and measured; called by all ranks together."""
        settings = training_settings(self.settings)
        profile_ranges = self.settings.profile_ranges
        trainer = Trainer(self.plan.program, self.model, ZeroSamples(), transport, settings, profile_ranges=profile_ranges)
        times = [measured_times(trainer, iteration) for iteration in range(settings.iterations)]
        if record is not None:
            write_trace(trainer.pipeline, self.settings.trace, record)
        predicted = self.plan.predicted
        if predicted is not None:
            predicted = replace(predicted, makespan=predicted.makespan * self.unit_s)
        return Comparison(predicted, median_times(times))
