"""Reports: what an experiment compared, where and how it ran, plots and tables; as Markdown and as one HTML file.

A report is a list of blocks (blocks.py), each of which writes itself in both forms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.files import write
from chimerac.interpreter.experiments import plots
from chimerac.interpreter.experiments.blocks import Block, Heading, Items, Picture, Table, Text, page
from chimerac.interpreter.experiments.compare import Compared, Point
from chimerac.interpreter.experiments.figures import FIGURES
from chimerac.interpreter.experiments.file import Experiment
from chimerac.interpreter.experiments.runs import Impossible, Run
from chimerac.interpreter.experiments.table import Results
from chimerac.interpreter.launch.settings import RunSettings, as_mapping

NO_PLOTS = "The report has no plots: they need matplotlib, pip install 'chimerac[report]'."
NOT_LISTED = ("log_file", "schedule", "parameters", "width")  # settings that follow from a run's folder, or are labels


def write_report(
    experiment: Experiment, runs: Sequence[Run], impossible: Sequence[Impossible], results: Results, folder: Path
) -> list[Path]:
    """Write report.md with its plots, and report.html. Return the paths of these two files. Raises ChimeraError E003."""
    blocks = list(_blocks(experiment, runs, impossible, results))
    for block in blocks:
        if isinstance(block, Picture):
            write(block.plot.svg, str(folder / block.name))
    paths = [folder / "report.md", folder / "report.html"]
    write("\n".join(block.markdown() for block in blocks), str(paths[0]))
    write(page(experiment.title, blocks), str(paths[1]))
    return paths


def _blocks(experiment: Experiment, runs: Sequence[Run], impossible: Sequence[Impossible], results: Results) -> Iterable[Block]:
    compared = Compared(experiment.compare, results.rows)
    yield Heading(experiment.title, 1)
    if experiment.about:
        yield Text(experiment.about)
    yield Table(list(_facts(experiment, runs, results)), is_facts=True)
    yield from map(Text, _remarks(experiment, compared, runs, results))
    if results.rows:
        if not plots.is_available():
            yield Text(NO_PLOTS)
        for name in experiment.compare.figures:
            yield from _figure(compared, name)
    if results.failed:
        yield Heading("Failed")
        yield Items([f"{run.title}: {why}; `{run.output}`" for run, why in results.failed])
    if results.missing:
        yield Heading("Not run yet")
        yield Items([run.title for run in results.missing])
    if impossible:
        yield Heading("Not possible")
        yield Text("The schedules refuse these sizes.")
        yield Items([f"{run.title}: {run.reason}" for run in impossible])


def _figure(compared: Compared, name: str) -> Iterable[Block]:
    figure = FIGURES[name]
    yield Heading(figure.title[0].upper() + figure.title[1:])
    if not any(row.get(name) is not None for row in compared.rows):
        yield Text("No run has this figure.")
        return
    if plots.is_available():
        yield Picture(f"{name}.svg", plots.plot(compared, name))
    yield _table(compared, name)


def _table(compared: Compared, name: str) -> Table:
    """Return the table of a figure.

    Its rows are in the order of the plot: one line after another, or all bars of one x, then those of the next.
    """
    figure, compare = FIGURES[name], compared.compare
    places = [(group, x) for group in compared.groups for x in compared.values]
    if not compared.has_lines:
        places = [(group, x) for x in compared.values for group in compared.groups]
    placed = [
        (panel, group, x, point)
        for panel in compared.panels
        for group, x in places
        if (point := compared.point(name, panel, group, x)) is not None
    ]
    points = [p for *_, p in placed]
    # Columns: title and cells. A column without cells is left out, because it would tell nothing.
    groups = (", ".join(compare.groups), [group for _, group, *_ in placed] if len(compared.groups) > 1 else [])
    values = (compare.x, [str(x) for _, _, x, _ in placed])
    labels = [
        (", ".join(compare.panels), [panel for panel, *_ in placed] if len(compared.panels) > 1 else []),
        *((groups, values) if compared.has_lines else (values, groups)),
    ]
    unit = figure.title.rpartition("(")[2].rstrip(")")  # in parentheses at the end; else the whole title
    baseline = f"ratio to {_values_text(compare.baseline)}"
    figures = [
        (unit, [figure.text(p.value) for p in points]),
        ("spread", [_spread(p, name) for p in points] if any(p.low != p.high for p in points) else []),
        ("predicted", [figure.text(p.predicted) for p in points] if any(p.predicted is not None for p in points) else []),
        (baseline, [_ratio(p) for p in points] if any(p.ratio is not None for p in points) else []),
    ]
    columns = [(title, *cells) for title, cells in (*labels, *figures) if cells]
    return Table(list(zip(*columns, strict=True)), labels=sum(bool(cells) for _, cells in labels))


def _spread(point: Point, name: str) -> str:
    return f"{FIGURES[name].text(point.low)} to {FIGURES[name].text(point.high)}"


def _ratio(point: Point) -> str:
    return "-" if point.ratio is None else f"{point.ratio:.3f}"


def _values_text(values: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if name in ("schedule", "shape") else f"{name}={value}" for name, value in values.items())


def _facts(experiment: Experiment, runs: Sequence[Run], results: Results) -> Iterable[tuple[str, str]]:
    """Yield what the report says about all runs: name and text."""
    yield "", ""  # the head
    dates = sorted(str(record["started"])[:10] for record in results.records)
    if dates:
        yield "date", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    yield from _counted("host", (_host(record["host"]) for record in results.records))
    yield from _counted("versions", (_versions(record["versions"]) for record in results.records))
    yield "runs", f"{len(results.rows)} of {len(runs)} are done, {len(results.failed)} failed"
    yield "repetitions", str(experiment.repetitions)
    yield "iterations", _iterations(experiment, results)
    common, varied = _settings(runs)
    yield "settings of all runs", ", ".join(_setting(*item) for item in common.items()) or "the defaults"
    yield "settings that vary", ", ".join(name.replace("_", "-") for name in varied) or "none"
    yield "made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC from {experiment.path.name}"


def _shared(compared: Compared) -> Iterable[str]:
    """Yield the places of the comparison (x, groups, panels) that have the same runs, as one text for each set of places."""
    places: dict[str, dict[str, None]] = {}
    for row in compared.rows:
        names = (compared.compare.x, *compared.compare.groups, *compared.compare.panels)
        place = ", ".join(str(row[name]) if name == "schedule" else f"{name}={row.get(name)}" for name in names)
        places.setdefault(row["folder"], {})[place] = None
    yield from dict.fromkeys(" and ".join(found) for found in places.values() if len(found) > 1)


def _counted(name: str, texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield one fact if all texts are equal; else one for each different text, with the number of runs that have it."""
    counts = Counter(texts)
    for text, count in counts.items():
        yield name, text if len(counts) == 1 else f"{text} ({count_text(count, 'run')})"


