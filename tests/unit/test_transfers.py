"""Transfers are first in, first out. RECVs are as early as the allowance permits, or earlier for the window or a hop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.instructions import Recv, Send
from chimerac.chimera_ir.program import Program
from chimerac.compiler import Compiled, compile_text
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.lower.insert import insert
from chimerac.compiler.lower.sync import gradient_sync
from chimerac.compiler.lower.transfers import AHEAD, transfers
from chimerac.compiler.lower.width import widen
from chimerac.compiler.verify import findings, peaks, verify
from tests.effort import examples
from tests.helpers import findings_of_call, streams, tasks
from tests.helpers_orders import costed_listings
from tests.helpers_random import schedules
from tests.helpers_text import small, text

NEVER_FULL = 2**20  # a window


def messages(p: Program, kind: type) -> dict[tuple[int, int], list[tuple[str, int, tuple[int, ...]]]]:
    """Return the values of the SENDs or of the RECVs of every channel, in order.

    Args:
        kind: Send or Recv.
    """
    result: dict[tuple[int, int], list[tuple[str, int, tuple[int, ...]]]] = {}
    for g, stream in enumerate(streams(p)):
        for i in stream:
            if isinstance(i, kind):
                channel = (g, i.peer) if kind is Send else (i.peer, g)
                result.setdefault(channel, []).append((i.value, i.stage, i.micro_batches))
    return result


def test_a_value_that_stays_on_its_rank_needs_no_transfer() -> None:
    p = small(
        pipe="pipe main { stage s on rank 0 micro_batches N }", rule1="F(s, m) at s + 9*m", rule2="B(s, m) at 5 - s + 9*m"
    )
    assert not any(isinstance(i, Send | Recv) for stream in streams(p) for i in stream)
    assert streams(p)[1] == []


@given(schedules())
@examples(40)
def test_both_ends_of_a_channel_have_the_same_order(source: str) -> None:
    p = compile_text(source).program
    assert messages(p, Send) == messages(p, Recv)


def test_the_allowance_bounds_the_number_of_posted_values() -> None:
    """Rank 1 runs all forwards first. ahead: the allowance, the most values of a channel that are posted and not yet read."""
    compiled = compile_text(text(rule1="F(s, m) at s + m", rule2="B(s, m) at 100 - s + m"), {"N": 8})
    for ahead in (1, 2, 3, 8):
        complete = insert(compiled.ordered.program, [transfers(compiled.ordered.program, compiled.timing, ahead=ahead)])
        unread = largest = 0
        for i in complete.stream(1):
            if isinstance(i, Recv) and i.value == "act":
                unread += 1
            elif i.op == "FWD":
                unread -= 1
            largest = max(largest, unread)
        assert largest == ahead
    assert peaks(compiled.program).receive_buffers[1] == 8  # a received act is held until its backward


def without_the_rule_for_windows(compiled: Compiled) -> Program:
    """Return the program as it is lowered for a window that is never full, with the schedule's own window in its header."""
    unbounded = compiled.ordered.program.with_header(window=NEVER_FULL)
    sync, collectives = gradient_sync(compiled.ordered.program, compiled.timing, compiled.spec.sync)
    complete = insert(replace(unbounded, collectives=collectives), [transfers(unbounded, compiled.timing), sync])
    program = widen(complete, 1)
    return program.with_header(window=compiled.program.header.window)


FORCED = """schedule forced     # 6 values are sent each way before any value is read; the default window is 2
ranks 2   stages 2
pipe a { stage s on rank s       micro_batches 6 }
pipe b { stage s on rank 1 - s   micro_batches 6 }
order ticks {
    F(s, m) at 10*s + m
    B(s, m) at 90 - 10*s + m
}
"""


def test_the_window_posts_a_receive_earlier_than_the_allowance_permits() -> None:
    compiled = compile_text(FORCED)
    verify(compiled.program)
    assert findings_of_call(verify, without_the_rule_for_windows(compiled))[0].code == "E440"
    # RECVs 0 .. 3 are among the forwards of stage 0, because SEND k + 2 waits for RECV k.
    stream = compiled.program.stream(0)
    first_read = next(k for k, i in enumerate(stream) if i.op == "FWD" and i.pipe == 1)
    assert sum(isinstance(i, Recv) for i in stream[:first_read]) >= 4


