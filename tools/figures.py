"""Write all that README, docs and schedules show and that a program can make, or check that it is up to date.

    python tools/figures.py                   check: names what differs, exit status 1
    python tools/figures.py --write           write it anew; the same as `make figures`
    python tools/figures.py --write --slow    the output of `make ...` too: it takes minutes and varies between runs

What is filled in a Markdown file, each block for itself:

    ```console                                  the output of `$ chimerac ...` commands; `| head -N` and `| tail -N` work.
    $ chimerac chimera --emit timeline          They run where the file's examples lie, in the order of the file.
    ```
    <!-- file: ring.sched -->                   the fenced block below is an example: a file for the commands after it
    <!-- include: schedules/chimera.sched -->   the fenced block below is that file
    <!-- generated: modules -->                 what one of the functions of GENERATED returns, up to <!-- end -->

In a schedule: the comment lines after `# $ chimerac NAME ... --emit timeline`, up to the next empty line.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.compiler import Simulation, compile_schedule, simulate
from chimerac.compiler.command.main import main
from chimerac.compiler.command.usage import EXAMPLES
from chimerac.compiler.explain.entries import Entry, hundreds
from chimerac.compiler.explain.page import mending, shortened, transcript
from chimerac.compiler.library import entries
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import evaluate
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.nodes import Expr, Let
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.verify import peaks

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCHEDULES = sorted((ROOT / "schedules").glob("*.sched"))
COLUMNS = 120  # of a drawing in a schedule's comment
SLOW = "make"  # what a command of a console block begins with that only --slow runs

_FENCE = re.compile(r"^(?P<open>```(?P<kind>\w*)\n)(?P<body>.*?)(?P<close>^```$)", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"^<!-- (?P<what>file|include|generated): (?P<rest>[^\n]*?) -->\n+\Z", re.MULTILINE)
_GENERATED = re.compile(
    r"(?P<open>^<!-- generated: (?P<name>\w+)(?P<rest>[^>]*?) -->\n)(?P<body>.*?)(?P<close>^<!-- end -->$)",
    re.MULTILINE | re.DOTALL,
)
_DRAWING = re.compile(r"^# \$ (?P<command>chimerac .*)\n(?P<body>(?:#.*\n)*)", re.MULTILINE)


def chimerac(arguments: Sequence[str]) -> str:
    """Return what the command prints, findings too."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):  # argparse exits
        main(arguments)
    return in_checkout(out.getvalue())


def in_checkout(text: str) -> str:
    """Return what a command says as it would say it in the checkout's root, where files are named from there."""
    return text.replace(f"{ROOT}{os.sep}", "")


def command_output(line: str) -> str:
    """Return what a line of a console block prints."""
    line, *filters = line.split(" | ")
    name, *arguments = shlex.split(line)
    output = chimerac(arguments) if name == "chimerac" else _slow(line)
    for part in filters:
        verb, count = part.split(" -")
        lines = output.splitlines(keepends=True)
        output = "".join(lines[: int(count)] if verb == "head" else lines[-int(count) :])
    return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)


def _slow(line: str) -> str:
    subprocess.run(["make", "setup"], cwd=ROOT, check=True, capture_output=True)
    result = subprocess.run(
        shlex.split(line), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
    )
    # torchrun's remark about threads and pytest's marks of progress carry no fact.
    return "".join(x for x in result.stdout.splitlines(keepends=True) if not re.match(r"[WI]\d{4} |\*{9}|bringing up nodes", x))


def console(body: str, slow: bool) -> str:
    """Return a console block with the output of its commands."""
    filled = ""
    commands = re.split(r"^(?=\$ )", body, flags=re.MULTILINE)
    for command in filter(None, commands):
        line = command.split("\n", 1)[0]
        filled += command if line.startswith(f"$ {SLOW}") and not slow else f"{line}\n{command_output(line[2:])}"
    return filled


