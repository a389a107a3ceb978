"""Experiment files: the runs of a comparison as YAML, and how the report compares them. docs/experiments.md has the keys.

Every mistake that is found here is a ValueError. Its message names the file, what is wrong, and, where they are known, the line
and the key.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from chimerac.chimera_ir.diagnostics import ChimeraError, did_you_mean
from chimerac.chimera_ir.files import read
from chimerac.interpreter.experiments.figures import FIGURES
from chimerac.interpreter.experiments.grid import RunValues, as_axis, combinations
from chimerac.interpreter.launch.config import convert, expected, field_types, mapping_of, short
from chimerac.interpreter.pipeline.programs import schedule_text

Place = tuple[str | int, ...]  # the keys, and the indices of list items, that lead to a value
Label = str | int | float | bool  # the value of a label

SHIPPED = resources.files("chimerac.experiments")
NOT_ALLOWED = {  # settings that an experiment file cannot give, and why
    "log_file": "the runner writes the log of each run to the run's own folder",
    "tensorboard": "the runs would share the folder; the table has the same figures",
    "save_dir": "the runs would share the folder of checkpoints",
    "export": "the runs would write to the same file",
    "trace": "the runs would write to the same file",
    "timeline": "the runs would write to the same file",
}


def label_of(value: Any) -> Any:
    """Return the value of a setting in the form in which runs are compared: a list as one text, such as `0.9 0.95`."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Comparison(BaseModel):
    """How the report compares the runs.

    Attributes:
        x: what the x axis shows.
        groups: in what the lines or bars of a plot differ.
        panels: in what the plots of a figure differ.
        baseline: values of names; ratios are to the runs that have them.
        figures: what is plotted (figures.py).

    All of these names except `figures` are those of settings, of parameters of the schedule, of labels, or D, N, W, ranks,
    stages and shape.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    x: str
    groups: Names = ()
    panels: Names = ()
    baseline: Mapping[str, Annotated[Label, BeforeValidator(label_of)]] = Field(default_factory=dict)
    figures: Annotated[Names, Field(min_length=1)] = ("samples_per_s", "bubble", "peak_memory_bytes")


class Variant(BaseModel):
    """A schedule made from another one by replacing text.

    Attributes:
        of: the name or path of the other.
        replace: old text -> new text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    of: str
    replace: Annotated[Mapping[str, str], Field(min_length=1)]


class Content(BaseModel):
    """The keys of an experiment file. The values of settings are checked later (`_check_value`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    about: str = ""
    schedules: Mapping[str, Variant] = Field(default_factory=dict)
    settings: Mapping[str, Any] = Field(default_factory=dict)
    grid: Mapping[str, Any] = Field(default_factory=dict)
    cases: Sequence[Mapping[str, Any]] = ()
    include: Sequence[Mapping[str, Any]] = ()
    exclude: Sequence[Mapping[str, Any]] = ()
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 1
    discard: Annotated[int, Field(ge=0)] = 1
    minutes: Annotated[float, Field(gt=0, lt=math.inf)] = 60.0
    compare: Comparison


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    Attributes:
        runs: what each of its runs sets, without repetitions.
        path: of its file.
        about: a text for the report.
        schedules: texts of the schedules that the file defines, by name.
        repetitions: how often each run is made.
        discard: iterations at the start of a run that are not counted.
        minutes: the longest time of one run.
    """

    name: str
    path: Path
    title: str
    about: str
    schedules: Mapping[str, str]
    runs: tuple[RunValues, ...]
    repetitions: int
    discard: int
    minutes: float
    compare: Comparison


def shipped() -> list[str]:
    """Return the names of the experiments that come with the project."""
    return sorted(f.name.removesuffix(".yaml") for f in SHIPPED.iterdir() if f.name.endswith(".yaml"))


def find(name_or_path: str) -> Path:
    """Return the path of an experiment file, from its path or the name of a shipped one. Raises ValueError if there is none."""
    path = Path(name_or_path)
    if os.path.isfile(path):
        return path
    if name_or_path in shipped():
        return Path(str(SHIPPED)).resolve() / f"{name_or_path}.yaml"
    near = did_you_mean(path.stem, shipped())
    raise ValueError(f"there is no file {short(name_or_path)}, and no experiment of that name; {near}")


def read_experiment(path: Path) -> Experiment:
    """Return the experiment of a file. Raises ValueError if it cannot be read or is wrong."""
    try:
        text = read(path)
    except ChimeraError as error:
        raise ValueError(error.diagnostics[0].message) from None
    return Reader(path, text).experiment()


