"""What one rank does, from the first comparison with the others to the table at the end.

A job is made once in a process, before ranks meet, so that whatever can be refused is refused before a rank waits for
another. `Job.run` is then the work of one rank on its transport.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from chimerac.chimera_ir.model import ModelDescription
from chimerac.interpreter.launch import measure
from chimerac.interpreter.launch.agreement import Made, compare
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.messages import boundary_table, digest
from chimerac.interpreter.training import reference
from chimerac.interpreter.training.data import Windows
from chimerac.interpreter.training.evaluation import Evaluator
from chimerac.interpreter.training.text import load_text, split_text, unigram_entropy
from chimerac.interpreter.training.timed import Comparison, Nothing, Sleeper, measured_times, median_times, timed_model
from chimerac.interpreter.training.trainer import Result, Settings, Trainer, samples_per_micro_batch
from chimerac.interpreter.transport import Transport
from chimerac.models.gpt import gpt

GRADIENT_TOLERANCE = 1e-4  # relative, float32
SMALL = 10_000_000  # parameters of a model that every rank may hold whole, to check its gradients


class Job(Protocol):
    """The work of one rank."""

    def run(self, transport: Transport, alive: Callable[[], None]) -> int:
        """Do it, say on rank 0 how it goes, and return the exit code.

        alive: called now and then; ends the process where nobody waits for it any more.
        """


def settings_of(options: argparse.Namespace) -> Settings:
    """Return how to train."""
    iterations = options.iterations or (200 if options.timed is None else 5)
    return Settings(iterations, options.seed, options.micro_batch, options.lr, options.clip, options.warm_up)


def made(plan: Plan, description: ModelDescription) -> list[Made]:
    """Return what all ranks must have made alike of their options, for the comparison."""
    table = boundary_table(description, plan.program.header.stages)
    evaluation = "none" if plan.evaluation is None else plan.evaluation.digest
    return [
        ("E806", "program", plan.program.digest),
        ("E806", "program of evaluations", evaluation),
        ("E807", "table of boundary values", digest(table)),
    ]


class TrainingJob:
    """A training, ready to run on every rank. ranks_here: how many ranks this machine has."""

    def __init__(self, plan: Plan, options: argparse.Namespace, ranks_here: int) -> None:
        self.plan, self.options = plan, options
        self.settings = settings_of(options)
        self.oversubscribed = ranks_here > measure.processors()
        self.size = samples_per_micro_batch(plan.program, options.micro_batch)
        self.model = gpt(options.model, options.seq_len, options.dropout)
        self.description = describe(self.model, self.size)
        self.description.cut(plan.program.header.stages)
        train, held_out = split_text(load_text(options.data), options.seq_len)
        self.source, self.held_out = (Windows(part, options.seq_len, options.seed) for part in (train, held_out))
        small = self.description.parameters <= SMALL
        self.check_gradients = small if options.check_gradients is None else options.check_gradients

    def run(self, transport: Transport, alive: Callable[[], None]) -> int:
        """Train, say on rank 0 how it goes, and return the exit code."""
        compare(
            transport, self.options, made(self.plan, self.description), [("E809", "training (model or data)", self._text())]
        )
        trainer = Trainer(self.plan.program, self.model, self.description, self.source, transport, self.settings)
        record = Record(transport.rank, self.settings.iterations, self.options.log_file)
        self._introduce(record)
        return Training(self, trainer, record).run(alive)

    def _text(self) -> str:
        """Return what tells one text from another. A large one is not read for this."""
        text = self.source.text
        ends = bytes(text.read(0, 2**16)) + bytes(text.read(len(text) - 2**16, len(text)))
        return f"{hashlib.sha256(ends).hexdigest()[:12]}, of {len(text)} bytes"

    def _introduce(self, record: Record) -> None:
        h, d = self.plan.program.header, self.description
        ranks = f"{self.plan.program.world} ranks, {h.stages} stages, {h.micro_batches} micro-batches"
        record.say(f"{h.schedule}: {ranks} of {self.size} samples of {self.options.seq_len} bytes")
        text = f"text: {len(self.source.text):,} bytes, {len(self.held_out.text):,} held out"
        record.say(f"{self.model.name}: {d.parameters:,} parameters; {text}")


class Training:
    """One rank's iterations."""

    def __init__(self, job: TrainingJob, trainer: Trainer, record: Record) -> None:
        self.job, self.trainer, self.record = job, trainer, record
        self.tokens = trainer.batch(0, 0).valid_targets
        self.difference: float | None = None
        self.evaluator = None
        if job.plan.evaluation is not None:
            samples = min(job.options.eval_samples, job.held_out.count)
            self.evaluator = Evaluator(job.plan.evaluation, trainer, job.held_out, samples)

    def run(self, alive: Callable[[], None]) -> int:
        """Run all iterations and return the exit code."""
        iterations, record, trainer = self.trainer.settings.iterations, self.record, self.trainer
        lines, losses, trained_s = max(1, iterations // 10), [], 0.0
        record.start()
        for iteration in range(iterations):
            alive()
            start = time.perf_counter()
            loss = trainer.gradients(iteration)
            taken_s = time.perf_counter() - start
            if iteration == 0 and self.job.check_gradients and not self._gradients_are_equal():
                return 1
            start = time.perf_counter()
            result = trainer.update(iteration, loss, self._measured())
            taken_s += time.perf_counter() - start
            trained_s += taken_s
            losses.append(result.loss)
            speed, done = self.tokens / taken_s, iteration + 1
            if iteration % lines == 0 or done == iterations:
                state = f"loss {result.loss:6.3f}   gradient norm {result.norm:7.3f}   {speed:9,.0f} tokens/s"
                record.say(f"iteration {done:>5}   {state}")
            held_out = self._held_out_loss(done)
            record.write(self._line(done, result, taken_s, held_out))
            record.draw(done, result.loss, self.tokens * done / trained_s)
        trainer.executor.check_copies()
        self._conclude(losses[0], losses[-1], held_out, self.tokens * iterations / trained_s)
        return 0

    def _measured(self) -> tuple[float, float, float]:
        """Return this rank's peak memory in bytes, and how long it computed and took, in seconds."""
        device, times = self.trainer.transport.device, self.trainer.executor.times
        return (measure.peak_memory_bytes(device), *measure.computed_and_taken_s(times))

    def _line(self, done: int, result: Result, taken_s: float, held_out: float | None) -> dict[str, object]:
        """Return what the log says of an iteration."""
        peaks, computed_s, taken = zip(*result.figures, strict=True)
        line: dict[str, object] = {
            "iteration": done,
            "loss": result.loss,
            "gradient_norm": result.norm,
            "rate": result.rate,
            "tokens_per_second": self.tokens / taken_s,
            "iteration_s": taken_s,
            "peak_memory_bytes": [int(peak) for peak in peaks],
            "bubble": [round(bubble, 4) for bubble in measure.bubbles(computed_s, taken)],
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
        """Evaluate after so many iterations if it is time to."""
        every, last = self.job.options.eval_every, done == self.trainer.settings.iterations
        if self.evaluator is None or not (last or (every and done % every == 0)):
            return None
        loss = self.evaluator.loss()
        if every:
            self.record.say(f"iteration {done:>5}   held-out loss {loss:.3f}")
        return loss

    def _conclude(self, first: float, last: float, held_out: float | None, speed: float) -> None:
        entropy = unigram_entropy(self.job.held_out.text)
        unseen = "-" if held_out is None else f"{held_out:.3f}"
        rows = [
            ("loss at the start", f"{first:.3f}", "nats per byte"),
            ("loss at the end", f"{last:.3f}", ""),
            ("held-out loss", unseen, "not measured: the compiler derives evaluations" if held_out is None else ""),
            ("unigram entropy", f"{entropy:.3f}", "of the held-out text"),
            ("tokens per second", f"{speed:,.0f}", "ranks share processors" if self.job.oversubscribed else ""),
        ]
        if self.difference is not None:
            rows.append(("gradient difference", f"{self.difference:.1e}", "from one process, relative"))
        self.record.table(rows)


class TimedJob:
    """A timed run, ready to run on every rank: the same program and messages, with stages that only take time."""

    def __init__(self, plan: Plan, options: argparse.Namespace) -> None:
        self.plan, self.options, self.unit_s = plan, options, options.timed / 1000
        self.settings = settings_of(options)
        size = samples_per_micro_batch(plan.program, options.micro_batch)
        boundary = describe(gpt(options.model, options.seq_len), size).layers[0].boundary[0]
        self.model, self.description = timed_model(plan.program, boundary, size, Sleeper(self.unit_s))

    def run(self, transport: Transport, alive: Callable[[], None]) -> int:
        """Run, say on rank 0 how long it took, and return the exit code."""
        compare(transport, self.options, made(self.plan, self.description))
        record, h = Record(transport.rank, self.settings.iterations), self.plan.program.header
        record.say(
            f"{h.schedule}: {self.plan.program.world} ranks, {h.stages} stages, {h.micro_batches} micro-batches; "
            f"timed stages, {self.unit_s * 1000:g} ms for a unit of cost, {self.settings.iterations} iterations"
        )
        record.say("\n" + self.measure(transport, alive).table())
        return 0

    def measure(self, transport: Transport, alive: Callable[[], None]) -> Comparison:
        """Run all iterations and return what was predicted and measured; called by all ranks together."""
        trainer = Trainer(self.plan.program, self.model, self.description, Nothing(), transport, self.settings)
        found = []
        for iteration in range(self.settings.iterations):
            alive()
            found.append(measured_times(trainer, iteration))
        predicted = self.plan.predicted
        if predicted is not None:
            predicted = replace(predicted, makespan=predicted.makespan * self.unit_s)
        return Comparison(predicted, median_times(found))