def fill(path: Path, text: str, slow: bool = False) -> str:
    """Return the text of a Markdown file with everything generated filled in."""
    text = _GENERATED.sub(lambda m: m["open"] + GENERATED[m["name"]](m["rest"].strip()) + m["close"], text)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):

        def block(m: re.Match[str]) -> str:
            marker = _MARKER.search(text[: m.start()])
            body = m["body"]
            if marker and marker["what"] == "include":
                body = (ROOT / marker["rest"]).read_text(encoding="utf-8")
            elif marker and marker["what"] == "file":
                Path(marker["rest"]).write_text(body, encoding="utf-8")
            elif m["kind"] == "console":
                body = console(body, slow)
            return m["open"] + body + m["close"]

        return _FENCE.sub(block, text)


def draw(text: str) -> str:
    """Return the text of a schedule with the drawings in its comments. The schedule is the library's, as it stands."""

    def drawing(m: re.Match[str]) -> str:
        _, *arguments = shlex.split(m["command"])
        lines = chimerac([*arguments, "--columns", str(COLUMNS)]).splitlines()
        return f"# $ {m['command']}\n" + "".join(f"# {line}".rstrip() + "\n" for line in lines)

    return _DRAWING.sub(drawing, text)


# --- what `generated:` can name ----------------------------------------------------------------------------------------

ROOMS = ("chimera_ir", "schedules", "compiler", "models", "interpreter")


def modules(_: str) -> str:
    """Return the table of all modules: path, and the first sentence of the docstring."""
    rows = ["| file | what it is for |", "|---|---|"]
    files = [ROOT / "chimerac/__main__.py"]
    for room in ROOMS:
        files += sorted((ROOT / room).rglob("*.py"), key=lambda p: (p.parent != ROOT / room, p.parent, p.name))
    for path in files:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if doc:
            rows.append(f"| {path.relative_to(ROOT)} | {_first_sentence(doc)} |")
    return "\n".join(rows) + "\n"


def _first_sentence(doc: str) -> str:
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=\w[.?])\s(?=[A-Z])", paragraph)[0].rstrip(".").replace("|", "\\|")


def examples(_: str) -> str:
    """Return the examples and products that `chimerac --help` lists."""
    return f"```text\n{EXAMPLES}\n```\n"


def library(columns: str) -> str:
    """Return the table of the library's schedules; `brief` leaves out their parameters and sources."""
    rows = [(e.name, e.parameters, e.title, e.source) for e in entries()]
    kept = (0, 2) if columns == "brief" else (0, 1, 2, 3)
    head = ("name", "parameters", "what it is", "source")
    lines = [head, ("---",) * 4, *rows]
    return "".join("| " + " | ".join(line[k] for k in kept) + " |\n" for line in lines)


def words(_: str) -> str:
    """Return the reserved words of the language."""
    return "\n" + textwrap.fill(" ".join(f"`{w}`" for w in sorted(keywords())), 120, break_on_hyphens=False) + "\n\n"


def limit_table(_: str) -> str:
    """Return the limits: the constants of chimera_ir/limits.py, with what each is of."""
    text = (ROOT / "chimera_ir/limits.py").read_text(encoding="utf-8")
    rows = ["\n| what | at most |", "|---|---|"]
    for line in text.splitlines():
        if about := re.match(r"# of (.*)", line):
            rows.append(f"| *of {about[1]}* | |")
        elif found := re.match(r"([A-Z]+) = .*  # (.*)", line):
            value = getattr(limits, found[1])
            power = value > 1024 and not value & (value - 1)
            rows.append(f"| {found[2]} | {f'2^{value.bit_length() - 1}' if power else f'{value:,}'} |")
    return "\n".join([*rows, "", ""])


def codes(_: str) -> str:
    """Return the table of all error codes, each with the way to its section."""
    rows = [
        f"| [{e.code}](#{re.sub(r'[^a-z0-9_ -]', '', _heading(e).lower()).replace(' ', '-')}) | {e.title} |"
        for h in hundreds()
        for e in h.entries
    ]
    return "\n".join(["| code | what is wrong |", "|---|---|", *rows, ""])


def errors(_: str) -> str:
    """Return what `chimerac explain` says about every code."""
    return "\n" + "\n".join(f"## {h.title}\n\n" + "\n".join(map(_explained, h.entries)) for h in hundreds()) + "\n"


