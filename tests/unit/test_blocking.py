"""Operations that can block a rank: the verifier refuses programs in which a rank waits forever at one of them."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import pytest

from chimerac.chimera_ir.instructions import Op
from chimerac.compiler.verify import findings
from chimerac.compiler.verify.waits import blocks
from tests.helpers import program, streams, with_move, with_streams

BLOCKING = [op for op in Op if blocks(op)]


@cache
def operations_where_ranks_stop() -> frozenset[int]:
    """Return the operations at which a rank of some program waits forever, on the machine `rendezvous`.

    The programs are those of two schedules of the library, in which one instruction is moved: each instruction to each other
    place of its stream.
    """
    ops: set[int] = set()
    for name, size in (("1f1b", 3), ("zb_h1", 2)):
        p = program(name, D=size, N=size).with_header(machine="rendezvous")
        original = streams(p)
        for rank, stream in enumerate(original):
            for source, target in permutations(range(len(stream)), 2):
                changed = with_streams(p, [*original[:rank], with_move(stream, source, target), *original[rank + 1 :]])
                for finding in findings(changed):
                    if finding.code == "E440":  # ranks wait forever
                        ops |= {int(changed.table.op[row]) for row in finding.about}
    return frozenset(ops)


@pytest.mark.parametrize("op", BLOCKING, ids=lambda op: op.name)
def test_a_rank_can_stop_at_every_operation_that_blocks(op: Op) -> None:
    assert op in operations_where_ranks_stop()


def test_no_rank_stops_at_an_operation_that_does_not_block() -> None:
    assert operations_where_ranks_stop() <= set(BLOCKING)
