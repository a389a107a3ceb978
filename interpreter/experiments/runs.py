"""Runs of an experiment: their settings, what is known before they run, and the folder of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import write
from chimerac.chimera_ir.machines import PROCESSES
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.experiments.execute import CONFIG, LOG, OUTPUT
from chimerac.interpreter.experiments.figures import Expected
from chimerac.interpreter.experiments.file import Experiment, label_of
from chimerac.interpreter.experiments.grid import RunValues
from chimerac.interpreter.launch.config import as_yaml, convert
from chimerac.interpreter.launch.options import settings_of
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.settings import RunSettings, as_mapping
from chimerac.interpreter.pipeline.programs import predicted_times
from chimerac.interpreter.training.settings import samples_per_micro_batch

IN_THE_PROGRAM = ("schedule", "parameters", "width")  # settings that the program's digest represents
SHOWN = ("model", "micro_batch", "recompute", "transport", "dtype", "timed", "seed")  # settings that the table always has
DIGITS = 10  # of the digest in the name of a run's folder


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        repetition: from 1.
        folder: where its files are.
        labels: the names and values by which runs are compared.
        own: what the title shows besides the schedule, its parameters, the width and the repetition: the settings that this run
            gives and in which the runs differ, and the labels that the file gives to this run.
        ranks: how many processes it needs.
        expected: what is known before it runs.
    """

    settings: RunSettings
    repetition: int
    folder: Path
    labels: Mapping[str, Any]
    own: Mapping[str, Any]
    ranks: int
    expected: Expected

    @property
    def title(self) -> str:
        """Return the run in a few words."""
        labels, parameters = self.labels, dict(self.settings.parameters)
        others = [f"{name}={value}" for name, value in parameters.items() if name not in ("D", "N")]
        sizes = [f"D={labels['D']}", f"N={labels['N']}", *others, *([f"W={labels['W']}"] if labels["W"] > 1 else [])]
        own = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in self.own.items()]
        repetition = [f"({self.repetition})"] if self.repetition > 1 else []
        # The title has to be one line, because it is a comment in a SLURM script. A label may have several lines.
        return " ".join(" ".join([str(labels["schedule"]), *sizes, *own, *repetition]).split())

    @property
    def config(self) -> Path:
        """Return the path of its config file."""
        return self.folder / CONFIG

    @property
    def log(self) -> Path:
        """Return the path of its log."""
        return self.folder / LOG

    @property
    def output(self) -> Path:
        """Return the path of the file of its output."""
        return self.folder / OUTPUT

    def prepare(self) -> None:
        """Create the folder of this run, with its config file. Raises OSError or ChimeraError E003 if that is not possible."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write(as_yaml(self.settings), str(self.config))


@dataclass(frozen=True, slots=True)
class Impossible:
    """A run whose schedule refuses its parameters.

    Attributes:
        title: its settings and labels, as of `_words`.
        reason: the first requirement of the schedule that does not hold.
    """

    title: str
    reason: str


def plan_runs(experiment: Experiment, folder: Path) -> tuple[list[Run], list[Impossible]]:
    """Return the runs of an experiment in the order in which they run, and those that are not possible.

    Args:
        folder: of the experiment's results, to which the schedules of the file are written.

    All runs are executed once before any is repeated, so that a change of the host's load affects all of them alike.

    Raises ValueError for settings that `settings_of` refuses, and for a label with the name of another value of its run;
    ChimeraError for what else `make_plan` refuses; OSError or ChimeraError E003 if a schedule cannot be written.
    """
    texts = experiment.schedules
    paths = {name: _write_schedule(folder / "schedules" / f"{name}.sched", text) for name, text in texts.items()}
    varied = _varied(experiment.runs)
    plans = list[Planned]()
    impossible = list[Impossible]()
    for values in experiment.runs:
        try:
            schedule = values.settings.get("schedule")
            located = {"schedule": paths[schedule]} if schedule in paths else {}
            plans.append(_planned(RunValues({**values.settings, **located}, values.labels), varied))
        except ChimeraError as error:
            if any(d.code != "E210" for d in error.diagnostics):  # E210: a `require` of the schedule does not hold
                raise
            impossible.append(Impossible(_words(values), error.diagnostics[0].message))
        except ValueError as error:
            raise ValueError(f"{experiment.path}: {error}") from None
    repetitions = range(1, experiment.repetitions + 1)
    return [plan.run(folder, repetition) for repetition in repetitions for plan in plans], impossible


def _varied(runs: Sequence[RunValues]) -> set[str]:
    """Return the settings in which runs differ, besides those that the program's digest represents."""
    names = {name for run in runs for name in run.settings if name not in IN_THE_PROGRAM}
    return {name for name in names if any(run.settings.get(name) != runs[0].settings.get(name) for run in runs)}


