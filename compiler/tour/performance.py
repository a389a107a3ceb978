"""The third part of the tour: what a schedule's speed depends on: micro-batches, and the time of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from chimerac.chimera_ir.numbers import number_text
from chimerac.compiler.analyze.compare import Figures, Setting, compare
from chimerac.compiler.analyze.report import table
from chimerac.compiler.library import find
from chimerac.compiler.tour.guide import Guide, schedules

HOPS = ("0", "0.1", "0.5")

FiguresBySetting = Mapping[str, Mapping[str, Figures]]  # setting -> schedule -> figures


def run(guide: Guide) -> int:
    """Run this part, and return the exit status."""
    guide.title("Performance: compare schedules before anything runs")
    guide.say("""How long an iteration takes is computed from the order of the tasks and their costs: F of a forward, B of a
        backward. The makespan is the time from the start of the iteration to the end of its last task. The bubble ratio is
        the share of the time of all ranks in which they are idle. All schedules of this table do the same work.""")
    depth = int(guide.choose("How many ranks?", ["4", "8"]))
    guide.command("compare", *schedules()["compared"], "-p", f"D={depth}", "-p", f"N={depth}")
    guide.say("""zb_h1 and chimera_zb split each backward into two tasks: one computes what the previous stage waits for,
        the other computes the gradients of the weights, for which no task of another rank waits. Tasks of the second kind
        fill idle time.""")
    guide.wait()
    by_size = {f"N={depth * k}": _figures({"D": depth, "N": depth * k}, {}) for k in (1, 2, 4, 8)}
    guide.say("""With more micro-batches the idle time is a smaller share of the iteration. But a larger batch is not always
        wanted: it changes the training. Bubble ratios in percent:""")
    guide.show(_table(by_size, lambda figures: f"{100 * figures.bubble_ratio:.1f}"))
    guide.say(_crossing(by_size))
    guide.wait()
    by_hop = {f"hop={hop}": _figures({"D": depth, "N": depth}, {"hop": Fraction(hop)}) for hop in HOPS}
    guide.say("""So far messages took no time. Now each message between two ranks takes a time called hop, where a forward
        takes 1. Makespans:""")
    guide.show(_table(by_hop, lambda figures: number_text(figures.makespan)))
    growth = {name: _growth(name, by_hop) for name in schedules()["compared"]}
    least, most = min(growth, key=growth.__getitem__), max(growth, key=growth.__getitem__)
    guide.say(f"""From hop={HOPS[0]} to hop={HOPS[-1]} the makespan of {least} grows by {100 * growth[least]:.0f} %, and
        that of {most} by {100 * growth[most]:.0f} %. An order in which ranks wait for each other more often loses more. So
        a bubble without the costs for which it was computed says little.""")
    guide.say("""These are predictions. To measure, run an experiment: python -m chimerac.interpreter.experiments baseline.
        It needs torch, starts real ranks, and writes a report. docs/experiments.md describes it.""")
    return 0


def _figures(parameters: Mapping[str, int], costs: Mapping[str, Fraction]) -> dict[str, Figures]:
    """Return the figures of the schedules that the tour compares. All of them can run with these parameters."""
    rows = compare({name: find(name) for name in schedules()["compared"]}, Setting(parameters, costs))
    return {row.schedule: row.figures for row in rows if row.figures}


def _table(by_setting: FiguresBySetting, cell: Callable[[Figures], str]) -> str:
    """Return a table with a row for each schedule and a column for each setting.

    Args:
        cell: returns the text of a cell.
    """
    rows = [[name, *(cell(column[name]) for column in by_setting.values())] for name in schedules()["compared"]]
    return "\n".join(table(["schedule", *by_setting], rows))


def _growth(name: str, by_hop: FiguresBySetting) -> float:
    """Return by which share the makespan of a schedule is longer with the slowest messages than with the fastest."""
    makespans = [by_schedule[name].makespan for by_schedule in by_hop.values()]
    return float(makespans[-1] / makespans[0]) - 1


def _crossing(by_size: FiguresBySetting) -> str:
    """Return a text that says from which number of micro-batches on one direction is faster than two, if it is."""
    two, one = schedules()["two_directions"], schedules()["one_direction"][1]
    sizes = [size for size, figures in by_size.items() if figures[two].makespan > figures[one].makespan]
    if not sizes:
        return f"{two} is faster than {one} at all of these sizes."
    return f"""{two} repeats its pattern for every D micro-batches, and each repetition adds idle time. So from {sizes[0]} on
        {one} is faster here. The last schedule of the table orders all micro-batches together, and avoids that."""
