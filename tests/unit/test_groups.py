"""Groups of micro-batches that one task computes, in `order ticks`, and the statement `size`."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from chimerac.chimera_ir.instructions import Fwd, Recv, Send
from chimerac.chimera_ir.model import Layer, ModelDescription, Tensor
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.verify import peaks
from tests.effort import examples
from tests.helpers import streams
from tests.helpers_reference import find_error
from tests.helpers_text import findings_of, small

LATE = "B(s, m) at 90 + 2*D - 1 - s + 2*m"  # all backwards are after all forwards


def groups(p: Program, rank: int = 0) -> list[tuple[int, ...]]:
    """Return the micro-batches of each forward of a rank, in order."""
    return [i.micro_batches for i in p.stream(rank) if isinstance(i, Fwd)]


def test_a_formula_may_place_groups() -> None:
    p = small({"N": 5}, rule1="F(s, m = 2*g .. 2*g + 1) at s + 2*m", rule2=LATE)
    assert groups(p, 0) == groups(p, 1) == [(0, 1), (2, 3), (4,)]  # the last group is cut off after micro-batch 4
    assert not find_error(p)
    # m is the first micro-batch of the group, g its number.
    by_number = small({"N": 5}, rule1="F(s, m = 2*g .. 2*g + 1) at s + 4*g", rule2=LATE)
    assert streams(by_number) == streams(p)
    descending = small({"N": 4}, rule1="F(s, m = 2*g .. 2*g + 1) at s - 4*g", rule2="B(s, m) at 90 + 2*D - 1 - s - 2*m")
    assert groups(descending) == [(2, 3), (0, 1)]


def test_a_range_of_groups_may_use_the_index_of_the_pipe() -> None:
    text = """schedule x  param D = 2  ranks D  stages D
    pipe down[i in 0 .. 1] { stage s on rank s   micro_batches 6 }
    order ticks {
        F down[i](s, m = (2 + i)*g .. (2 + i)*g + 1 + i) at 20*i + m + s
        B down[i](s, m) at 100 + 20*i + m - s
    }"""
    assert groups(compile_text(text).program) == [(0, 1), (2, 3), (4, 5), (6, 7, 8), (9, 10, 11)]


def test_a_range_of_groups_cannot_use_a_let_of_the_order() -> None:
    wrong, _ = findings_of({"N": 4}, rule1="let k = 2  F(s, m = k*g .. k*g + 1) at s + 2*m", rule2=LATE)
    assert (wrong.code, wrong.message) == ("E201", "unknown name 'k'")
    assert wrong.help.endswith("it cannot use a let of the order: put the let above the order")


def test_groups_of_different_sizes() -> None:
    # The groups are 0 | 1 2 | 3 4 5 | ...
    p = small({"N": 6}, rule1="F(s, m = g*(g + 1)//2 .. g*(g + 3)//2) at s + 2*m", rule2=LATE)
    assert groups(p) == [(0,), (1, 2), (3, 4, 5)]
    mixed = small({"N": 4}, rule1="F(s, m = 2*g .. 2*g + 1) when m >= 2 at s + 2*m   F(s, m) when m < 2 at s + 2*m", rule2=LATE)
    assert groups(mixed) == [(0,), (1,), (2, 3)]
    assert not find_error(mixed)


def test_groups_on_one_stage_and_single_tasks_on_the_other() -> None:
    for grouped_stage, single_stage in ((0, 1), (1, 0)):
        p = small(
            {"N": 4},
            rule1=f"F(s, m = 2*g .. 2*g + 1) when s == {grouped_stage} at 2*s + 4*m\n"
            f"F(s, m) when s == {single_stage} at 2*s + 4*m",
            rule2=LATE,
        )
        assert groups(p, grouped_stage) == [(0, 1), (2, 3)] and groups(p, single_stage) == [(m,) for m in range(4)]
        assert not find_error(p)
        sent = [i.micro_batches for i in p.stream(0) if isinstance(i, Send)]
        assert sent == [i.micro_batches for i in p.stream(1) if isinstance(i, Recv)] == groups(p, 0)


def test_backwards_may_be_grouped() -> None:
    p = small({"N": 4}, rule2="B(s, m = 2*g .. 2*g + 1) at 90 + 2*D - 1 - s + 2*m")
    assert [i.micro_batches for i in p.stream(0) if i.op == "BWD"] == [(0, 1), (2, 3)]
    assert not find_error(p)
    assert simulate(p).busy == (12, 12)  # as without groups: four forwards of 1 and four backwards of 2


def test_a_group_has_micro_batches_of_one_pipe() -> None:
    p = small(
        {"N": 2},
        pipe="pipe a[i in 0 .. 1] { stage s on rank if i == 0 then s else D - 1 - s   micro_batches N + i }",
        rule1="F a[j](s, m = 2*g .. 2*g + 1) at 20*j + s + 4*m",
        rule2="B a[j](s, m) at 90 + 20*j + 2*D - 1 - s + 2*m",
    )
    assert groups(p) == [(0, 1), (2, 3), (4,)]  # pipe a[0] has two micro-batches, a[1] has three
    assert not find_error(p)


def test_wrong_ranges_of_groups_are_refused() -> None:
    for rule, code in (
        ("F(s, m = g .. g + 1) at s + 2*m", "E302"),  # micro-batch 1 is in two groups
        ("F(s, m = 2*g .. 2*g) at s + 2*m", "E301"),  # micro-batch 1 is in no group
        ("F(s, m = 2*g .. 2*g - 1) at s + 2*m", "E301"),  # all groups are empty
        ("F(s, m = g - 1 .. g) at s + 2*m", "E301"),  # the first group begins before micro-batch 0
        ("F(s, m = 0 .. 1) at s", "E202"),  # no name numbers the groups
        ("F(s, m = 2*N .. 2*D) at s", "E202"),  # here neither: N and D are parameters
        ("F(s, m = 2*g .. 2*g + k) at s", "E201"),  # only one new name may be used
        ("F(s, m = 2*s .. 2*s + g) at s", "E207"),  # s is the stage, and cannot number the groups
    ):
        assert findings_of(rule1=rule, rule2=LATE)[0].code == code, rule


def test_the_groups_that_hold_one_micro_batch_are_counted() -> None:
    for numbers, message in (
        ("g .. g + 1", "2 groups hold F of pipe main, stage 0, micro-batch 1"),
        ("0 .. g", "4 groups hold F of pipe main, stage 0, micro-batch 0"),
    ):
        assert findings_of({"N": 4}, rule1=f"F(s, m = {numbers}) at s + 2*m", rule2=LATE)[0].message == message


def test_longer_groups_are_suggested_if_they_leave_out_no_micro_batch() -> None:
    for rule, expected in (
        ("m = 3*g .. 3*g + 1", "the groups leave out m = 2, 5: write m = 3*g .. 3*g + 2"),
        ("m = 2*g .. 2*g", "the groups leave out m = 1, 3, 5: write m = 2*g .. 2*g + 1"),
        ("m = 9*g .. 3", "the groups leave out m = 4, 5: write m = 9*g .. 5"),
        ("m = 2*g + 1 .. 2*g + 2", "the groups leave out m = 0"),
        ("m = g*g .. g*g", "the groups leave out m = 2, 3, 5"),
        # A longer range would exceed the limit of values.
        (f"m = 3*g .. 3*g + 1 + {2**61 - 16} * (g // 5)", "the groups leave out m = 2, 5"),
    ):
        [d, *_] = findings_of({"N": 6}, rule1=f"F(s, {rule}) at s + 20*g", rule2="B(s, m) at 1000 - s + 2*m")
        assert (d.code, d.help, d.label) == ("E301", expected, "these groups")
        if ": write " in expected:
            longer = expected.split(": write ")[1]
            assert small({"N": 6}, rule1=f"F(s, {longer}) at s + 20*g", rule2="B(s, m) at 1000 - s + 2*m")


# --- the statement `size` ---------------------------------------------------------------------------------------------


def test_a_size_is_kept_in_the_program_and_wrong_ones_are_refused() -> None:
    assert small(extra="size 1/2").header.micro_batch_size == (1, 2)
    assert small(extra="size 3/1").header.micro_batch_size == (3, 1)
    assert small().header.micro_batch_size == (1, 1)
    for size in ("0/1", "1/0", "100000/1"):
        assert findings_of(extra=f"size {size}")[0].code == "E211"
    assert findings_of(extra="size 1/2 size 1/2")[0].code == "E208"
    assert findings_of(extra="size D/2")[0].code == "E102"


# --- memory -----------------------------------------------------------------------------------------------------------


BETWEEN, OUTPUT = (Tensor((4,), "float32", gradient=True),), (Tensor((1,), "float32", gradient=True),)
TOY = ModelDescription(
    name="toy",
    samples=2,
    layers=(
        Layer("first", parameters=100, weight_bytes=400, kept_bytes=50, weight_kept_bytes=20, boundary=BETWEEN, cost=1),
        Layer("second", parameters=10, weight_bytes=40, kept_bytes=40, weight_kept_bytes=3, boundary=OUTPUT, cost=1),
    ),
)


def test_the_memory_of_groups_and_recomputation() -> None:
    """Six micro-batches, all alive on both ranks before the first backward."""

    def bytes_of(forward_rule: str, recompute: str = "") -> list[int]:
        p = small(
            {"N": 6}, pipe=f"pipe main {{ stage s on rank s {recompute} micro_batches N }}", rule1=forward_rule, rule2=LATE
        )
        assert peaks(p).activations == (6, 6)
        return [m.activations for m in memory(p, TOY)]

    single, double = "F(s, m) at s + 2*m", "F(s, m = 2*g .. 2*g + 1) at s + 2*m"
    assert bytes_of(single) == bytes_of(double) == [6 * 50, 6 * 40]
    # A forward then keeps nothing: the input of stage 1 counts as a value. A backward recomputes one micro-batch.
    assert bytes_of(single, "recompute") == bytes_of(double, "recompute") == [50, 40]


# --- arbitrary groups -------------------------------------------------------------------------------------------------

STARTS = st.sampled_from(["g", "2*g", "3*g", "4 - g", "4 - 2*g", "g + 1", "g // 2", "g % 2", "0*g", "2"])
ENDS = st.sampled_from(["low", "low + 1", "low + 2", "low - 1", "3", "g", "2*g"])


@examples(200)
@given(STARTS, ENDS, st.integers(1, 6), st.sampled_from(["rule1", "rule2"]))
@example("4 - 2*g", "low", 6, "rule1")
@example("0*g", "3", 6, "rule1")
def test_groups_are_accepted_if_and_only_if_each_micro_batch_is_in_exactly_one(
    start: str, end: str, micro_batches: int, grouped: str
) -> None:
    low, high = f"max({start}, 0)", end.replace("low", f"max({start}, 0)")
    assume("g" in start + end)  # otherwise nothing numbers the groups (E202)
    listed = []
    for g in range(micro_batches):  # g has these values; a group may be empty
        first, last = (eval(e, {"g": g, "max": max}) for e in (low, high))
        listed += range(first, min(last, micro_batches - 1) + 1)
    expected = {"E301"} if set(listed) != set(range(micro_batches)) else set()
    expected |= {"E302"} if len(set(listed)) < len(listed) else set()
    rules = {"rule1": "F(s, m) at s + 2*m", "rule2": LATE}
    rules[grouped] = rules[grouped].replace("(s, m)", f"(s, m = {low} .. {high})")
    if not expected:
        assert small({"N": micro_batches}, **rules)
    else:
        assert {d.code for d in findings_of({"N": micro_batches}, **rules)} == expected