def _host(host: Mapping[str, Any]) -> str:
    parts = [
        host["name"],
        host["processor"],
        f"{host['processors']} processors",
        f"{host['memory_gb']} GB",
        host["system"],
    ]
    gpus = Counter(host.get("gpus", ()))
    return ", ".join([*map(str, parts), *(f"{count} x {gpu}" for gpu, count in gpus.items())])


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _iterations(experiment: Experiment, results: Results) -> str:
    counts = sorted({row["iterations"] for row in results.rows})
    counted = " or ".join(map(str, counts)) or "none"
    which = {0: "all", 1: "all but the first"}.get(experiment.discard, f"all but the first {experiment.discard}")
    return f"{counted} of each run are counted: {which}"


def _setting(name: str, value: Any) -> str:
    """Return a setting as in a config file."""
    return f"{name.replace('_', '-')}: {str(value).lower() if isinstance(value, bool) else value}"


def _settings(runs: Sequence[Run]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that all runs share and that differ from their defaults, and the settings and labels that vary.

    Settings of NOT_LISTED do not count, but the schedule, its parameters and the width are labels.
    """
    defaults, given = as_mapping(RunSettings()), [as_mapping(run.settings) for run in runs]
    common, varied = dict[str, Any](), list[str]()
    for name in (name for name in defaults if name not in NOT_LISTED):
        values = [settings[name] for settings in given]
        if any(value != values[0] for value in values):
            varied.append(name)
        elif values and values[0] != defaults[name]:
            common[name] = values[0]
    labels = dict.fromkeys(
        name for run in runs for name in ("schedule", "D", "N", "W", *dict(run.settings.parameters), *run.own)
    )
    varied += [name for name in labels if len({str(run.labels.get(name)) for run in runs}) > 1]
    return common, list(dict.fromkeys(varied))


def _remarks(experiment: Experiment, compared: Compared, runs: Sequence[Run], results: Results) -> Iterable[str]:
    """Yield paragraphs on how to read the figures."""
    timed = [run for run in runs if run.settings.timed is not None]
    if timed:
        which = "The stages are" if len(timed) == len(runs) else f"{len(timed)} of {len(runs)} runs have stages that are"
        yield (
            f"{which} timed: they sleep for their costs instead of computing, so ranks can share processors. Messages, "
            "orders and waits are real. The times are measured. They show the schedule, not a model or a network."
        )
    if any(row["oversubscribed"] for row in results.rows):
        yield "Some runs had more ranks than processors. Their times and bubbles are those of ranks that share processors."
    spread = (
        "The spread is from the least to the greatest of these runs. If there is one run, it is from the first to the third "
        "quartile of its iterations."
        if compared.has_repetitions
        else "Its spread is from the first to the third quartile of the iterations."
    )
    yield (
        "An iteration time is the median over the counted iterations of a run. With several repetitions or seeds it is the "
        f"median of the medians of these runs. {spread} Bubbles, busy shares and the other times are means over iterations "
        "and ranks."
    )
    if any(row.get(FIGURES[name].predicted) is not None for row in results.rows for name in experiment.compare.figures):
        free = ", and with free transfers for timed stages" if timed else ""
        yield f"Predictions are those of the simulator, with the costs in the schedules{free}."
    for names in _shared(compared):
        yield f"The same program with the same settings, and so the same runs: {names}."
    if compared.compare.baseline:
        where = "" if compared.compare.x in compared.compare.baseline else f" at the same {compared.compare.x}"
        yield f"Ratios are to {_values_text(compared.compare.baseline)}{where}."
