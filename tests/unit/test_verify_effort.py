"""The effort of the verifier grows with the size of a program and no faster, also for programs with many errors.

Executed lines and held bytes are counted (helpers_cost.py).
"""

from __future__ import annotations

from chimerac.chimera_ir.instructions import AllReduce, Bwd, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Header, Pipe, Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.verify import findings
from tests.helpers import program, streams, with_streams
from tests.helpers_cost import lines, peak


def with_all_reduces(width: int, wrong: list[AllReduce]) -> Program:
    """Return a program of `width` replicas whose rank 0 also has these wrong all-reduces."""
    p = program("1f1b", width=width, D=2, N=1)
    changed = streams(p)
    changed[0] += wrong
    return with_streams(p, changed)


def test_findings_that_name_all_holders_are_limited() -> None:
    programs = [with_all_reduces(64, [AllReduce("stage 0", 0, (0,))] * count) for count in (100, 3000)]
    few_bytes, many_bytes = (peak(lambda p=p: findings(p)) for p in programs)
    # 300 bytes for each all-reduce. A finding has about a kilobyte, so most of the all-reduces have none.
    assert many_bytes - few_bytes < 3000 * 300


def test_all_reduces_of_unknown_groups_are_at_most_a_hundred_findings() -> None:
    p = with_all_reduces(2, [AllReduce(f"t{k}", 0, (0, 1)) for k in range(5000)])
    assert len(findings(p)) == 100


def tied(stages: int) -> Program:
    """Return a program of one micro-batch and `stages` stages, each on its own rank, all of them tied."""
    ranks = tuple(range(stages))
    header = Header(
        "x", {}, ranks=stages, stages=stages, micro_batches=1, pipes=(Pipe("p", ranks, (0,)),), tied=(Tied("t", ranks),)
    )
    result = []
    for s in ranks:
        before_forward: list[Instruction] = [] if s == 0 else [Recv("act", 0, s, (0,), s - 1)]
        before_backward: list[Instruction] = (
            [] if s == stages - 1 else [Send("act", 0, s + 1, (0,), s + 1), Recv("grad", 0, s, (0,), s + 1)]
        )
        sent: list[Instruction] = [Send("grad", 0, s - 1, (0,), s - 1)] if s else []
        result.append([*before_forward, Fwd(0, s, (0,)), *before_backward, Bwd(0, s, (0,)), *sent, AllReduce("t", 0, ranks)])
    return program_of(header, result)


def test_the_effort_is_linear_in_the_stages_of_a_tied_set() -> None:
    """From 200 to 400 stages, linear effort grows by twice as much as from 100 to 200, and quadratic effort by four times."""
    programs = [tied(stages) for stages in (100, 200, 400)]
    small, medium, large = (lines(lambda p=p: findings(p)) for p in programs)
    assert not any(map(findings, programs)) and large - medium < 2.3 * (medium - small)


def test_the_effort_is_linear_in_the_number_of_pipes() -> None:
    """With twice as many pipes, linear effort is twice as large, and quadratic effort four times.

    The last two pipes have the same name.
    """
    p = program("1f1b", D=2, N=1)
    pipes = [p.header.pipes[0], *(Pipe(f"q{k}", (0, 1), ()) for k in range(800)), Pipe("q799", (0, 1), ())]
    small, large = (p.with_header(pipes=tuple(chosen)) for chosen in (pipes[-400:], pipes))
    assert lines(lambda: findings(large)) < 3 * lines(lambda: findings(small))
    assert [d.message for d in findings(large)] == ["pipe q799 is defined twice"]
