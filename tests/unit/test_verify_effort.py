"""The effort of the verifier is proportional to the program, for any number of errors. Lines and bytes are counted."""

from __future__ import annotations

from chimerac.chimera_ir.instructions import AllReduce, Bwd, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Header, Pipe, Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.verify import findings
from tests.helpers import program, streams, with_streams
from tests.helpers_cost import lines, peak


def sums(count: int) -> Program:
    """Return a program of 64 replicas with `count` additional sums, each over the wrong ranks."""
    p = program("1f1b", width=64, D=2, N=1)
    wrong: list[Instruction] = [AllReduce("stage 0", 0, (0,))] * count
    return with_streams(p, [[*stream, *wrong] if rank == 0 else [*stream] for rank, stream in enumerate(streams(p))])


def test_findings_that_name_all_holders_are_limited() -> None:
    programs = [sums(count) for count in (100, 3000)]
    small, large = (peak(lambda p=p: findings(p)) for p in programs)
    assert large - small < 3000 * 300  # each finding has about a kilobyte


def test_sums_of_unknown_groups_are_reported_a_few_times() -> None:
    p = program("1f1b", width=2, D=2, N=1)
    wrong: list[Instruction] = [AllReduce(f"t{k}", 0, (0, 1)) for k in range(5000)]
    changed = with_streams(p, [[*stream, *wrong] if rank == 0 else [*stream] for rank, stream in enumerate(streams(p))])
    assert len(findings(changed)) == 100


def tied(stages: int) -> Program:
    """Return a program of one micro-batch and `stages` stages, each on its own rank, all of them tied."""
    ranks = tuple(range(stages))
    header = Header("x", {}, stages, stages, 1, (Pipe("p", ranks, (0,)),), tied=(Tied("t", ranks),))
    result = []
    for s in ranks:
        before: list[Instruction] = [] if s == 0 else [Recv("act", 0, s, (0,), s - 1)]
        after: list[Instruction] = (
            [] if s == stages - 1 else [Send("act", 0, s + 1, (0,), s + 1), Recv("grad", 0, s, (0,), s + 1)]
        )
        last: list[Instruction] = [Send("grad", 0, s - 1, (0,), s - 1)] if s else []
        result.append([*before, Fwd(0, s, (0,)), *after, Bwd(0, s, (0,)), *last, AllReduce("t", 0, ranks)])
    return program_of(header, result)


def test_a_set_of_many_stages_on_many_ranks() -> None:
    programs = [tied(stages) for stages in (100, 200, 400)]
    a, b, c = (lines(lambda p=p: findings(p)) for p in programs)
    assert not any(map(findings, programs)) and c - b < 2.3 * (b - a)


def test_many_pipes_of_one_name() -> None:
    p = program("1f1b", D=2, N=1)
    pipes = [p.header.pipes[0], *(Pipe(f"q{k}", (0, 1), ()) for k in range(800)), Pipe("q799", (0, 1), ())]
    small, large = (p.with_header(pipes=tuple(x)) for x in (pipes[-400:], pipes))
    assert lines(lambda: findings(large)) < 3 * lines(lambda: findings(small))
    assert [d.message for d in findings(large)] == ["pipe q799 is defined twice"]
