"""The most that a rank holds at one time, and whether that is within the program's limits (E460).

How long activations and buffers are held is defined in docs/semantics.md, "Buffers" (chimera_ir/lifetimes.py). Copies of
weights are held all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.lifetimes import Kind, activations, held, received
from chimerac.chimera_ir.program import LIMITS, Ints, Program
from chimerac.compiler.verify.index import ProgramIndex

# What a limit counts, in the singular: by the name of the limit.
_NOUNS = {"activations": "activation", "receive_buffers": "receive buffer", "weight_copies": "weight copy"}
# The change that lowers a peak, for the help: by the kind of the program and the name of the limit.
_CHANGES = {
    "training": {
        "activations": "move backwards earlier on this rank",
        "receive_buffers": "move backwards earlier on this rank",
        "weight_copies": "place fewer stages on this rank",
    },
    "evaluation": {
        "activations": "split a forward into forwards of fewer micro-batches",
        "receive_buffers": "move receives later on this rank, or the forwards that read them earlier",
        "weight_copies": "place fewer stages on this rank",
    },
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that each global rank holds at one time.

    Attributes:
        activations: each of one stage and one micro-batch.
        receive_buffers: received values, counted from their RECV on.
        weight_copies: copies of stages.
    """

    activations: tuple[int, ...]
    receive_buffers: tuple[int, ...]
    weight_copies: tuple[int, ...]


def peaks(program: Program) -> Peaks:
    """Return the peaks of a verified program."""
    return Peaks(**{name: tuple(int(counts.max(initial=0)) for counts in _held_counts(program, name)) for name in LIMITS})


def check_limits(index: ProgramIndex) -> list[Diagnostic]:
    """Return a finding for every limit of the header that a rank exceeds, at the rank that exceeds it most."""
    found = []
    for name, limit in index.header.limits.items():
        counts = _held_counts(index.program, name)
        peaks_by_rank = [int(of_rank.max(initial=0)) for of_rank in counts]
        rank = peaks_by_rank.index(max(peaks_by_rank))
        if peaks_by_rank[rank] > limit:
            found.append(_limit_finding(index, name, limit, rank, peaks_by_rank, int(counts[rank].argmax())))
    return found


def _limit_finding(
    index: ProgramIndex, name: str, limit: int, rank: int, peaks_by_rank: list[int], position: int
) -> Diagnostic:
    """Return the finding about a rank.

    Args:
        position: in the rank's stream, of the instruction at which the peak begins.
    """
    notes = []
    if name != "weight_copies":
        row = int(index.program.offsets[rank]) + position
        notes.append(f"the peak begins at {index.program.place(row)}")
    others = [f"rank {r} holds {peak}" for r, peak in enumerate(peaks_by_rank) if peak > limit and r != rank]
    if others:
        notes.append("above the limit too: " + ", ".join(others[:8]) + (", ..." if len(others) > 8 else ""))
    message = f"rank {rank} holds {count_text(peaks_by_rank[rank], _NOUNS[name])} at its peak; the limit is {limit}"
    help = f"{_CHANGES[index.header.kind][name]}, or raise the limit: this program needs {peaks_by_rank[rank]}"
    return Diagnostic("E460", message, notes=tuple(notes), help=help, about=(f"limits.{name}",))


def _held_counts(program: Program, name: str) -> list[Ints]:
    """Return the counts that a limit bounds: how many each global rank holds while each of its instructions runs.

    Args:
        name: of the limit, one of LIMITS. For weight_copies, which do not change, there is one count for the whole stream.
    """
    if name == "weight_copies":
        h = program.header
        stages_on: list[set[int]] = [set() for _ in range(h.ranks)]
        for pipe in h.pipes:
            for stage, rank in enumerate(pipe.placement):
                stages_on[rank].add(stage)
        return [np.array([len(stages)]) for stages in stages_on * h.width]
    lives = activations(program) if name == "activations" else received(program)
    lives = lives.take(lives.is_of(Kind.ALIVE, Kind.RECEIVED))  # the other kinds of activations are for bytes only
    counts = held(program, lives, lives.count)
    return [counts[a:b] for a, b in pairwise(program.offsets.tolist())]
