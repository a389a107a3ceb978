"""How the verifier checks all-reduces of gradients: each must be once on every holder, after the last weight gradient of its
group, and all of them in an order common to all streams.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import AllReduce, Bwd, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.program import Header, Pipe, Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler import verify
from chimerac.compiler.command.main import main
from chimerac.compiler.diagnose import collectives
from chimerac.compiler.diagnose.collectives import shortest
from tests.helpers import findings_of_call, program, streams, with_move, with_streams


def three_ranks(*orders: tuple[int, int]) -> Program:
    """Return a program with two pipes over three stages and ranks.

    Args:
        orders: by rank, the two stages whose gradients the rank all-reduces, in the order of its all-reduces.
    """
    placements = [(0, 1, 2), (1, 2, 0)]
    pipes = tuple(Pipe(f"p{k}", ranks, (k,)) for k, ranks in enumerate(placements))
    h = Header("three", {}, ranks=3, stages=3, micro_batches=2, pipes=pipes)
    result = []
    for rank in range(3):
        stream: list[Instruction] = []
        for k, ranks in enumerate(placements):
            stream += [Recv("act", k, s, (k,), ranks[s - 1]) for s in range(1, 3) if ranks[s] == rank]
            stream += [Recv("grad", k, s, (k,), ranks[s + 1]) for s in range(2) if ranks[s] == rank]
        for k, ranks in enumerate(placements):
            s = ranks.index(rank)
            stream.append(Fwd(k, s, (k,)))
            stream += [Send("act", k, s + 1, (k,), ranks[s + 1])] if s < 2 else []
        for k, ranks in enumerate(placements):
            s = ranks.index(rank)
            stream.append(Bwd(k, s, (k,)))
            stream += [Send("grad", k, s - 1, (k,), ranks[s - 1])] if s > 0 else []
        stream += [AllReduce(f"stage {s}", s, h.holders([s])) for s in orders[rank]]
        result.append(stream)
    return program_of(h, result)


def first_finding(p: Program) -> Diagnostic:
    return findings_of_call(verify, p)[0]


def test_orders_that_agree_are_accepted() -> None:
    # Rank 0 holds stages 0 and 2, rank 1 stages 1 and 0, rank 2 stages 2 and 1.
    verify(three_ranks((0, 2), (0, 1), (1, 2)))
    verify(three_ranks((2, 0), (0, 1), (2, 1)))


def test_three_orders_that_agree_pair_by_pair_are_named_as_a_cycle() -> None:
    d = first_finding(three_ranks((0, 2), (1, 0), (2, 1)))
    assert (d.code, d.message) == ("E453", "no single order of the collectives agrees with every stream")
    assert set(d.notes) == {
        "rank 0: ALLREDUCE s0 over 0,1 before ALLREDUCE s2 over 0,2",
        "rank 1: ALLREDUCE s1 over 1,2 before ALLREDUCE s0 over 0,1",
        "rank 2: ALLREDUCE s2 over 0,2 before ALLREDUCE s1 over 1,2",
    }


def test_two_orders_that_differ_are_named() -> None:
    p = program("chimera", D=4)
    changed = streams(p)
    assert [i.op for i in changed[1][-2:]] == ["ALLREDUCE", "ALLREDUCE"]
    changed[1] = with_move(changed[1], -1, len(changed[1]) - 2)
    d = first_finding(with_streams(p, changed))
    assert d.code == "E453" and len(d.notes) == 2
    # The help suggests a move on one of the two ranks, after which their orders are the same.
    move = r"move rank (\d), instruction (\d+): .*, right before .*; tried: then every check holds"
    found = re.fullmatch(move, d.help.splitlines()[0])
    assert found
    rank, k = int(found[1]), int(found[2])
    changed[rank] = with_move(changed[rank], k, k - 1)
    assert verify(with_streams(p, changed))


def test_a_collective_may_have_to_move_after_the_other() -> None:
    """On each rank, the last backward of the second ALLREDUCE's stage comes after the first ALLREDUCE. So the second one cannot
    move before the first one.
    """
    pipes = Pipe("a", (0, 1), (0,)), Pipe("b", (1, 0), (1,))
    h = Header("two", {}, ranks=2, stages=2, micro_batches=2, pipes=pipes)
    result = []
    for rank in range(2):
        stream: list[Instruction] = []
        for k in range(2):
            stream.append(Recv("act", k, 1, (k,), 1 - rank) if k != rank else Recv("grad", k, 0, (k,), 1 - rank))
        for k in range(2):
            stage = 0 if k == rank else 1
            if stage == 0:
                stream += [Fwd(k, 0, (k,)), Send("act", k, 1, (k,), 1 - rank), Bwd(k, 0, (k,))]
            else:
                stream += [Fwd(k, 1, (k,)), Bwd(k, 1, (k,)), Send("grad", k, 0, (k,), 1 - rank)]
            stream.append(AllReduce(f"stage {stage}", stage, (0, 1)))
        result.append(stream)
    d = first_finding(program_of(h, result))
    assert d.code == "E453"
    assert "ALLREDUCE s0 over 0,1, right after ALLREDUCE s1 over 0,1; tried: then every check holds" in d.help


def test_collectives_in_several_orders_can_be_arranged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "three.json"
    path.write_text(program_to_json(three_ranks((0, 2), (1, 0), (2, 1))))
    assert main([str(path)]) == 1
    assert (
        "or use --for window, which arranges transfers and collectives for it; tried: it then ends on window"
        in capsys.readouterr().err
    )
    assert main([str(path), "--for", "window", "--emit", "json"]) == 0
    assert verify(program_from_json(capsys.readouterr().out))


def test_without_a_move_that_helps_only_arranging_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_move_help", lambda *_: "")
    help = first_finding(three_ranks((0, 2), (1, 0), (2, 1))).help
    assert help.startswith("use --for window,") and help.count("tried") == 1


def test_of_the_groups_of_a_cycle_the_shortest_cycle_is_named() -> None:
    # Rank 0: A X B, rank 1: B Y A. The cycle A X B Y has four members, but A and B alone are a cycle too.
    rows = {"A": {0: 0, 1: 12}, "X": {0: 1}, "B": {0: 2, 1: 10}, "Y": {1: 11}}  # by group and rank, the row of the ALLREDUCE
    assert sorted(shortest(rows)) == [(0, 2), (10, 12)]


def all_reduces(p: Program, rank: int) -> list[int]:
    """Return the indices of the all-reduces in the stream of a rank."""
    return [k for k, i in enumerate(p.stream(rank)) if isinstance(i, AllReduce)]


def test_a_holder_that_never_joins_is_named() -> None:
    p = program("chimera", D=4)
    changed = streams(p)
    del changed[3][all_reduces(p, 3)[0]]
    d = first_finding(with_streams(p, changed))
    assert (d.code, d.message) == ("E450", "rank 3 holds a copy of 'stage 3' but never joins its all-reduce")


def test_an_all_reduce_over_other_ranks_than_the_holders_is_refused() -> None:
    p = program("chimera", D=4)
    changed = streams(p)
    changed[0][all_reduces(p, 0)[0]] = AllReduce("stage 3", 3, (0, 2, 3))
    d = first_finding(with_streams(p, changed))
    assert d.code == "E450" and "the copies of 'stage 3' are on ranks" in d.message


def test_an_all_reduce_of_a_group_with_one_holder_is_refused() -> None:
    p = program("1f1b", D=2)
    changed = streams(p)
    changed[0].append(AllReduce("stage 0", 0, (0,)))
    d = first_finding(with_streams(p, changed))
    place = f"rank 0, instruction {len(changed[0]) - 1}"
    assert d.code == "E450"
    assert d.message == f"{place}: ALLREDUCE s0 over 0: the group has one copy and needs no all-reduce"


@pytest.mark.parametrize(("times", "words"), [(2, "twice"), (3, "3 times")])
def test_a_rank_that_joins_more_than_once_is_refused(times: int, words: str) -> None:
    p = program("chimera", D=4)
    changed = streams(p)
    for rank in (0, 3):
        changed[rank] += [changed[rank][all_reduces(p, rank)[0]]] * (times - 1)
    found = findings_of_call(verify, with_streams(p, changed))
    assert {d.code for d in found} == {"E451"} and len(found) == 2  # one for each rank
    assert found[0].message.endswith(f"this rank joins the all-reduce of 'stage 3' {words}")


def test_an_all_reduce_before_its_last_gradient_is_refused() -> None:
    p = program("chimera", D=4)
    changed = streams(p)
    k = all_reduces(p, 0)[-1]
    changed[0] = with_move(changed[0], k, k - 1)
    d = first_finding(with_streams(p, changed))
    assert d.code == "E452"
    assert d.message.endswith("ALLREDUCE s0 over 0,3: gradients of 'stage 0' are still added after it")
    assert d.notes == (f"the last is rank 0, instruction {k}: BWD down[0] s0 m1",)


def test_tied_parameters_are_a_group_of_their_own() -> None:
    p = program("1f1b", D=2).with_header(tied=(Tied("embedding", (0, 1)),))
    d = first_finding(p)
    assert (d.code, d.message) == ("E450", "rank 0 holds a copy of 'embedding' but never joins its all-reduce")
    summed = [[*s, AllReduce("embedding", 0, (0, 1))] for s in streams(p)]
    verify(with_streams(p, summed))
