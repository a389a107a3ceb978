"""The first part of the tour: what a bubble is, drawn so that it can be counted; then two directions."""

from __future__ import annotations

from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.draw.slots import draw_slots, idle_slots
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.tour.guide import Guide, schedules


def run(guide: Guide) -> int:
    """Run this part, and return the exit status."""
    guide.title("Schedule: what runs when, and what a bubble is")
    guide.say("""A model that is too large for one processor is cut into parts of consecutive layers, called stages. Each
        processor, called a rank, holds a stage. This is a pipeline: the samples go through the first stage on rank 0, then
        through the second one on rank 1, and so on. That is the forward pass, F. Then the gradients come back in the other
        direction: the backward pass, B.""")
    guide.say("""Only the first rank can start at once. Every other rank waits for its neighbour. With all samples in one
        piece, only one rank works at any time. So the samples of an iteration are cut into micro-batches, which follow each
        other through the pipeline. F0 is the forward of micro-batch 0, and B0 its backward.""")
    depth = int(guide.choose("How many ranks?", ["4", "2", "6"]))
    _one_direction(guide, depth)
    guide.wait()
    _two_directions(guide, depth)
    guide.wait()
    guide.say("""A real backward takes about twice as long as a forward. Here are the last two schedules with F = 1 and B =
        2, which are the costs of a schedule that gives no others. Dots are idle time.""")
    for name in (schedules()["one_direction"][1], schedules()["two_directions"]):
        guide.command(name, "-p", f"D={depth}", "-p", f"N={depth}", "--emit", "timeline")
    guide.say("""A schedule is a short text that says which rank holds which stage, and in which order each rank runs its
        tasks. The compiler makes the instructions of every rank from it, and checks that they cannot block each other.
        `chimerac --list` names the schedules that come with it, and docs/language.md says how to write another one.""")
    return 0


def _one_direction(guide: Guide, depth: int) -> None:
    """Show the schedules with one pipe.

    Args:
        depth: the number of ranks.
    """
    guide.say(f"""Here are {depth} micro-batches in the simplest order, called GPipe: all forwards, then all backwards. Time
        runs to the right. To make counting easy, a forward and a backward take one slot each. The idle slots of a rank are
        numbered.""")
    first, second = schedules()["one_direction"]
    idle = _draw(guide, first, depth)
    guide.say(f"""The numbered slots are the bubble. Every rank has {_number(idle)} of them. That is 2 x (D - 1) for D =
        {depth} ranks: a micro-batch needs D - 1 slots before it reaches the last rank, and its gradient needs D - 1 slots
        before it is back on rank 0. Rank 0 waits for both together, in the middle. The last rank waits at the beginning and
        at the end. More micro-batches make the iteration longer, but do not change the number of idle slots.""")
    guide.say("""The next order, 1F1B, begins a backward as soon as it can, and from then on alternates. It needs less
        memory, because a rank frees what it keeps of a micro-batch at its backward.""")
    idle = _draw(guide, second, depth)
    guide.say(f"""But count again: {_number(idle)} idle slots on every rank. This order moves them, and removes none. With
        one direction, the first micro-batch always has to pass the other ranks before it reaches the last one, and the last
        gradient has to pass them on the way back.""")


def _two_directions(guide: Guide, depth: int) -> None:
    """Show the schedule with two pipes.

    Args:
        depth: the number of ranks.
    """
    guide.say("""Chimera lets samples enter at both ends. Each rank holds two stages: one of a pipeline that runs down the
        ranks, and one of a pipeline that runs up. Half of the micro-batches take the first way, the other half the second.
        Each pipeline runs in slots in which the other one leaves a rank idle.""")
    idle, one_direction = _draw(guide, schedules()["two_directions"], depth), 2 * (depth - 1)
    guide.say(f"""Now there are {_number(idle)} idle slots on every rank: D - 2, where one direction has {one_direction},
        which is 2 x (D - 1). Papers count bubbles in the same way. The price is memory and communication: each stage is on
        two ranks, so every rank holds two stages, and the gradients of both copies have to be summed before the weights are
        updated.""")


def _draw(guide: Guide, name: str, depth: int) -> tuple[int, ...]:
    """Draw a schedule with D micro-batches and tasks of one slot, and return the idle slots of each rank."""
    program = compile_source(find(name), {"D": depth, "N": depth}).program
    timeline = simulate(program, {"F": 1, "B": 1}).timeline
    guide.show(f"{name}, D={depth} ranks, N={depth} micro-batches\n{draw_slots(program, timeline)}")
    return idle_slots(timeline, program)


def _number(idle: tuple[int, ...]) -> str:
    """Return the number of idle slots of a rank as text; the least and the most if ranks differ."""
    return str(idle[0]) if len(set(idle)) == 1 else f"{min(idle)} to {max(idle)}"
