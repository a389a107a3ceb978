"""Jobs: what one rank does, from the comparison with the other ranks to the table at the end.

A process makes its job before the ranks connect. All checks that can fail are made then, before a rank waits for another.
`Job.run` is the work of one rank on its transport. A job uses a model only as a `Model` and data only as `Data`;
workloads.py chooses both.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.launch import measure
from chimerac.interpreter.launch.agreement import Product, compare
from chimerac.interpreter.launch.memory_check import check_memory
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.launch.settings import RunSettings, as_mapping
from chimerac.interpreter.launch.stopping import STOPPED, accepting_stop_requests, stop_requested
from chimerac.interpreter.launch.summary import RankSummary
from chimerac.interpreter.pipeline.pipeline import Pipeline
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.measured import MeasuredTimes
from chimerac.interpreter.runtime.messages import table_digest
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import PartitionedModel, partitioned
from chimerac.interpreter.training import reference
from chimerac.interpreter.training.data import Data
from chimerac.interpreter.training.evaluation import Evaluator
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.training.timed import Comparison, Sleeper, ZeroSamples, measured_times, median_times, timed_model
from chimerac.interpreter.training.trainer import Result, Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.rendezvous import rendezvous

GRADIENT_TOLERANCE = 1e-4  # relative, float32
SMALL = 10_000_000  # parameters up to which every rank builds the whole model once to check the gradients


class Job(Protocol):
    """The work of one rank."""

    def run(self, transport: Transport) -> int:
        """Do the work, report on rank 0, and return the exit code."""


def training_settings(settings: RunSettings) -> Settings:
    """Return how to train."""
    s = settings
    iterations = s.iterations or (200 if s.timed is None else 5)
    return Settings(
        iterations,
        s.seed,
        s.micro_batch,
        s.lr,
        clip=s.clip,
        warm_up=s.warm_up,
        rate_schedule=s.lr_schedule,
        rate_floor=s.lr_floor,
        betas=s.betas,
        weight_decay=s.weight_decay,
        accumulate=s.accumulate,
        dtype=s.dtype,
    )


def products(plan: Plan, model: PartitionedModel) -> list[Product]:
    """Return what must be equal on all ranks: programs, boundary table and partition."""
    evaluation = "none" if plan.evaluation is None else plan.evaluation.digest
    stages = enumerate(model.partition.layers)
    return [
        ("E806", "program", plan.program.digest),
        ("E806", "program of evaluations", evaluation),
        ("E807", "table of boundary values", table_digest(model.table)),
        *(("E817", f"partition, stage {s}", f"layers {ids.start} to {ids.stop - 1}") for s, ids in stages),
    ]


def write_trace(pipeline: Pipeline, path: Path | None, record: Record) -> None:
    """Write the trace of the last iteration, if one is asked for; called by all ranks together.

    It is a by-product: if it cannot be written, the run says so and goes on.
    """
    if path is None:
        return
    try:
        pipeline.trace(path)
        record.say(f"trace of the last iteration: {short_path(path)}")
    except ChimeraError as error:
        record.say(f"no trace: {error.diagnostics[0].message}; the run goes on")


class TrainingJob:
    """A training run, the same for every rank. ranks_here: how many ranks this machine has."""

    def __init__(self, plan: Plan, settings: RunSettings, model: Model, data: Data, ranks_here: int) -> None:
        self.plan, self.settings, self.data = plan, settings, data
        self.oversubscribed = ranks_here > measure.processors()
        self.size = samples_per_micro_batch(plan.program, settings.micro_batch)
        self.model = partitioned(plan.program, model, describe(model, self.size))
        small = self.model.description.parameters <= SMALL
        self.check_gradients = small if settings.check_gradients is None else settings.check_gradients
        check_memory(plan, settings, self.model.description, ranks_here, self.check_gradients)

    def run(self, transport: Transport) -> int:
        """Train, report on rank 0, and return the exit code."""
        data = [("E809", "training (model or data)", self.data.identity)]
        compare(transport, self.settings, products(self.plan, self.model), data)
        settings = training_settings(self.settings)
        options = self.settings
        arguments = (self.plan.program, self.model, self.data.train, transport, settings, self.plan.evaluation)
        trainer = Trainer(*arguments, profile_ranges=options.profile_ranges)
        record = Record(transport.rank, settings.iterations, options.log_file, self._about(), options.tensorboard)
        self._print_header(record)
        try:
            return Training(self, trainer, record).run()
        finally:
            record.close()

    def _about(self) -> dict[str, object]:
        """Return what the log says about the run in its first line."""
        header, model = self.plan.program.header, self.model.description
        return {
            "settings": as_mapping(self.settings),
            "schedule": header.schedule,
            "parameters": dict(header.parameters),
            "digest": self.plan.program.digest,
            "ranks": self.plan.program.world,
            "stages": header.stages,
            "micro_batches": header.micro_batches,
            "model": model.name,
            "model_parameters": model.parameters,
            "data": self.data.identity,
            "torch": torch.__version__,
        }

    def _print_header(self, record: Record) -> None:
        h, d = self.plan.program.header, self.model.description
        ranks = f"{self.plan.program.world} ranks, {h.stages} stages, {h.micro_batches} micro-batches"
        record.say(f"{h.schedule}: {ranks} of {self.size} samples of {self.data.sample}")
        record.say(f"{d.name}: {d.parameters:,} parameters; {self.data.summary}")


class Training:
    """One rank's iterations."""

    def __init__(self, job: TrainingJob, trainer: Trainer, record: Record) -> None:
        self.job, self.trainer, self.record = job, trainer, record
        self.tokens = trainer.batch(0, 0).valid_targets
        self.difference: float | None = None
        self.ranks = RankSummary()
        self.evaluator = None
        if job.plan.evaluation is not None:
            samples = min(job.settings.eval_samples, job.data.held_out_count)
            self.evaluator = Evaluator(trainer, job.data.held_out, samples)

    def run(self) -> int:
        """Run all iterations, or end early if a rank is asked to stop; return the exit code."""
        with accepting_stop_requests(rendezvous().terminate):
            return self._run()

    def _run(self) -> int:
        iterations, record, trainer = self.trainer.settings.iterations, self.record, self.trainer
        print_every, losses, trained_s = max(1, iterations // 10), [], 0.0
        record.start()
        for iteration in range(iterations):
            start = time.perf_counter()
            loss = trainer.gradients(iteration)
            taken_s = time.perf_counter() - start
            if iteration == 0 and self.job.check_gradients and not self._gradients_are_equal():
                return 1
            start = time.perf_counter()
            result = trainer.update(iteration, loss, (*trainer.pipeline.figures.row(), float(stop_requested())))
            taken_s += time.perf_counter() - start
            trained_s += taken_s
            losses.append(result.loss)
            # All ranks have the same figures, so they stop after the same iteration.
            stops = any(asked for *_, asked in result.figures)
            measured = MeasuredTimes.of([row for *row, _ in result.figures])
            self.ranks.add(measured)
            speed, done = self.tokens / taken_s, iteration + 1
            if iteration % print_every == 0 or done == iterations:
                state = f"loss {result.loss:6.3f}   gradient norm {result.norm:7.3f}   {speed:9,.0f} tokens/s"
                record.say(f"iteration {done:>5}   {state}")
            held_out = None if stops and done < iterations else self._held_out_loss(done)
            record.write(self._line(done, result, measured, taken_s, held_out))
            record.draw(done, result.loss, self.tokens * done / trained_s)
            if stops and done < iterations:
                write_trace(trainer.pipeline, self.job.settings.trace, record)
                record.say(f"stopped by SIGTERM after iteration {done} of {iterations}")
                return STOPPED
        trainer.pipeline.check_copies()
        write_trace(trainer.pipeline, self.job.settings.trace, record)
        self._print_summary(losses[0], losses[-1], held_out, self.tokens * iterations / trained_s)
        return 0

    def _line(
        self, done: int, result: Result, measured: MeasuredTimes, taken_s: float, held_out: float | None
    ) -> dict[str, object]:
        """Return the line of the log for an iteration."""
        line: dict[str, object] = {
            "iteration": done,
            "loss": result.loss,
            "gradient_norm": result.norm,
            "rate": result.rate,
            "tokens_per_second": self.tokens / taken_s,
            "iteration_s": taken_s,
            "peak_memory_bytes": measured.peak_memory_bytes,
            "bubble": [round(bubble, 4) for bubble in measured.bubbles],
            "value_wait_s": [round(wait, 6) for wait in measured.value_waits_s],
            "send_wait_s": [round(wait, 6) for wait in measured.send_waits_s],
            "sum_wait_s": [round(wait, 6) for wait in measured.sum_waits_s],
        }
        if held_out is not None:
            line["held_out_loss"] = held_out
        if self.job.oversubscribed:
            line["oversubscribed"] = True
        return line

    def _gradients_are_equal(self) -> bool:
        self.difference = reference.largest_difference(self.trainer)
        if self.difference > GRADIENT_TOLERANCE:
            self.record.say(f"gradients differ from one process: by {self.difference:.1e}, more than {GRADIENT_TOLERANCE:.0e}")
            return False
        self.record.say(f"gradients equal one process: largest relative difference {self.difference:.1e}")
        return True

    def _held_out_loss(self, done: int) -> float | None:
        """Return the held-out loss after `done` iterations; None if no evaluation is due."""
        every, last = self.job.settings.eval_every, done == self.trainer.settings.iterations
        if self.evaluator is None or not (last or (every and done % every == 0)):
            return None
        loss = self.evaluator.loss()
        if every:
            self.record.say(f"iteration {done:>5}   held-out loss {loss:.3f}")
        return loss

    def _print_summary(self, first: float, last: float, held_out: float | None, speed: float) -> None:
        name, baseline, remark = self.job.data.baseline()
        unseen = "-" if held_out is None else f"{held_out:.3f}"
        rows = [
            ("loss at the start", f"{first:.3f}", f"nats per {self.job.data.target}"),
            ("loss at the end", f"{last:.3f}", ""),
            ("held-out loss", unseen, "not measured: evaluations need the compiler" if held_out is None else ""),
            (name, f"{baseline:.3f}", remark),
            ("tokens per second", f"{speed:,.0f}", "ranks share processors" if self.job.oversubscribed else ""),
        ]
        if self.difference is not None:
            rows.append(("gradient difference", f"{self.difference:.1e}", "from one process, relative"))
        self.record.table(rows)
        self.record.say(f"\n{self.ranks.table()}")


class TimedJob:
    """A timed run: the same program and messages, with stages that only sleep.

    unit_ms: milliseconds for one unit of cost; model: its first boundary value gives the size of messages.
    """

    def __init__(self, plan: Plan, settings: RunSettings, unit_ms: float, model: Model) -> None:
        self.plan, self.settings, self.unit_s = plan, settings, unit_ms / 1000
        size = samples_per_micro_batch(plan.program, settings.micro_batch)
        boundary = describe(model, size).layers[0].boundary[0]
        program = replace(plan.program.with_header(tied=()), partition=None)  # both belong to the real model
        self.model = partitioned(program, *timed_model(plan.program, boundary, size, Sleeper(self.unit_s)))

    def run(self, transport: Transport) -> int:
        """Run, report the times on rank 0, and return the exit code."""
        compare(transport, self.settings, products(self.plan, self.model))
        iterations = training_settings(self.settings).iterations
        record, h = Record(transport.rank, iterations), self.plan.program.header
        record.say(
            f"{h.schedule}: {self.plan.program.world} ranks, {h.stages} stages, {h.micro_batches} micro-batches; "
            f"timed stages, {self.unit_s * 1000:g} ms for a unit of cost, {iterations} iterations"
        )
        record.say("\n" + self.measure(transport, record).table())
        return 0

    def measure(self, transport: Transport, record: Record | None = None) -> Comparison:
        """Run all iterations and return what was predicted and measured; called by all ranks together."""
        settings = training_settings(self.settings)
        arguments = (self.plan.program, self.model, ZeroSamples(), transport, settings)
        trainer = Trainer(*arguments, profile_ranges=self.settings.profile_ranges)
        found = []
        for iteration in range(settings.iterations):
            found.append(measured_times(trainer, iteration))
        if record is not None:
            write_trace(trainer.pipeline, self.settings.trace, record)
        predicted = self.plan.predicted
        if predicted is not None:
            predicted = replace(predicted, makespan=predicted.makespan * self.unit_s)
        return Comparison(predicted, median_times(found))