def test_a_larger_window_posts_no_receive_earlier() -> None:
    compiled = compile_text(FORCED.replace("order", "window 6\norder"))
    assert verify(without_the_rule_for_windows(compiled))
    stream = compiled.program.stream(0)
    first_read = next(k for k, i in enumerate(stream) if i.op == "FWD" and i.pipe == 1)
    assert sum(isinstance(i, Recv) and i.value == "act" for i in stream[:first_read]) == AHEAD


@given(st.integers(1, 9), st.integers(0, 4))
def test_the_rule_for_windows_is_needed_exactly_where_the_allowance_does_not_reach(count: int, window: int) -> None:
    """AHEAD RECVs are posted at the start, and the window allows `window` more SENDs. Only further SENDs need the rule."""
    source = FORCED.replace("order", f"window {window}\norder").replace("micro_batches 6", f"micro_batches {count}")
    compiled = compile_text(source)
    assert not findings(compiled.program)
    codes = {d.code for d in findings(without_the_rule_for_windows(compiled))}
    assert codes == ({"E440"} if count > window + AHEAD else set())


def test_tasks_keep_their_order() -> None:
    compiled = compile_text(FORCED)
    for g in range(2):
        assert list(tasks(compiled.program.stream(g))) == list(compiled.ordered.program.stream(g))


# A message takes 2, and a forward 1. So rank 0 sends a third value before rank 1 has ended the forward that reads the first.
SLOW = text(
    extra="cost F = 1, B = 2, hop = 2",
    rule1="F(s, m) at s + m",
    rule2="B(s, m) at 100 - s + m",
    param="param D = 4   param N = 12",
)


def makespan_without_window(p: Program) -> int:
    """Return the makespan if SENDs need not wait."""
    return simulate(p.with_header(window=NEVER_FULL)).makespan


def test_a_receive_is_posted_by_the_time_of_its_send() -> None:
    compiled = compile_text(SLOW)
    ends = int(compiled.timing.end.max())
    assert simulate(compiled.program).makespan == ends == 57
    # Compiled with a hop of 0, a program need not post a RECV by the time of its SEND, and posts some later.
    late = compile_text(SLOW.replace("hop = 2", "hop = 0")).program
    assert simulate(late, {"hop": 2}).makespan == 62
    assert max(peaks(compiled.program).receive_buffers) == max(peaks(late).receive_buffers) + 1 == 15


def test_a_limit_of_receive_buffers_is_kept() -> None:
    limited = compile_text(SLOW + "limit receive_buffers <= 14\n").program
    assert simulate(limited).makespan == 62 and max(peaks(limited).receive_buffers) == 14
    assert streams(limited) == streams(compile_text(SLOW.replace("hop = 2", "hop = 0")).program)


@given(costed_listings() | schedules())
@examples(60)
def test_no_receive_delays_a_program(source: str) -> None:
    """These schedules do not limit their receive buffers. So only a full window can make a program slower than its order."""
    compiled = compile_text(source)
    assert makespan_without_window(compiled.program) == compiled.timing.end.max()


@pytest.mark.parametrize(("window", "makespan"), [(0, 14), (1, 22), (2, 16), (3, 14)])
def test_a_full_window_delays_a_send(window: int, makespan: int) -> None:
    """Three values are computed within a hop of 3. With a window of 2 the SEND of the third one waits from 3 to 4, until the
    first one has arrived. With a window of 0 a SEND waits until its RECV is posted. Here every RECV is posted before its SEND.
    """
    source = text(
        extra=f"window {window}  cost F = 1, B = 1, hop = 3", rule1="F(s, m) at s + m", rule2="B(s, m) at 100 - s + m"
    )
    p = compile_text(source).program
    assert (simulate(p).makespan, makespan_without_window(p)) == (makespan, 14)
