"""Programs that other systems wrongly accept, or cannot express: here they are refused with a finding, or run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Bwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler.verify import findings, verify
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines
from tests.helpers import program, streams, with_move, with_streams
from tests.helpers_loopback import deep_model, run_and_compare
from tests.proof.mutations import codes

PROGRAM = program("1f1b", D=2, N=3)


def with_stream(p: Program, rank: int, stream: list[Instruction]) -> Program:
    """Return the program with another stream of one rank."""
    return with_streams(p, [stream if g == rank else s for g, s in enumerate(streams(p))])


def test_a_stage_on_two_ranks_is_accepted_and_trains() -> None:
    """A stage may have copies on several ranks, as bidirectional pipes need. Their gradients are summed."""
    p = program("chimera", D=2, N=2)
    assert all(len(p.header.holders([s])) == 2 for s in range(p.header.stages))
    assert verify(p) is p
    run_and_compare(p, deep_model(4), seed=0)


def test_a_duplicate_task_is_refused() -> None:
    """Every forward, input gradient and weight gradient must be computed exactly once."""
    for n, i in enumerate(PROGRAM.stream(0)):
        if not isinstance(i, Send | Recv):
            stream = list(PROGRAM.stream(0))
            assert codes(with_stream(PROGRAM, 0, [*stream[: n + 1], i, *stream[n + 1 :]])) == {"E411"}


def test_the_right_number_of_tasks_with_one_missing_and_one_repeated_is_refused() -> None:
    """Micro-batch 1 has no backward and micro-batch 0 has two. The counts are right, but the program is wrong."""
    p = program("1f1b", D=1, N=2)
    stream = [replace(i, micro_batches=(0,)) if isinstance(i, Bwd) else i for i in p.stream(0)]
    assert sum(isinstance(i, Bwd) for i in stream) == 2
    found = {d.code: d.message for d in findings(with_streams(p, [stream]))}
    assert set(found) == {"E410", "E411"}
    assert "m1 is missing" in found["E410"] and "m0 is in the program 2 times" in found["E411"]


CROSSING = """chimera-program 1
schedule crossing
sizes width=1 ranks=2 stages=2 micro_batches=2 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe down  on 0 1  micro_batches 0
pipe up  on 1 0  micro_batches 1

rank 0:
  FWD down s0 m0; SEND act down s1 m0 -> 1; RECV act up s1 m1 <- 1
  FWD up s1 m1; RECV grad down s0 m0 <- 1
  BWD up s1 m1; SEND grad up s0 m1 -> 1; ALLREDUCE s1 over 0,1
  BWD down s0 m0; ALLREDUCE s0 over 0,1

rank 1:
  FWD up s0 m1; SEND act up s1 m1 -> 0; RECV act down s1 m0 <- 0
  FWD down s1 m0; RECV grad up s0 m1 <- 0
  BWD down s1 m0; SEND grad down s0 m0 -> 0; ALLREDUCE s1 over 0,1
  BWD up s0 m1; ALLREDUCE s0 over 0,1
"""


def test_two_sends_that_cross_deadlock_where_a_send_waits_for_its_recv_or_transfers_queue() -> None:
    """Two ranks that both send before they receive deadlock where a SEND waits for its RECV, or where transfers queue."""
    p = program_from_text(CROSSING)
    assert not codes(p)
    assert machines(ProgramIndex(p)) == {"posted": True, "window": True, "rendezvous": False, "paired": False, "serial": False}
    assert codes(p.with_header(machine="rendezvous")) == {"E440"}


def test_a_program_without_its_receives_is_refused() -> None:
    """The same code is found if all RECVs are missing, and if any one of them is."""
    without = [[i for i in s if not isinstance(i, Recv)] for s in streams(PROGRAM)]
    assert "E421" in codes(with_streams(PROGRAM, without))
    for g, stream in enumerate(streams(PROGRAM)):
        for n in [n for n, i in enumerate(stream) if isinstance(i, Recv)]:
            assert "E421" in codes(with_stream(PROGRAM, g, [*stream[:n], *stream[n + 1 :]]))


def test_two_receives_in_the_wrong_order_are_refused() -> None:
    """Each RECV would get the value of the other, of the same shape, and the gradients would be wrong."""
    for g, stream in enumerate(streams(PROGRAM)):
        receives = [isinstance(i, Recv) for i in stream]
        first = next(n for n in range(len(stream) - 1) if receives[n] and receives[n + 1])
        assert codes(with_stream(PROGRAM, g, with_move(stream, first, first + 1))) == {"E430"}


@pytest.mark.parametrize("garbage", ["garbage", " garbage", " 0", ",", " overlapped", " -> 1", "; garbage", "x", "\u0661"])
def test_an_instruction_with_trailing_text_is_refused(garbage: str) -> None:
    """The reader does not skip the rest of a line after an instruction."""
    text = program_to_text(PROGRAM)
    assert program_from_text(text) == PROGRAM
    with pytest.raises(ChimeraError) as raised:
        program_from_text(text.replace("FWD main s0 m0", f"FWD main s0 m0{garbage}"))
    assert {d.code for d in raised.value.diagnostics} <= {"E603", "E605"}