def _heading(e: Entry) -> str:
    return f"{e.code}: {e.title}"


def _explained(e: Entry) -> str:
    example = f"<!-- file: {e.file} -->\n```text\n{shortened(e.wrong)}```\n\n" if e.file else ""
    why, mended = (textwrap.fill(text, 120, break_on_hyphens=False) for text in (e.why, f"Mended: {e.mended}."))
    said = f"```text\n{in_checkout(transcript(e, main))}```"
    return f"### {_heading(e)}\n\n{why}\n\n{example}{said}\n\n{mended}\n\n```diff\n{mending(e)}```\n"


HOPS = (Fraction(0), Fraction(1, 10), Fraction(1, 2))  # in F
SIGNS = {"==": "=", "<=": "≤", "about": "≈"}
MEASURED = ("wall", "own", "least", "most", "activations")  # the bubbles; activations on the least, the most, every rank


@dataclass(frozen=True)
class Claim:
    """`wall == EXPR when CONDITION`: what is published of a measured number. about: within a tenth of it."""

    what: str
    sign: str
    formula: str
    condition: str

    @staticmethod
    def of(line: str) -> Claim:
        rest, _, condition = line.partition(" when ")
        what, sign, formula = rest.split(maxsplit=2)
        assert what in MEASURED and sign in SIGNS, line
        return Claim(what, sign, formula, condition or "0 == 0")

    def value(self, env: Mapping[str, int]) -> int:
        return int(evaluate(expression(self.formula), env, Budget()))

    def holds(self, measured: int, value: int) -> bool:
        if self.sign == "about":
            return abs(measured - value) * 10 <= value
        return measured == value if self.sign == "==" else measured <= value


def expression(text: str) -> Expr:
    """Return an expression of the schedule language."""
    statement = parse(Source("claim", f"schedule claim let value = {text}")).statements[0]
    assert isinstance(statement, Let)
    return statement.value


def table(rest: str) -> str:
    """Return a table of what is simulated of a schedule, and of what is published.

    rest: `NAME -p X=Y ...`, then lines: claims, and `let NAME = EXPR` for their formulas. D is 4, 8, 16, and N is
    D, 2D, 4D, or as `sizes EXPR, ...` says. A claim that does not hold is an error.
    """
    command, *lines = (line.strip() for line in rest.splitlines())
    name, *options = (x for x in shlex.split(command) if x != "-p")
    given = {k: int(v) for k, _, v in (x.partition("=") for x in options)}
    lets = [line.split(maxsplit=3)[1::2] for line in lines if line.startswith("let ")]
    sizes = next((line.removeprefix("sizes ") for line in lines if line.startswith("sizes ")), "D, 2*D, 4*D")
    claims = [Claim.of(line) for line in lines if not line.startswith(("let ", "sizes "))]
    rows: list[str] = []
    for d in (4, 8, 16):
        for n in (int(evaluate(expression(x), {"D": d}, Budget())) for x in sizes.split(", ")):
            try:
                program = compile_schedule(name, {"D": d, "N": n, **given}).program
            except ChimeraError as error:
                message = error.diagnostics[0].message.removeprefix("this does not hold: ")
                rows.append(f"| {d} | {n} | excluded: {message} | | | | |")
                continue
            rows.append(_row(program, lets, claims, f"{name} at D = {d}, N = {n}"))
    costs = _costs_of(program)
    shown = " ".join([name, *options])
    said = "; ".join(map(_said, claims))
    with_lets = "".join(f", {k} = `{v}`" for k, v in lets)
    about = textwrap.fill(f"**{shown}**, {costs}. Closed form: {said}{with_lets}.", 120, break_on_hyphens=False)
    head = "| D | N | makespan | wall bubble | own bubble | activations | closed form |\n|---|---|---|---|---|---|---|"
    return "\n".join(["", about, "", head, *rows, "", ""])


def _said(c: Claim) -> str:
    when = f" where `{c.condition}`" if c.condition != "0 == 0" else ""
    return f"{c.what} {SIGNS[c.sign]} `{c.formula}`{when}"