class Reader:
    """Reads one file. Its methods raise ValueError, with the place in the file where it is known."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text

    def experiment(self) -> Experiment:
        """Return the experiment of the file. Raises ValueError."""
        content = self._content()
        self._check_figures(content.compare)
        self._check_parts(content)
        runs, unused = combinations(content.settings, content.grid, content.cases, content.include, content.exclude)
        if unused is not None:
            raise self._wrong(("exclude", unused), f"no run has these values: {short(dict(content.exclude[unused]))}")
        if not runs:
            raise self._wrong((), "the file names no run: all of them are excluded")
        located = tuple(RunValues(self._with_located_schedule(run.settings), run.labels) for run in runs)
        about = " ".join(content.about.split())
        schedules = {name: self._variant(name, variant) for name, variant in content.schedules.items()}
        parts = (content.repetitions, content.discard, content.minutes, content.compare)
        return Experiment(self.path.stem, self.path, content.title, about, schedules, located, *parts)

    def _content(self) -> Content:
        content = mapping_of(self.path, self.text)
        try:
            # Strict validation accepts no text as a number. It accepts a list as a tuple only in JSON.
            return Content.model_validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            # Unknown keys first: an unknown key is often a misspelt one, and then the key that was meant is missing too.
            found = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
            raise self._refused(found[0]) from None
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"{self.path}: a value of this kind is not allowed: {short(content)}") from None

    def _refused(self, error: Any) -> ValueError:
        """Return the ValueError for an error of pydantic, one of `ValidationError.errors()`."""
        place = tuple(error["loc"])
        name = str(place[-1]) if place else ""
        if error["type"] == "extra_forbidden":
            nested: dict[object, type[BaseModel]] = {"compare": Comparison, "schedules": Variant}
            model = nested.get(place[0], Content) if len(place) > 1 else Content
            return self._wrong(place, f"unknown key; {did_you_mean(name, model.model_fields)}")
        if error["type"] == "missing":
            return self._wrong(place[:-1], f"the key '{name}' is missing")
        by_type = {"dict": "lines of the form 'NAME: VALUE'", "mapping": "lines of the form 'NAME: VALUE'", "list": "a list"}
        what = next((text for prefix, text in by_type.items() if error["type"].startswith(prefix)), expected(error))
        if error["type"].startswith(("tuple", "too_short")):
            is_mapping = isinstance(error["input"], Mapping)
            what = "at least one line of the form 'NAME: VALUE'" if is_mapping else "a name, or a list of names"
        return self._wrong(place, f"expected {what}, found {short(error['input'])}")

    def _variant(self, name: str, variant: Variant) -> str:
        """Return the text of a schedule that the file defines."""
        place = ("schedules", name)
        try:
            text = schedule_text(self._located(variant.of))
        except ChimeraError as error:
            first = error.diagnostics[0]  # its help may be empty
            raise self._wrong((*place, "of"), f"{first.message}; {first.help}".rstrip("; ")) from None
        if not re.fullmatch(r"[\w-]+", name):
            raise self._wrong(place, "the name of a schedule has only letters, digits, - and _")
        for old, new in variant.replace.items():
            if old not in text:
                raise self._wrong((*place, "replace", old), f"{variant.of} does not have this text")
            text = text.replace(old, new)
        return text

    def _check_figures(self, compare: Comparison) -> None:
        for number, name in enumerate(compare.figures):
            if name not in FIGURES:
                raise self._wrong(("compare", "figures", number), f"unknown figure '{name}'; {did_you_mean(name, FIGURES)}")

    def _check_parts(self, content: Content) -> None:
        """Check every setting of the file. The schedule of some run may still refuse its parameters."""
        self._check_values(("settings",), content.settings)
        for key, value in content.grid.items():
            if key == "labels":
                raise self._wrong(("grid", key), "labels belong to settings, cases or include: they change nothing of a run")
            if key == "parameters":
                if not isinstance(value, Mapping):
                    raise self._wrong(("grid", key), f"expected lines of the form 'NAME: VALUES', found {short(value)}")
                for name, values in value.items():
                    for k, one in enumerate(self._axis(("grid", key, name), values)):
                        self._check_value(("grid", key, name, k), "parameters", {name: one})
                continue
            for k, one in enumerate(self._axis(("grid", key), value)):
                self._check_value(("grid", key, k), key, one)
        for section in ("cases", "include", "exclude"):
            for number, values in enumerate(getattr(content, section)):
                self._check_values((section, number), values)

    def _axis(self, place: Place, value: Any) -> Sequence[Any]:
        if value == []:
            raise self._wrong(place, "expected at least one value, found an empty list")
        return as_axis(value)

    def _check_values(self, place: Place, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if key == "labels":
                if not isinstance(value, Mapping) or not all(isinstance(one, Label) for one in value.values()):
                    raise self._wrong((*place, key), f"expected lines of the form 'NAME: VALUE', found {short(value)}")
            else:
                self._check_value((*place, key), key, value)

    def _check_value(self, place: Place, key: str, value: Any) -> None:
        name = key.replace("-", "_")
        if name not in field_types():
            near = did_you_mean(name, [*field_types(), "labels"])
            help = (
                near if near.startswith("did you mean") else f"a parameter of the schedule belongs below parameters: {key}: ..."
            )
            raise self._wrong(place, f"unknown setting '{key}'; {help}")
        if name in NOT_ALLOWED:
            raise self._wrong(place, f"this setting cannot be given: {NOT_ALLOWED[name]}")
        try:
            convert(name, value, strict=True)
        except ValueError as error:
            raise self._wrong(place, str(error)) from None

    def _with_located_schedule(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "schedule": self._located(values["schedule"])} if "schedule" in values else dict(values)

    def _located(self, schedule: str) -> str:
        """Return the path of a schedule that is given relative to the folder of this file; another path or a name as it is."""
        path = self.path.parent / schedule
        return str(path) if os.path.isfile(path) else schedule

    def _wrong(self, place: Place, message: str) -> ValueError:
        """Return the error for a place of the file."""
        line = self._line(place)
        keys = "".join(f"{part}: " if isinstance(part, str) else f"entry {part + 1}: " for part in place)
        return ValueError(f"{self.path}{f', line {line}' if line else ''}: {keys}{message}")

    def _line(self, place: Place) -> int:
        """Return the line of a place, from 1, or of the last part of it that the file has; 0 if there is none."""
        try:
            node, line = YAML(typ="rt", pure=True).load(self.text), 0
            for part in place:
                if not hasattr(node, "lc") or (part not in node if isinstance(part, str) else not isinstance(node, list)):
                    break
                line = (node.lc.key(part) if isinstance(part, str) else node.lc.item(part))[0] + 1
                node = node[part]
            return line
        except (YAMLError, LookupError, TypeError, ValueError):
            return 0
