"""What a picture shows of a program: its simulated or measured timeline, messages, all-reduces and memory."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState, memory_over_time
from chimerac.compiler.analyze.report import costs_text
from chimerac.compiler.analyze.simulate import Simulation
from chimerac.compiler.draw.panels import MemoryCurve, Messages, Panel

_POWERS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def simulated_panel(s: Simulation, title: str = "", memory: MemoryCurve | None = None, counts_idle: bool = False) -> Panel:
    """Return what is drawn of a simulation.

    Args:
        title: by default `program_title`.
        counts_idle: as in `Panel`.
    """
    p, w = s.program, s.waits
    unit = f" {s.unit}" if s.unit else ""
    return Panel(
        title or program_title(p),
        f"makespan {s.time(s.makespan)}{unit}, bubble ratio {100 * s.bubble_ratio:.1f} %",
        p,
        s.timeline,
        s.makespan,
        messages=Messages(p.rank_of[w.send], p.rank_of[w.receive], s.departures, s.arrivals),
        all_reduces=s.collective_times,
        memory=memory,
        counts_idle=counts_idle,
    )


def measured_panel(program: Program, timeline: Timeline, title: str = "", memory: MemoryCurve | None = None) -> Panel:
    """Return what is drawn of a measured timeline.

    Args:
        title: by default `program_title`.

    A measured timeline has only the launches of messages and all-reduces. So messages are not drawn, and all-reduces are marks.
    """
    unit = f" {timeline.unit}" if timeline.unit else ""
    facts = f"{number_text(Fraction(timeline.makespan, timeline.scale))}{unit}"
    return Panel(title or program_title(program), facts, program, timeline, timeline.makespan, memory=memory)


def panels_beside(
    s: Simulation, measured: Timeline | None = None, curve_of: Callable[[Timeline], MemoryCurve] | None = None
) -> tuple[list[Panel], str]:
    """Return the panels of a simulation and of a measured timeline of its program, and the text below their time axis.

    Args:
        measured: None for the simulation alone. If its unit is not that of the simulation, the two have no common time axis.
            Then there is only the panel of the measured timeline.
        curve_of: returns the memory curve of a timeline; it is drawn below the first panel. None: no curve is drawn.
    """
    is_alone = measured is not None and measured.unit != s.unit  # the measured timeline
    first = measured if measured is not None and is_alone else s.timeline
    memory = None if curve_of is None else curve_of(first)
    if measured is None:
        return [simulated_panel(s, memory=memory)], time_label(s)
    title = program_title(s.program)
    if not is_alone:
        both = [simulated_panel(s, f"{title}, predicted", memory), measured_panel(s.program, measured, f"{title}, measured")]
        return both, time_label(s)
    return [measured_panel(s.program, measured, f"{title}, measured", memory)], f"time in {measured.unit}"


def program_title(program: Program) -> str:
    """Return the schedule of a program with its parameters, and the width if there are several replicas."""
    h = program.header
    words = [h.schedule, *(f"{k}={v}" for k, v in h.parameters.items()), *([f"width={h.width}"] if h.width > 1 else [])]
    return " ".join(words)


def time_label(s: Simulation) -> str:
    """Return what is written below a time axis: the unit, or the costs that define it."""
    return f"time in {s.unit}" if s.unit else f"time, with {', '.join(costs_text(s).split('  '))}"


def memory_curve(
    program: Program, timeline: Timeline, model: ModelDescription | None = None, state: OptimizerState = NO_STATE
) -> MemoryCurve:
    """Return what the ranks hold over time: bytes of a model, or activations without one. Raises as `memory_over_time`."""
    found = memory_over_time(program, timeline, model, state)
    if model is None:
        return MemoryCurve(found.rank, found.time, found.amount, "Activations alive: micro-batches of a stage")
    most = max((int(x) for x in found.amount.tolist()), default=0)
    suffix, unit = next((x for x in _POWERS if most >= x[1]), _POWERS[-1])
    title = f"Memory of {model.name}, micro-batches of {model.samples} samples"
    return MemoryCurve(found.rank, found.time, found.amount, title, unit, f" {suffix}")
