"""Jobs: what one rank does, from the comparison with the other ranks to the table at the end.

A process creates its job before the ranks connect. The checks that need no other rank are made then, so they fail before a rank
waits for another one. `Job.run` is the work of one rank on its transport. A job uses a model only as a `Model` and data only as
`Data`; workloads.py chooses both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import torch

from chimerac.chimera_ir.counts import count_text, sizes_text
from chimerac.chimera_ir.files import short_path
from chimerac.chimera_ir.header import stages_text
from chimerac.chimera_ir.host import processors
from chimerac.interpreter.adapters.losses import check_sum
from chimerac.interpreter.adapters.own import DEFAULT_LOSS, is_cross_entropy, is_own, may_have_own_loss
from chimerac.interpreter.data.source import Data
from chimerac.interpreter.launch.agreement import Derived, compare
from chimerac.interpreter.launch.memory_check import check_memory
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.planning import fitted
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.launch.settings import RunSettings, as_mapping
from chimerac.interpreter.launch.stopping import STOPPED, accepting_stop_requests, stop_requested
from chimerac.interpreter.launch.summary import RankSummary
from chimerac.interpreter.launch.tracing import write_times
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.measured import MeasuredTimes
from chimerac.interpreter.runtime.messages import table_digest
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import PartitionedModel, partitioned
from chimerac.interpreter.runtime.times import IterationTimes
from chimerac.interpreter.training import reference
from chimerac.interpreter.training.checkpoints import Checkpoints, CheckpointSettings
from chimerac.interpreter.training.evaluation import Evaluation, Evaluator
from chimerac.interpreter.training.export import export_weights
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.training.trainer import Result, Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.rendezvous import rendezvous

GRADIENT_TOLERANCE = 1e-4  # the largest relative difference of gradients that passes the check; it is meant for float32
MAX_CHECKED_PARAMETERS = 10_000_000  # of models whose gradients are checked by default: every rank builds the whole model once


class Job(Protocol):
    """The work of one rank."""

    def run(self, transport: Transport) -> int:
        """Do the work, report on rank 0, and return the exit code."""


def training_settings(settings: RunSettings) -> Settings:
    """Return the part of a run's settings that the trainer needs."""
    return Settings(
        iterations=settings.iterations or (200 if settings.timed is None else 5),
        seed=settings.seed,
        micro_batch=settings.micro_batch,
        rate=settings.lr,
        clip=settings.clip,
        warm_up=settings.warm_up,
        rate_schedule=settings.lr_schedule,
        rate_floor=settings.lr_floor,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        accumulate=settings.accumulate,
        dtype=settings.dtype,
        skip_nonfinite=settings.skip_nonfinite,
        max_skipped=settings.max_skipped,
        zero=settings.zero,
        compile_stages=settings.compile,
    )


def training_defaults(settings: RunSettings) -> dict[str, object]:
    """Return the iterations and the warm-up of a run: what its settings give, else the defaults."""
    training = training_settings(settings)
    return {"iterations": training.iterations, "warm_up": training.warm_up_iterations}


def derived(plan: Plan, model: PartitionedModel) -> list[Derived]:
    """Return what must be equal on all ranks: programs, table of boundary values and partition."""
    evaluation = "none" if plan.evaluation is None else plan.evaluation.digest
    partition = enumerate(model.partition.layers)
    return [
        ("E806", "program", plan.program.digest),
        ("E806", "program of evaluations", evaluation),
        ("E807", "table of boundary values", table_digest(model.boundary_table)),
        *(("E817", f"partition, stage {s}", f"layers {layers.start} to {layers.stop - 1}") for s, layers in partition),
    ]


def log_header(plan: Plan, settings: RunSettings) -> dict[str, object]:
    """Return what a log says first about any run: its settings, what its program is, and the version of torch."""
    header = plan.program.header
    return {
        "settings": as_mapping(settings),
        "schedule": header.schedule,
        "parameters": dict(header.parameters),
        "digest": plan.program.digest,
        "ranks": plan.program.world,
        "stages": header.stages,
        "micro_batches": header.micro_batches,
        "torch": torch.__version__,
    }


