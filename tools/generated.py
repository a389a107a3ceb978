"""The generated parts of README and docs: texts, tables and drawings, made from the code and from recorded searches.

tools/figures.py calls a function of GENERATED with the text that follows the name in the marker. Most functions do not use it.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.compiler.command.main import main
from chimerac.compiler.command.usage import EXAMPLES
from chimerac.compiler.explain.entries import Entry, hundreds
from chimerac.compiler.explain.page import correction, shortened, transcript
from chimerac.compiler.library import entries
from chimerac.compiler.syntax.grammar import keywords
from chimerac.interpreter.experiments.figures import FIGURES
from chimerac.interpreter.experiments.file import find, read_experiment, shipped
from chimerac.interpreter.launch.options import option_names
from chimerac.interpreter.launch.settings import RunSettings
from tools import ROOT
from tools.bench_search import FOUND_HERE
from tools.claims import table
from tools.console import in_checkout
from tools.full_size import full_size
from tools.gallery import gallery, slots
from tools.imports import diagram

PARTS = ("chimera_ir", "schedules", "compiler", "models", "interpreter", "experiments")


def modules(_: str) -> str:
    """Return a table of chimerac/__main__.py and the modules of PARTS: the path, and the first sentence of the docstring.

    Modules without a docstring are left out.
    """
    rows = ["| file | what it is for |", "|---|---|"]
    files = [ROOT / "chimerac/__main__.py"]
    for folder in PARTS:
        files += sorted((ROOT / folder).rglob("*.py"), key=lambda p: (p.parent, p.name))  # a folder's files first
    for path in files:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if doc:
            rows.append(f"| `{path.relative_to(ROOT)}` | {_first_sentence(doc)} |")
    return "\n".join(rows) + "\n"


def _first_sentence(doc: str) -> str:
    """Return the first sentence, without its full stop.

    It ends where a stop comes after a letter or a digit, and a space and a capital letter follow.
    """
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=\w[.?])\s(?=[A-Z])", paragraph)[0].rstrip(".").replace("|", "\\|")


def examples(_: str) -> str:
    """Return the examples and products that `chimerac --help` lists."""
    return f"```text\n{EXAMPLES}\n```\n"


def options(_: str) -> str:
    """Return the options of run.py, one table for each group."""
    groups: dict[str, list[str]] = {}
    for field in fields(RunSettings):
        metavar, text = field.metadata["metavar"], field.metadata["help"]
        has_value = metavar is not None and field.name != "schedule"  # `schedule` is a positional argument
        value_count = len(field.default) if field.name == "betas" else 1
        words_of_option = [option_names()[field.name], *([metavar] * value_count if has_value else [])]
        what, _, default = text.partition(" (default: ")
        default = default.removesuffix(")") or _default(field.default)
        row = (f"`{' '.join(words_of_option)}`", what, default)
        line = "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        groups.setdefault(field.metadata["group"], []).append(line)
    tables = ("\n".join([f"| {title} | | default |", "|---|---|---|", *lines]) for title, lines in groups.items())
    return "\n" + "\n\n".join(tables) + "\n\n"


def _default(value: object) -> str:
    match value:
        case None | ():
            return ""
        case bool():
            return "yes" if value else "no"
        case tuple():
            return " ".join(map(str, value))
        case _:
            return str(value)


def library(columns: str) -> str:
    """Return the table of the library's schedules.

    Args:
        columns: `brief` leaves out the parameters and the sources.
    """
    rows = [(e.name, e.parameters, e.title, e.source) for e in entries()]
    head = ("name", "parameters", "what it is", "source")
    shown = (0, 2) if columns == "brief" else (0, 1, 2, 3)  # the numbers of the columns
    lines = [head, ("---",) * 4, *rows]
    return "".join("| " + " | ".join(line[k] for k in shown) + " |\n" for line in lines)


def words(_: str) -> str:
    """Return the reserved words of the language."""
    return "\n" + textwrap.fill(" ".join(f"`{w}`" for w in sorted(keywords())), 120, break_on_hyphens=False) + "\n\n"


def limit_table(_: str) -> str:
    """Return the table of limits: the constants of chimera_ir/limits.py, each with the comment in its line."""
    text = (ROOT / "chimera_ir/limits.py").read_text(encoding="utf-8")
    rows = ["\n| what | at most |", "|---|---|"]
    for line in text.splitlines():
        if heading := re.match(r"# of (.*)", line):
            rows.append(f"| *of {heading[1]}* | |")
        elif constant := re.match(r"([A-Z]+) = .*  # (.*)", line):
            value = getattr(limits, constant[1])
            is_power_of_two = value > 1024 and not value & (value - 1)  # one up to 1024 is written as it is
            rows.append(f"| {constant[2]} | {f'2^{value.bit_length() - 1}' if is_power_of_two else f'{value:,}'} |")
    return "\n".join([*rows, "", ""])


def codes(_: str) -> str:
    """Return the table of all error codes, each with a link to its section.

    The anchor of a section is what a forge makes of its heading: lower case, no punctuation, hyphens for spaces.
    """
    rows = [
        f"| [{e.code}](#{re.sub(r'[^a-z0-9_ -]', '', _heading(e).lower()).replace(' ', '-')}) | {e.title} |"
        for h in hundreds()
        for e in h.entries
    ]
    return "\n".join(["| code | what is wrong |", "|---|---|", *rows, ""])


def errors(_: str) -> str:
    """Return what `chimerac explain` prints about every code, as Markdown."""
    return "\n" + "\n".join(f"## {h.title}\n\n" + "\n".join(map(_explained, h.entries)) for h in hundreds()) + "\n"


def _heading(e: Entry) -> str:
    return f"{e.code}: {e.title}"


def _explained(e: Entry) -> str:
    example = f"<!-- file: {e.file} -->\n```text\n{shortened(e.wrong)}```\n\n" if e.file else ""
    why, corrected = (textwrap.fill(text, 120, break_on_hyphens=False) for text in (e.why, f"Corrected: {e.corrected}."))
    output = f"```text\n{in_checkout(transcript(e, main))}```"
    return f"### {_heading(e)}\n\n{why}\n\n{example}{output}\n\n{corrected}\n\n```diff\n{correction(e)}```\n"


def experiments(_: str) -> str:
    """Return the table of the experiments that come with the project."""
    rows = ["\n| name | what it compares | runs | stages |", "|---|---|---|---|"]
    for name in shipped():
        experiment = read_experiment(find(name))
        is_timed = any("timed" in run.settings for run in experiment.runs)
        count = len(experiment.runs) * experiment.repetitions
        rows.append(f"| {name} | {experiment.title} | {count} | {'timed' if is_timed else 'real'} |")
    return "\n".join([*rows, "", ""])


def run_figures(_: str) -> str:
    """Return the table of the figures of a run that a report can show."""
    rows = (f"| `{name}` | {figure.title} | {'yes' if figure.predicted else ''} |" for name, figure in FIGURES.items())
    return "\n".join(["\n| figure | in a report | predicted too |", "|---|---|---|", *rows, "", ""])


def searched(group: str) -> str:
    """Return the table of the settings that tools/bench_search.py has searched, and a summary.

    Args:
        group: one of its GROUPS.
    """
    rows = json.loads((ROOT / f"docs/searched/{group}.json").read_text(encoding="utf-8"))
    is_published = group == "published"  # its settings have equal stages, and were not drawn with a seed
    bubble_columns = ["bubble", "least bubble"] if is_published else []
    head = ["setting", "limit", "shipped", "found", "gain", "bound", *bubble_columns, "proved", "s"]
    lines = ["\n" + _cells(head), _cells(["---", *["---:"] * (len(head) - 1)])]
    gains = []
    for row in rows:
        found = row["found"]
        links = f", hop {row['links']}" if isinstance(row["links"], str) else ""
        seed = "" if is_published else f"{row['seed']}: "
        gain = 1 - found["makespan"] / found["shipped_makespan"] if found["shipped_makespan"] else None
        if gain is not None:
            gains.append(gain)
        cells = [f"{seed}{_setting(row)}{links}", str(row["limit"])]
        cells.append("none fits" if gain is None else f"{found['shipped']} {found['shipped_makespan']:g}")
        cells += [f"{found['makespan']:g}", "" if gain is None else f"{gain:.1%}", f"{found['bound']:g}"]
        cells += [f"{found['bubble']:g}", f"{found['least_bubble']:g}"] if is_published else []
        lines.append(_cells([*cells, "yes" if found["proved"] else "no", f"{found['seconds']:g}"]))
    proved = sum(row["found"]["proved"] for row in rows)
    median = f"{statistics.median(gains):.1%}"
    summary = f"Median gain {median}, least gain {min(gains):.1%}; {proved} of {len(rows)} proved optimal."
    compared = [row["found"] for row in rows if row["found"]["shipped_makespan"]]
    median_at_bounds = statistics.median(1 - x["bound"] / x["shipped_makespan"] for x in compared)
    summary += f" With makespans equal to the bounds, the median gain would be {median_at_bounds:.1%}."
    makespans = [(row["found"]["makespan"], row["found"]["not_searched_makespan"]) for row in rows]
    median_gain = statistics.median(1 - makespan / not_searched for makespan, not_searched in makespans if not_searched)
    summary += f" Beside the library without {' and '.join(FOUND_HERE)}: median gain {median_gain:.1%}."
    return "\n".join([*lines, "", textwrap.fill(summary, 120, break_on_hyphens=False), "", ""])


def placed(_: str) -> str:
    """Return the table of the uneven settings with other placements, by tools/bench_search.py --placements, and a summary."""
    rows = json.loads((ROOT / "docs/searched/uneven.json").read_text(encoding="utf-8"))
    head = ["setting", "shipped", "given placement", "other placement", "gain", "bound", "any placement", "proved", "s"]
    lines, gains = ["\n" + _cells(head), _cells(["---", *["---:"] * (len(head) - 1)])], []
    for row in rows:
        found, other = row["found"], row["found"]["placed"]
        gains.append(1 - other["makespan"] / found["shipped_makespan"])
        cells = [f"{row['seed']}: {_setting(row)}"]
        cells += [f"{found['shipped']} {found['shipped_makespan']:g}", f"{found['makespan']:g}", f"{other['makespan']:g}"]
        cells += [f"{gains[-1]:.1%}", f"{other['bound']:g}", f"{other['bound_of_every_placement']:g}"]
        lines.append(_cells([*cells, "yes" if other["proved"] else "no", f"{other['seconds']:g}"]))
    proved = sum(row["found"]["placed"]["proved"] for row in rows)
    summary = f"Median gain {statistics.median(gains):.1%}, least gain {min(gains):.1%}; for {proved} of {len(rows)} "
    summary += "the order is proved optimal for its placement."
    return "\n".join([*lines, "", textwrap.fill(summary, 120, break_on_hyphens=False), "", ""])


def _setting(row: Mapping[str, Any]) -> str:
    """Return the schedule, the sizes and the kind of backward of a setting."""
    sizes = " ".join(f"{k}={v}" for k, v in row["parameters"].items())
    return f"{row['schedule']} {sizes}, {'split' if row['split'] else 'full'}"


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


GENERATED: dict[str, Callable[[str], str]] = {  # by the name in the marker
    "modules": modules,
    "options": options,
    "imports": diagram,
    "examples": examples,
    "experiments": experiments,
    "full_size": full_size,
    "gallery": gallery,
    "slots": slots,
    "run_figures": run_figures,
    "library": library,
    "searched": searched,
    "placed": placed,
    "table": table,
    "words": words,
    "codes": codes,
    "errors": errors,
    "limits": limit_table,
}
