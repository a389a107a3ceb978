"""The results of an experiment so far, and their table: as CSV, and as Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.files import write
from chimerac.interpreter.experiments.compare import Row
from chimerac.interpreter.experiments.execute import result_of
from chimerac.interpreter.experiments.figures import figures_of
from chimerac.interpreter.experiments.runs import Run


@dataclass(frozen=True, slots=True)
class Results:
    """The results of an experiment so far.

    Attributes:
        rows: the rows of the table, one for each run that is done and whose log can be read.
        records: the contents of result.json of the same runs, in the same order.
        failed: runs that failed or whose log cannot be read, and why.
        missing: runs that have not ended.
    """

    rows: list[Row]
    records: list[Mapping[str, Any]]
    failed: list[tuple[Run, str]]
    missing: list[Run]


def results(runs: Sequence[Run], discard: int) -> Results:
    """Return the results of the runs.

    Args:
        discard: iterations at the start of each run that are not counted.

    Raises ValueError or OSError as `result_of` (execute.py).
    """
    collected = Results([], [], [], [])
    for run in runs:
        record = result_of(run.folder)
        if record is None:
            collected.missing.append(run)
        elif record["state"] != "done":
            collected.failed.append((run, str(record["reason"])))
        else:
            try:
                figures = figures_of(run.log, discard, run.expected)
            except (OSError, ValueError, KeyError) as error:
                collected.failed.append((run, f"its log cannot be read: {error}"))
                continue
            if gpus := record.get("gpu_utilization"):
                figures |= {"gpu_utilization": sum(gpus) / len(gpus), "utilization_of_gpus": gpus}
            about = {"run_s": record["seconds"], "started": record["started"], "host": record["host"]["name"]}
            collected.rows.append({**run.labels, **figures, **about, "folder": run.folder.name})
            collected.records.append(record)
    return collected


def write_table(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write table.csv, and table.parquet where pyarrow is installed; return their paths.

    In CSV, a list (a value for each rank or GPU) and a truth value are written as JSON. Raises ChimeraError E003 or OSError if
    a file cannot be written.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    paths = [folder / "table.csv"]
    write(out.getvalue(), str(paths[0]))
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        return paths
    data = {name: _column([row.get(name) for row in rows]) for name in columns}
    paths.append(folder / "table.parquet")
    parquet.write_table(arrow.table(data), paths[-1])
    return paths


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


def _column(values: list[Any]) -> list[Any]:
    """Return the values of a column of Parquet, which has one type.

    Values of several types become texts, unless all are numbers. A label may be a number in one run and a text in another.
    """
    kinds = {type(value) for value in values if value is not None}
    one_type = len(kinds) <= 1 or kinds <= {int, float}
    return values if one_type else [None if value is None else str(value) for value in values]