def log_figures(measured: MeasuredTimes, predicted: IterationTimes | None) -> dict[str, object]:
    """Return the fields that the line of every iteration has: the figures of each rank, and of all ranks together.

    Args:
        predicted: by the simulator, in units of cost; None: the line has no predictions. A unit is converted to seconds so that
            the tasks of all ranks together take as long as measured.
    """
    predictions: dict[str, object] = {}
    if predicted is not None:
        busy_s, busy_units = ((1 - t.bubble_ratio) * t.last_task_end for t in (measured, predicted))
        predictions = {
            "predicted_makespan_s": round(predicted.last_task_end * busy_s / busy_units, 6) if busy_units else 0.0,
            "predicted_bubble": [round(bubble, 4) for bubble in predicted.bubbles],
        }
    return {
        "peak_memory_bytes": measured.peak_memory_bytes,
        "makespan_s": round(measured.last_task_end, 6),
        "bubble": [round(bubble, 4) for bubble in measured.bubbles],
        "recompute_s": [round(s, 6) for s in measured.recompute_s],
        **predictions,
        "value_wait_s": [round(wait, 6) for wait in measured.value_waits_s],
        "send_wait_s": [round(wait, 6) for wait in measured.send_waits_s],
        "all_reduce_wait_s": [round(wait, 6) for wait in measured.all_reduce_waits_s],
    }


class TrainingJob:
    """A training run, the same for every rank.

    Args:
        ranks_here: how many ranks this host has.

    Attributes:
        oversubscribed: whether this host has more ranks than processors that they may use.
        size: samples of a micro-batch of the program.
    """

    def __init__(self, plan: Plan, settings: RunSettings, model: Model, data: Data, ranks_here: int) -> None:
        self.settings, self.data = settings, data
        self.oversubscribed = ranks_here > processors()
        self.size = samples_per_micro_batch(plan.program, settings.micro_batch)
        model = replace(model, autocast=torch.bfloat16) if settings.dtype == "bf16" else model
        # With autocast the dtypes of what is sent and kept depend on the device.
        on_gpu = model.autocast is not None and settings.transport != "gloo"
        description = describe(model, self.size, torch.device("cuda") if on_gpu else None)
        if may_have_own_loss(settings.model):
            check_sum(str(settings.model), model.loss, description.layers[-1].boundary, data.train.targets([0]))
        self.plan = plan = fitted(plan, settings, description)
        self.model = partitioned(plan.program, model, description, ties_by_stage=is_own(settings.model))
        # In bfloat16, rounding alone may make gradients differ by more than GRADIENT_TOLERANCE.
        checks_by_default = self.model.description.parameters <= MAX_CHECKED_PARAMETERS and settings.dtype == "fp32"
        self.check_gradients = checks_by_default if settings.check_gradients is None else settings.check_gradients
        check_memory(plan, settings, self.model.description, ranks_here, self.check_gradients)

    def run(self, transport: Transport) -> int:
        """Train, report on rank 0, and return the exit code."""
        data = [("E809", "training (model or data)", self.data.identity)]
        defaults = {
            **training_defaults(self.settings),
            "model": self.model.description.name,
            "loss": DEFAULT_LOSS,
            "check_gradients": self.check_gradients,
        }
        compare(transport, self.settings, derived(self.plan, self.model), data, defaults)
        options, training = self.settings, training_settings(self.settings)
        trainer = Trainer(
            self.plan.program,
            self.model,
            self.data.train,
            transport,
            training,
            self.plan.evaluation,
            profile_ranges=options.profile_ranges,
        )
        record = Record(transport.rank, training.iterations, options.log_file, self._log_header(), options.tensorboard)
        self._print_header(record)
        try:
            return Training(self, trainer, record, self._checkpoints(trainer)).run()
        finally:
            record.close()

    def _checkpoints(self, trainer: Trainer) -> Checkpoints:
        options = self.settings
        checkpoint_settings = CheckpointSettings(options.save_dir, options.save_every, options.keep, options.async_save)
        return Checkpoints(trainer, checkpoint_settings, self.data.identity)

    def _log_header(self) -> dict[str, object]:
        """Return what the log says first about this run: the fields of `log_header`, the model and the data."""
        model = self.model.description
        about_model = {"model": model.name, "model_parameters": model.parameters, "data": self.data.identity}
        return {**log_header(self.plan, self.settings), **about_model}

    def _print_header(self, record: Record) -> None:
        header, model = self.plan.program.header, self.model.description
        sizes = sizes_text(self.plan.program.world, header.stages, header.micro_batches)
        record.print_text(f"{header.schedule}: {sizes} of {count_text(self.size, 'sample')} of {self.data.sample}")
        record.print_text(f"{model.name}: {model.parameters:,} parameters; {self.data.summary}")
        if recomputed := self.plan.program.recomputed_stages:
            record.print_text(f"stages that recompute: {stages_text(recomputed)}")


