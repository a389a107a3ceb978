"""Tables that compare simulated numbers of a schedule with published formulas."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.program import Program
from chimerac.compiler import Simulation, compile_schedule, simulate
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import evaluate
from chimerac.compiler.syntax.nodes import Expr, Let
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.verify import peaks

HOPS = (Fraction(0), Fraction(1, 10), Fraction(1, 2))  # the hop costs of a table, as parts of the cost F of stage 0
RELATIONS = {"==": "=", "<=": "≤", "about": "≈"}
ALWAYS = "0 == 0"  # the condition of a claim without one
# What claims are about. wall, own: the largest wall bubble and the largest own bubble of a rank, at hop cost 0. least, most:
# the peak activations of the rank with the fewest and of that with the most. activations: the peak activations of every rank
# if they are equal, otherwise -1.
SIMULATED = ("wall", "own", "least", "most", "activations")


@dataclass(frozen=True)
class Claim:
    """A published formula for a simulated number, written as `WHAT RELATION FORMULA when CONDITION`.

    Attributes:
        what: one of SIMULATED.
        relation: one of RELATIONS; `about` allows the number to differ by at most 10 % of the formula's value.
    """

    what: str
    relation: str
    formula: str
    condition: str

    @staticmethod
    def of(line: str) -> Claim:
        """Return the claim of a line, such as `wall == D - 2 when N == D`."""
        rest, _, condition = line.partition(" when ")
        what, relation, formula = rest.split(maxsplit=2)
        assert what in SIMULATED and relation in RELATIONS, line
        return Claim(what, relation, formula, condition or ALWAYS)

    def value(self, env: Mapping[str, int]) -> int:
        """Return the value of the formula.

        Args:
            env: the value of each name.
        """
        return int(evaluate(expression(self.formula), env, Budget()))

    def holds(self, simulated: int, value: int) -> bool:
        """Return whether a simulated number has the relation to the value of the formula."""
        if self.relation == "about":
            return abs(simulated - value) * 10 <= value
        return simulated == value if self.relation == "==" else simulated <= value


def expression(text: str) -> Expr:
    """Return an expression of the schedule language."""
    statement = parse(Source("claim", f"schedule claim let value = {text}")).statements[0]
    assert isinstance(statement, Let)
    return statement.value


def table(definition: str) -> str:
    """Return a table of the simulated numbers of a schedule, and of the claims about them.

    Args:
        definition: `NAME -p X=Y ...`, then one line for each claim, and one for each `let NAME = EXPR` that formulas use.
            Formulas may also use the parameters, the letters of the costs (of stage 0) and `makespan` (at hop cost 0). D is 4,
            8 and 16. N is D, 2D and 4D, or as given by a line `sizes EXPR, ...`. The row of a size at which the schedule does
            not compile says why.

    Raises AssertionError if a claim does not hold, or is about a program whose times at hop cost 0 are not whole numbers.
    """
    command, *lines = (line.strip() for line in definition.splitlines())
    name, *options = (x for x in shlex.split(command) if x != "-p")
    given = {k: int(v) for k, _, v in (x.partition("=") for x in options)}
    lets = [line.split(maxsplit=3)[1::2] for line in lines if line.startswith("let ")]  # name and expression of each
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
    costs = _costs_of(program)  # of the last program: they are the same for all sizes
    shown = " ".join([name, *options])
    formulas = "; ".join(map(_claim_text, claims))
    letters = "".join(f"; here {k} = `{v}`" for k, v in lets)
    heading = textwrap.fill(f"**{shown}**, {costs}. Formulas: {formulas}{letters}.", 120, break_on_hyphens=False)
    head = "| D | N | makespan | wall bubble | own bubble | activations | formulas |\n|---|---|---|---|---|---|---|"
    return "\n".join(["", heading, "", head, *rows, "", ""])


def _claim_text(c: Claim) -> str:
    when = f" where `{c.condition}`" if c.condition != ALWAYS else ""
    return f"{c.what} {RELATIONS[c.relation]} `{c.formula}`{when}"


def _costs_of(program: Program) -> str:
    """Return the costs of the tasks on stage 0, such as `F = 1, B = 2`, for the kinds of tasks in the program."""
    used = set(program.table.op.tolist())
    return ", ".join(f"{form.letter} = {program.costs.of(form.op)[0]}" for form in FORMS if form.letter and form.op in used)


def _row(program: Program, lets: Sequence[Sequence[str]], claims: Sequence[Claim], where: str) -> str:
    """Return a row: makespan and bubbles for each hop cost, activations, and the values of the claims whose condition holds.

    Args:
        where: the schedule and its sizes, for the message of an AssertionError.
    """
    h, costs, peak = program.header, program.costs, peaks(program)
    simulations = [simulate(program, {"hop": hop * costs.FWD[0]}) for hop in HOPS]
    without_hops = simulations[0]
    simulated = {"wall": max(without_hops.wall_bubbles), "own": max(without_hops.own_bubbles)}
    simulated |= {"least": min(peak.activations), "most": max(peak.activations)}
    simulated["activations"] = simulated["most"] if len(set(peak.activations)) == 1 else -1
    env = {**h.parameters} | {form.letter: costs.of(form.op)[0] for form in FORMS if form.letter}
    env["makespan"] = without_hops.makespan
    for name, value in lets:
        env[name] = int(evaluate(expression(value), env, Budget()))
    cells = []
    for c in claims:
        if not evaluate(expression(c.condition), env, Budget()):
            continue
        value = c.value(env)
        assert without_hops.scale == 1, f"{where}: times are not whole numbers"
        assert c.holds(simulated[c.what], value), f"{where}: {c.what} is {simulated[c.what]}, the formula of {c} is {value}"
        cells.append(f"{c.what} {RELATIONS[c.relation]} {value}")
    columns = [
        " / ".join(s.time(s.makespan) for s in simulations),
        " / ".join(_range(s, s.wall_bubbles) for s in simulations),
        " / ".join(_range(s, s.own_bubbles) for s in simulations),
        " to ".join(map(str, sorted({min(peak.activations), max(peak.activations)}))),
        ", ".join(cells) or "none",
    ]
    return f"| {h.parameters['D']} | {h.parameters['N']} | " + " | ".join(columns) + " |"


def _range(s: Simulation, values: Sequence[int]) -> str:
    low, high = s.time(min(values)), s.time(max(values))
    return low if low == high else f"{low} to {high}"