def _write_schedule(path: Path, text: str) -> str:
    """Write the text of a schedule to a file, unless the file has it, and return the path.

    Raises OSError or ChimeraError E003 if that is not possible.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write(text, str(path))
    return str(path)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run before its repetitions are numbered.

    Attributes:
        schedule_name: from the header of its program.
        digest: as in `_digest`.
    """

    settings: RunSettings
    labels: Mapping[str, Any]
    own: Mapping[str, Any]
    ranks: int
    expected: Expected
    schedule_name: str
    digest: str

    def run(self, folder: Path, repetition: int) -> Run:
        """Return a repetition of this run."""
        # The name of the folder depends on this run alone, so that it stays the same when the file names other runs.
        sizes = [f"{name}{self.labels[name]}" for name in ("D", "N", "W")]
        run_folder = folder / "-".join([self.schedule_name, *sizes, self.digest[:DIGITS], str(repetition)])
        settings = replace(self.settings, log_file=run_folder / LOG)
        labels = {**self.labels, "repetition": repetition}
        return Run(settings, repetition, run_folder, labels, self.own, self.ranks, self.expected)


def _planned(values: RunValues, varied: Collection[str]) -> Planned:
    """Return a run before its repetitions are numbered.

    Args:
        varied: the settings that tell runs apart, of `_varied`.

    Raises ValueError and ChimeraError as `plan_runs` does.
    """
    settings = settings_of({name: convert(name, value, strict=True) for name, value in values.settings.items()})
    plan = make_plan(settings)
    program, header = plan.program, plan.program.header
    times = plan.predicted or predicted_times(program.with_header(machine=PROCESSES))
    micro_batches = header.micro_batches * header.width * settings.accumulate
    samples = micro_batches * samples_per_micro_batch(program, settings.micro_batch)
    # settings.timed: milliseconds for each unit of cost
    iteration_s = None if settings.timed is None else times.last_task_end * settings.timed / 1000
    expected = Expected(samples, times.bubble_ratio, iteration_s)
    mapping = as_mapping(settings)
    labels: dict[str, Any] = {"schedule": settings.schedule.stem, **header.parameters}
    labels |= {"D": header.ranks, "W": header.width, "N": header.micro_batches}
    labels |= {"ranks": program.world, "stages": header.stages, "shape": f"W={header.width} D={header.ranks}"}
    shown = dict.fromkeys([*SHOWN, *(name for name in values.settings if name not in IN_THE_PROGRAM)])
    labels |= {name: label_of(mapping[name]) for name in shown}
    if taken := [name for name in values.labels if name in labels]:
        raise ValueError(f"labels: {taken[0]}: every run has a value of this name already: give the label another name")
    labels |= values.labels
    own = {**{name: labels[name] for name in values.settings if name in varied}, **values.labels}
    return Planned(settings, labels, own, program.world, expected, header.schedule, _digest(settings, program))


def _digest(settings: RunSettings, program: Program) -> str:
    """Return the digest of a run: of its program with its partition, and of the other settings that differ from their defaults.

    So a new setting of a later version does not make old results unusable. The costs of the program count if its stages are
    timed: they say how long tasks take.
    """
    defaults, given = as_mapping(RunSettings()), as_mapping(settings)
    changed = {k: v for k, v in given.items() if v != defaults[k] and k not in IN_THE_PROGRAM}
    costs = None if settings.timed is None else program.costs.given()
    layers = None if program.partition is None else program.partition.stages
    return hashlib.sha256(json.dumps([program.digest, costs, layers, changed], sort_keys=True).encode()).hexdigest()


def _words(values: RunValues) -> str:
    """Return the settings and the labels of a run as one text, such as `gpipe D=4 micro_batch=2`."""

    def words(mapping: Mapping[str, Any]) -> Iterator[str]:
        for name, value in mapping.items():
            if isinstance(value, Mapping):
                yield from words(value)
            else:
                yield f"{value}" if name == "schedule" else f"{name}={value}"

    return " ".join(words({**values.settings, **values.labels}))


def check_comparison(experiment: Experiment, runs: Iterable[Run]) -> None:
    """Raise ValueError if the report could not tell two runs apart, or if it compares by a name that no run has."""
    compare, runs = experiment.compare, list(runs)
    axes = (compare.x, *compare.groups, *compare.panels)
    known = sorted({name for run in runs for name in run.labels})
    for name in (*axes, *compare.baseline):
        if runs and not any(name in run.labels for run in runs):
            raise ValueError(f"{experiment.path}: compare: no run has '{name}'; known: {', '.join(known)}")
    seen = dict[tuple[Any, ...], Run]()
    for run in runs:
        key = tuple(str(run.labels.get(name)) for name in (*axes, "seed", "repetition"))
        if (earlier := seen.setdefault(key, run)) is run:
            continue
        different = [n for n in known if run.labels.get(n) != earlier.labels.get(n)]
        if not different:
            if run.folder == earlier.folder:
                raise ValueError(f"{experiment.path}: two runs are the same, {run.title}: name it once")
            raise ValueError(f"{experiment.path}: two runs have the same names, {run.title}: give their schedules other names")
        raise ValueError(
            f"{experiment.path}: compare: two runs have the same {', '.join(axes)}, and differ in {', '.join(different)}: "
            "add one of these names to groups or panels"
        )