class Training:
    """One rank's iterations of a job.

    Attributes:
        tokens: of an iteration; an image counts as one.
        eval_samples: how many held-out samples an evaluation reads.
        difference: the largest relative difference of the first gradients from those of one process; None if it is not
            measured.
    """

    def __init__(self, job: TrainingJob, trainer: Trainer, record: Record, checkpoints: Checkpoints) -> None:
        self.job, self.trainer, self.record, self.checkpoints = job, trainer, record, checkpoints
        self.tokens = trainer.samples_per_iteration * job.data.tokens
        self.unit = "images" if job.data.target == "image" else "tokens"
        self.difference: float | None = None
        self.rank_summary = RankSummary()
        self.evaluator = None
        self.eval_samples = min(job.settings.eval_samples, job.data.held_out_count)
        if job.plan.evaluation is not None:
            self.evaluator = Evaluator(trainer, job.data.held_out, self.eval_samples)

    def run(self) -> int:
        """Run all iterations, and return the exit code.

        The run ends early if a rank is asked to stop, or if the check of the first gradients fails.
        """
        with accepting_stop_requests(rendezvous().terminate):
            return self._run()

    def _run(self) -> int:
        iterations, record, trainer = self.trainer.settings.iterations, self.record, self.trainer
        resumed = self.checkpoints.resume(self.job.settings.resume, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        self._print(resumed.messages)
        print_every = max(1, iterations // 10)
        losses: list[float] = []
        held_out: Evaluation | None = None
        trained_s = 0.0
        record.start(resumed.iteration)
        for iteration in range(resumed.iteration, iterations):
            start = time.perf_counter()  # taken_s leaves out the check of the gradients
            loss = trainer.gradients(iteration)
            taken_s = time.perf_counter() - start
            if iteration == 0 and self.job.check_gradients and not self._gradients_are_equal():
                return 1
            start = time.perf_counter()
            # The last figure of each rank is its stop request, 1 or 0.
            result = trainer.update(iteration, loss, (*trainer.pipeline.figures.row(), float(stop_requested())))
            taken_s += time.perf_counter() - start
            trained_s += taken_s
            losses.append(result.loss)
            done, is_last = iteration + 1, iteration + 1 == iterations
            # Every rank has the figures of all ranks, so they stop together.
            stops = not is_last and any(requested for *_, requested in result.figures)
            measured = MeasuredTimes.of([row for *row, _ in result.figures])
            self.rank_summary.add(measured)
            speed = self.tokens / taken_s
            if iteration % print_every == 0 or is_last or result.is_skipped:
                state = f"loss {result.loss:6.3f}   gradient norm {result.norm:7.3f}   {speed:9,.0f} {self.unit}/s"
                record.print_text(f"iteration {done:>5}   {state}{'   not finite: skipped' if result.is_skipped else ''}")
            held_out = None if stops else self._evaluate(done)
            record.write(self._line(done, result, measured, taken_s, held_out))
            record.draw(done, result.loss, f"{self.tokens * len(losses) / trained_s:,.0f} {self.unit}/s")
            self._print(self.checkpoints.save_if_due(done, last=stops or is_last))
            if stops:
                write_times(trainer.pipeline, self.job.settings, record, done)
                record.print_text(f"stopped by SIGTERM after iteration {done} of {iterations}")
                return STOPPED
        trainer.pipeline.check_copies()
        if losses:
            write_times(trainer.pipeline, self.job.settings, record, iterations)
        if self.job.settings.export is not None:
            export_weights(self.job.settings.export, trainer.pipeline, self._exported())
            record.print_text(f"exported {short_path(self.job.settings.export)}")
        if losses:
            self._print_summary(losses[0], losses[-1], held_out, self.tokens * len(losses) / trained_s)
        else:
            record.print_text(f"nothing to train: {resumed.iteration} of {iterations} iterations are done")
        return 0

    def _exported(self) -> dict[str, str]:
        """Return what an exported file says about the model and its text, for generate.py."""
        job, data = self.job, self.job.data
        about = {"model": job.model.model.name}
        if data.encoding is not None:
            about |= {"sequence_length": str(job.settings.seq_len), "encoding": data.encoding.name}
        return about

    def _print(self, messages: Iterable[str]) -> None:
        for message in messages:
            self.record.print_text(message)

    def _line(
        self, done: int, result: Result, measured: MeasuredTimes, taken_s: float, held_out: Evaluation | None
    ) -> dict[str, object]:
        """Return the line of the log for an iteration."""
        line: dict[str, object] = {
            "iteration": done,
            "loss": result.loss,
            "gradient_norm": result.norm,
            "rate": result.rate,
            "tokens_per_second": self.tokens / taken_s,
            "iteration_s": taken_s,
            **log_figures(measured, self.job.plan.predicted),
        }
        if held_out is not None:
            line["held_out_loss"] = held_out.loss
            if held_out.accuracy is not None:
                line["held_out_accuracy"] = held_out.accuracy
        if self.job.oversubscribed:
            line["oversubscribed"] = True
        return line

    def _gradients_are_equal(self) -> bool:
        """Compare the gradients with those of one process, print the difference, and return whether it is small enough."""
        self.difference = reference.largest_difference(self.trainer)
        if self.difference > GRADIENT_TOLERANCE:
            self.record.print_text(
                f"gradients differ from one process: by {self.difference:.1e}, more than {GRADIENT_TOLERANCE:.0e}"
            )
            return False
        self.record.print_text(f"gradients equal one process: largest relative difference {self.difference:.1e}")
        return True

    def _evaluate(self, done: int) -> Evaluation | None:
        """Return the evaluation after `done` iterations; None if none is due, or if there is no program of evaluations."""
        every, last = self.job.settings.eval_every, done == self.trainer.settings.iterations
        if self.evaluator is None or not (last or (every and done % every == 0)):
            return None
        evaluation = self.evaluator.evaluate()
        if every:
            accuracy = "" if evaluation.accuracy is None else f"   accuracy {evaluation.accuracy:.2%}"
            self.record.print_text(f"iteration {done:>5}   held-out loss {evaluation.loss:.3f}{accuracy}")
        return evaluation

    def _print_summary(self, first: float, last: float, held_out: Evaluation | None, speed: float) -> None:
        if not self.record.is_writer:
            return
        data, job = self.job.data, self.job
        held_out_loss, held_out_remark = "-", "not measured: evaluations need the compiler"
        if held_out is not None:
            held_out_loss, held_out_remark = f"{held_out.loss:.3f}", ""
        unit = "nats per" if is_cross_entropy(job.settings.model, job.settings.loss) else "per"
        rows = [
            ("loss at the start", f"{first:.3f}", f"{unit} {data.target}"),
            ("loss at the end", f"{last:.3f}", ""),
            ("held-out loss", held_out_loss, held_out_remark),
        ]
        if held_out is not None and held_out.accuracy is not None:
            rows.append(("held-out accuracy", f"{held_out.accuracy:.2%}", f"of {held_out.targets} {data.target}s"))
        rows += [(name, f"{loss:.3f}", remark) for name, loss, remark in data.baselines(self.eval_samples)]
        rows.append((f"{self.unit} per second", f"{speed:,.0f}", "ranks share processors" if job.oversubscribed else ""))
        if recomputed := job.plan.program.recomputed_stages:
            rows.append(("stages that recompute", stages_text(recomputed), "their forwards ran again"))
        if self.difference is not None:
            rows.append(("gradient difference", f"{self.difference:.1e}", "from one process, relative"))
        self.record.table(rows)
        self.record.print_text(f"\n{self.rank_summary.table()}")
