"""The all-reduces of gradients: their place (at the end, eager, eager where idle), and the ranks that join them."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.instructions import AllReduce
from chimerac.chimera_ir.program import Program
from chimerac.compiler.command.main import main
from tests.helpers import program, streams
from tests.helpers_text import small

# Two pipes on two ranks, two micro-batches each. On rank 0, pipe b ends early, with stage 1, and pipe a late, with stage 0:
#   rank 0  Fa0 Fa1 Fb2 Fb3 Bb2 Bb3 Ba0 Ba1
PIPES = "pipe a { stage s on rank s micro_batches N } pipe b { stage s on rank 1 - s micro_batches N }"
TICKS = {"rule1": "F(s, m) at 2*m + 3*s", "rule2": "B(s, m) at 20 + 2*m - 10*s"}


def all_reduces(p: Program, rank: int) -> list[str]:
    """Return every all-reduce of a rank with the last task before it."""
    result, last = [], ""
    for k, i in enumerate(p.stream(rank)):
        if isinstance(i, AllReduce):
            result.append(f"{i.group} after {last}")
        elif i.op in ("FWD", "BWD"):
            last = p.text(int(p.offsets[rank]) + k)
    return result


def two_pipes(sync: str, width: int = 1) -> Program:
    """Return the program drawn above, with this statement about all-reduces."""
    return small({"N": 2}, width, pipe=PIPES, extra=sync, **TICKS)


@pytest.mark.parametrize("sync", ["", "sync at end"])
def test_by_default_all_reduces_are_at_the_end(sync: str) -> None:
    assert all_reduces(two_pipes(sync), 0) == ["stage 0 after BWD a s0 m1", "stage 1 after BWD a s0 m1"]


def test_eager_all_reduces_follow_the_last_backward_of_their_stage() -> None:
    assert all_reduces(two_pipes("sync eager"), 0) == ["stage 1 after BWD b s1 m3", "stage 0 after BWD a s0 m1"]


def test_eager_all_reduces_where_idle_are_at_the_end_of_a_busy_rank() -> None:
    # From the last B of the stage that ends early, each rank is busy until its end.
    for rank in range(2):
        assert all_reduces(two_pipes("sync eager where idle"), rank) == all_reduces(two_pipes("sync at end"), rank)
    p = program("chimera", D=4)
    # In its timeline rank 0 is idle after B3 of the up pipe (stage 3). Ranks 1 and 2 are busy from their first B to their last.
    assert all_reduces(p, 0) == ["stage 3 after BWD up[0] s3 m3", "stage 0 after BWD down[0] s0 m1"]
    assert all_reduces(p, 1) == ["stage 1 after BWD down[0] s1 m1", "stage 2 after BWD down[0] s1 m1"]


@pytest.mark.parametrize("sync", ["sync at end", "sync eager", "sync eager where idle"])
def test_all_streams_have_one_order_of_all_reduces(sync: str) -> None:
    p = two_pipes(sync, width=3)
    orders = {tuple(i.group for i in s if isinstance(i, AllReduce)) for s in streams(p)}
    assert len(orders) == 1


def test_a_stage_has_an_all_reduce_only_if_it_has_several_copies() -> None:
    assert not small().collectives
    wide = small(width=2)
    assert {(c.group, c.ranks) for c in wide.collectives} == {("stage 0", (0, 2)), ("stage 1", (1, 3))}
    assert [all_reduces(wide, g) for g in (0, 2)] == [["stage 0 after BWD main s0 m2"]] * 2


def test_a_tied_set_has_an_all_reduce_over_the_holders_of_its_stages() -> None:
    p = small(extra="tied shared on stages 0, D - 1")
    assert [(c.group, c.stage, c.ranks) for c in p.collectives] == [("shared", 0, (0, 1))]
    p = small(extra="tied shared on stages 0, D - 1", width=2)
    assert ("shared", 0, (0, 1, 2, 3)) in {(c.group, c.stage, c.ranks) for c in p.collectives}


def test_a_tied_set_with_one_holder_has_no_all_reduce() -> None:
    pipe = "pipe main { stage s on rank 0 micro_batches N }"
    ticks = {"rule1": "F(s, m) at s + 9*m", "rule2": "B(s, m) at 5 - s + 9*m"}
    assert not small(extra="tied shared on stages 0, 1", pipe=pipe, **ticks).collectives


def test_a_replica_has_the_streams_of_width_one_but_all_reduces_include_all_replicas() -> None:
    p = program("chimera", width=3, D=4)
    narrow = program("chimera", D=4)
    assert (p.world, p.header.width, len(p)) == (12, 3, 3 * len(narrow))
    for w in range(3):
        for r in range(4):
            for of_one, of_replica in zip(narrow.stream(r), p.stream(4 * w + r), strict=True):
                if isinstance(of_one, AllReduce):
                    assert isinstance(of_replica, AllReduce) and of_replica.group == of_one.group
                    assert of_replica.ranks == tuple(rank + 4 * k for k in range(3) for rank in of_one.ranks)
                elif hasattr(of_one, "peer"):
                    assert of_replica.peer == of_one.peer + 4 * w
                    assert of_replica.micro_batches == of_one.micro_batches
                else:
                    assert of_one == of_replica


def test_a_width_of_one_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    main(["1f1b", "-p", "D=2"])
    first = capsys.readouterr().out
    main(["1f1b", "-p", "D=2", "--width", "1"])
    assert capsys.readouterr().out == first
