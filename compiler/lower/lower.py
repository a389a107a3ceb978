"""program of tasks -> program: plans transfers and collectives, inserts them, and repeats the result for every replica."""

from __future__ import annotations

from dataclasses import replace

from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler.lower.insert import insert
from chimerac.compiler.lower.sync import gradient_sync
from chimerac.compiler.lower.transfers import transfers
from chimerac.compiler.lower.width import widen
from chimerac.compiler.syntax.nodes import SyncPolicy
from chimerac.compiler.tasks import Timing


def lower(tasks: Program, timing: Timing, sync: SyncPolicy, width: int, machine: Machine, arrange: bool) -> Program:
    """Return the program of these tasks over all replicas, with transfers and collectives. It is not verified yet.

    Args:
        timing: of the tasks.
        machine: the one that the header of the result names.
        arrange: order transfers and collectives for that machine.
    """
    return widen(lower_replica(tasks, timing, sync, machine, arrange), width)


def lower_replica(tasks: Program, timing: Timing, sync: SyncPolicy, machine: Machine, arrange: bool) -> Program:
    """Return the program of `lower` for one replica.

    A training program then has a collective for every group of parameters, also for those on a single rank.
    """
    in_one_order = arrange and machine in ("paired", "serial")
    if arrange:
        tasks = tasks.with_header(machine=machine)  # `transfers` places RECVs for the machine of this header
    insertions = [transfers(tasks, timing, in_one_order)]
    if tasks.header.kind == "training":
        all_reduces, collectives = gradient_sync(tasks, timing, sync, in_one_order)
        tasks = replace(tasks, collectives=collectives)
        insertions.append(all_reduces)
    return insert(tasks, insertions).with_header(machine=machine)