def _costs_of(program: Program) -> str:
    c, used = program.header.costs, set(program.table.op.tolist())
    values = {"F": (Op.FWD, c.FWD), "B": (Op.BWD, c.BWD), "I": (Op.BWD_INPUT, c.BWD_INPUT), "W": (Op.BWD_WEIGHT, c.BWD_WEIGHT)}
    return ", ".join(f"{k} = {cost[0]}" for k, (op, cost) in values.items() if op in used)


def _row(program: Program, lets: Sequence[Sequence[str]], claims: Sequence[Claim], where: str) -> str:
    """Return a row: makespan and bubbles for each hop cost, activations, and what the claims say."""
    h, top = program.header, peaks(program)
    at = [simulate(program, {"hop": hop * h.costs.FWD[0]}) for hop in HOPS]
    free = at[0]
    measured = {"wall": max(free.wall_bubbles), "own": max(free.own_bubbles)}
    measured |= {"least": min(top.activations), "most": max(top.activations)}
    measured["activations"] = measured["most"] if len(set(top.activations)) == 1 else -1
    env = {**h.parameters, "F": h.costs.FWD[0], "B": h.costs.BWD[0], "I": h.costs.BWD_INPUT[0], "W": h.costs.BWD_WEIGHT[0]}
    env["makespan"] = free.makespan
    for name, value in lets:
        env[name] = int(evaluate(expression(value), env, Budget()))
    cells = []
    for c in claims:
        if not evaluate(expression(c.condition), env, Budget()):
            continue
        value = c.value(env)
        assert free.scale == 1 and c.holds(measured[c.what], value), f"{where}: {c} is {measured[c.what]}, not {value}"
        cells.append(f"{c.what} {SIGNS[c.sign]} {value}")
    columns = [
        " / ".join(s.time(s.makespan) for s in at),
        " / ".join(_range(s, s.wall_bubbles) for s in at),
        " / ".join(_range(s, s.own_bubbles) for s in at),
        " to ".join(map(str, sorted({min(top.activations), max(top.activations)}))),
        ", ".join(cells) or "none",
    ]
    return f"| {h.parameters['D']} | {h.parameters['N']} | " + " | ".join(columns) + " |"


def _range(s: Simulation, values: Sequence[int]) -> str:
    low, high = s.time(min(values)), s.time(max(values))
    return low if low == high else f"{low} to {high}"


GENERATED: dict[str, Callable[[str], str]] = {
    "modules": modules,
    "examples": examples,
    "library": library,
    "table": table,
    "words": words,
    "codes": codes,
    "errors": errors,
    "limits": limit_table,
}


# --- the command -------------------------------------------------------------------------------------------------------


def wanted(slow: bool = False) -> Iterator[tuple[Path, str, str]]:
    """Yield every file that shows something generated: path, its text, and the text it should have."""
    os.environ["COLUMNS"] = "80"
    for path in SCHEDULES:
        text = path.read_text(encoding="utf-8")
        yield path, text, draw(text)
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        yield path, text, fill(path, text, slow)


def differences() -> list[str]:
    """Return a diff for every file that is not up to date."""
    found = []
    for path, text, new in wanted():
        if text != new:
            name = str(path.relative_to(ROOT))
            found.append(
                "\n".join(difflib.unified_diff(text.splitlines(), new.splitlines(), name, "as generated", lineterm="", n=1))
            )
    return found


def run(argv: Sequence[str] | None = None) -> int:
    """Write or check; return the exit status."""
    parser = argparse.ArgumentParser(description="Write or check what README, docs and schedules show.")
    parser.add_argument("--write", action="store_true", help="write; without it, check")
    parser.add_argument("--slow", action="store_true", help="with --write: the output of `make ...` too")
    options = parser.parse_args(argv)
    if not options.write:
        found = differences()
        print("\n\n".join(found) + "\n\nrefresh with: make figures" if found else "all figures are up to date")
        return 1 if found else 0
    for path, text, new in wanted(options.slow):
        if text != new:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(run())
