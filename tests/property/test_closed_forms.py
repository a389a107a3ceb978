"""GPipe, 1F1B, DAPPLE, Chimera and interleaved 1F1B against their published closed forms.

Letters: D ranks, N micro-batches, f pairs of pipes, v stages per rank, F and B the costs of a stage's forward and backward.
A unit of Chimera is a schedule of D micro-batches: k = N / D units follow each other. DAPPLE's policies A and B are policy=1
and policy=2 of the schedule.
Formulas with a citation are as published; the others are known consequences. Most times are compared with those of an
independent simulator (`measure`).
"""

# ruff: noqa: N803, N806 (letters as in the papers)

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textline import instruction_text
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.verify import peaks, verify
from tests.helpers import chimera_pairs, program, streams, with_streams
from tests.helpers_events import makespan

SIZES = [(D, k * D) for D in (2, 4, 8, 16) for k in (1, 2, 4)]
COSTS = [(1, 2), (1, 1), (2, 3), (10, 17)]  # F, B
HALF = Fraction(1, 2)
Formula = Callable[[int, int], int]  # of F and B


def measure(p: Program, F: int, B: int, hop: Fraction | int = 0) -> Simulation:
    """Return the simulation, after comparing its makespan with that of an independent simulator."""
    s = simulate(p, {"F": F, "B": B, "hop": hop})
    assert Fraction(s.makespan, s.scale) == makespan(p, {"FWD": F, "BWD": B}, hop)
    return s


def wall_bubble(p: Program, F: int, B: int, hop: Fraction | int = 0) -> Fraction:
    """Return the wall bubble. It must be the same on every rank."""
    s = measure(p, F, B, hop)
    assert len(set(s.wall_bubbles)) == 1
    assert s.bubble_ratio == pytest.approx(s.wall_bubbles[0] / s.makespan)  # idle over total
    return Fraction(s.wall_bubbles[0], s.scale)


def check(p: Program, bubble: Formula, busy: Formula, costs: Sequence[tuple[int, int]] = COSTS) -> None:
    """Check that the wall bubble is bubble(F, B) and the makespan busy(F, B) + bubble(F, B), for each (F, B) of `costs`."""
    for F, B in costs:
        assert wall_bubble(p, F, B) == bubble(F, B)
        assert simulate(p, {"F": F, "B": B}).makespan == busy(F, B) + bubble(F, B)


@pytest.mark.parametrize(("D", "N"), SIZES)
def test_gpipe_has_its_bubble_and_activations(D: int, N: int) -> None:
    p = program("gpipe", D=D, N=N)
    check(p, lambda F, B: (D - 1) * (F + B), lambda F, B: N * (F + B))
    assert peaks(p).activations == (N,) * D
    assert peaks(p).weight_copies == (1,) * D


@pytest.mark.parametrize("schedule", ["1f1b", "dapple"])
@pytest.mark.parametrize(("D", "N"), SIZES)
def test_1f1b_and_dapple_policy_a_have_their_bubble_and_activations(schedule: str, D: int, N: int) -> None:
    p = program(schedule, D=D, N=N)
    check(p, lambda F, B: (D - 1) * (F + B), lambda F, B: N * (F + B))
    # Warm-up min(D - r, N): DAPPLE (PPoPP'21), section 3.2, policy A.
    assert peaks(p).activations == tuple(min(D - r, N) for r in range(D))
    assert peaks(p).weight_copies == (1,) * D


def test_dapple_policy_a_has_the_order_of_1f1b() -> None:
    a, b = program("dapple", D=4, N=8, policy=1), program("1f1b", D=4, N=8)
    assert [a.stream(g) for g in range(4)] == [b.stream(g) for g in range(4)]


@pytest.mark.parametrize(("D", "N"), SIZES)
def test_dapple_policy_b_has_its_bubble_and_activations(D: int, N: int) -> None:
    p = program("dapple", D=D, N=N, policy=2)
    check(p, lambda F, B: (D - 1) * (F + B), lambda F, B: N * (F + B))
    # Warm-up min(2(D - r) - 1, N): DAPPLE, section 3.2, policy B.
    assert peaks(p).activations == tuple(min(2 * (D - r) - 1, N) for r in range(D))


@pytest.mark.parametrize(("D", "N", "policy_a", "policy_b"), [(4, 8, 17, 12), (8, 16, 41, 28)])
def test_dapple_policy_b_has_less_bubble_than_policy_a_if_messages_take_time(
    D: int, N: int, policy_a: int, policy_b: int
) -> None:
    assert wall_bubble(program("dapple", D=D, N=N, policy=1), F=1, B=2, hop=HALF) == policy_a
    assert wall_bubble(program("1f1b", D=D, N=N), F=1, B=2, hop=HALF) == policy_a
    assert wall_bubble(program("dapple", D=D, N=N, policy=2), F=1, B=2, hop=HALF) == policy_b


@pytest.mark.parametrize("schedule", ["chimera", "chimera_any"])
@pytest.mark.parametrize(("D", "N", "f"), [(D, N, f) for D, N in SIZES for f in chimera_pairs(D)])
def test_chimera_has_its_bubble_activations_and_weights(schedule: str, D: int, N: int, f: int) -> None:
    p, k = program(schedule, D=D, N=N, f=f), N // D
    costs = COSTS if D < 16 else COSTS[:2]
    # Direct concatenation: each additional unit adds (D/f - 2)(B - F).
    check(p, lambda F, B: (D // f - 2) * (B + (k - 1) * (B - F)), lambda F, B: N * (F + B), costs)
    # Equal costs: ratio (D - 2f) / (2fN + D - 2f), Li and Hoefler, SC'21, table 3.
    assert simulate(p, {"F": 1, "B": 1}).bubble_ratio == pytest.approx((D - 2 * f) / (2 * f * N + D - 2 * f))
    # Between D - D/(2f) + 1 and D activations (the same table), 2f copies of weights.
    activations = peaks(p).activations
    assert (min(activations), max(activations)) == (D - D // (2 * f) + 1, D)
    assert peaks(p).weight_copies == (2 * f,) * D
    assert {len(pipe.micro_batches) for pipe in p.header.pipes} == {N // (2 * f)}


@pytest.mark.parametrize("D", [2, 4, 8, 16])
def test_chimera_takes_the_time_of_its_performance_model_or_less_if_messages_take_time(D: int) -> None:
    """T = (F + hop) C_f + (B + hop) C_b with C_f = D, C_b = 2D - 2 at N = D (Li and Hoefler, SC'21, section 3.4)."""
    p = program("chimera", D=D)
    for F, B in COSTS:
        assert measure(p, F, B).makespan == D * F + (2 * D - 2) * B
    # The model counts a transfer after every task of the critical path, but tasks whose output stays on the rank need none.
    for hop in (HALF, Fraction(1, 10)):
        s = measure(p, 1, 2, hop)
        model = (1 + hop) * D + (2 + hop) * (2 * D - 2)
        assert D + 2 * (2 * D - 2) <= Fraction(s.makespan, s.scale) <= model  # at least the time without transfers


@pytest.mark.parametrize(("D", "f"), [(D, f) for D in (2, 4, 8, 16) for f in chimera_pairs(D)])
def test_chimera_has_its_makespan_at_one_unit(D: int, f: int) -> None:
    for F, B in COSTS:
        assert simulate(program("chimera", D=D, f=f), {"F": F, "B": B}).makespan == D * F + (D + D // f - 2) * B


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("D", "N"), SIZES)
def test_interleaved_has_its_bubble_activations_and_weights(D: int, N: int, v: int) -> None:
    p = program("interleaved", D=D, N=N, v=v)
    # A share is what a rank has of the model: v stages. With F and B as the costs of a share, the bubble is (D - 1)(F + B) / v:
    # Narayanan et al., SC'21, section 2.2. Here F and B are the costs of a stage, a v-th of those of a share.
    check(p, lambda F, B: (D - 1) * (F + B), lambda F, B: N * v * (F + B), COSTS[:2])
    # Rank 0 holds D (1 + (D - 1) / (Dv)) activations of a share, which are Dv + D - 1 of a stage. If there are fewer in all, it
    # holds all of them.
    activations = peaks(p).activations
    assert activations == tuple(min(v * D + D - 1 - 2 * r, N * v) for r in range(D))
    assert max(activations) == min(D * v + D - 1, N * v)
    assert peaks(p).weight_copies == (v,) * D


MAKESPANS = [  # schedule, parameters, F, B, makespan
    ("1f1b", {"D": 4, "N": 4}, 1, 2, 21),
    ("1f1b", {"D": 8, "N": 8}, 1, 2, 45),
    ("1f1b", {"D": 4, "N": 8}, 1, 2, 33),
    ("1f1b", {"D": 8, "N": 32}, 1, 2, 117),
    ("gpipe", {"D": 4, "N": 4}, 1, 2, 21),
    ("gpipe", {"D": 8, "N": 8}, 1, 2, 45),
    ("gpipe", {"D": 4, "N": 8}, 1, 2, 33),
    ("gpipe", {"D": 8, "N": 32}, 1, 2, 117),
    ("chimera", {"D": 4, "N": 4}, 1, 2, 16),
    ("chimera", {"D": 8, "N": 8}, 1, 2, 36),
    ("chimera", {"D": 4, "N": 8}, 1, 2, 30),
    ("chimera", {"D": 8, "N": 32}, 1, 2, 126),
    ("chimera", {"D": 4, "N": 4}, 1, 1, 10),
    ("chimera", {"D": 8, "N": 8}, 1, 1, 22),
    ("chimera", {"D": 8, "N": 32}, 1, 1, 70),
    ("chimera", {"D": 8, "N": 8, "f": 2}, 1, 2, 28),
    ("chimera", {"D": 8, "N": 8, "f": 4}, 1, 2, 24),
    ("interleaved", {"D": 4, "N": 8, "v": 2}, 1, 2, 57),
]


@pytest.mark.parametrize(("schedule", "parameters", "F", "B", "expected"), MAKESPANS)
def test_schedules_have_their_known_makespans(schedule: str, parameters: dict[str, int], F: int, B: int, expected: int) -> None:
    assert measure(program(schedule, **parameters), F, B).makespan == expected


# By D = N and number of pipes: the bubble ratio in percent.
BUBBLES = {16: {2: 36.8, 4: 20.0, 8: 7.7, 16: 0.0}, 32: {2: 38.5, 4: 22.6, 8: 11.1, 16: 4.0, 32: 0.0}}


@pytest.mark.parametrize(("D", "pipes"), [(D, pipes) for D, row in BUBBLES.items() for pipes in row])
def test_more_pipes_leave_less_bubble(D: int, pipes: int) -> None:
    s = simulate(program("chimera", D=D, f=pipes // 2), {"F": 1, "B": 2})
    assert round(100 * s.bubble_ratio, 1) == BUBBLES[D][pipes]


# By D = N and stage: the time at which both copies of the stage have their gradient.
GRADIENTS_DONE = {4: {3: 9, 2: 12, 1: 14, 0: 16}, 8: {7: 19, 6: 24, 5: 26, 4: 28, 3: 30, 2: 32, 1: 34, 0: 36}}


def check_gradients_done(p: Program, times: dict[int, int]) -> None:
    """Check the time when both copies of each stage have their gradient, and the ranks of those copies."""
    s = measure(p, 1, 2)
    assert s.gradients_done == {f"stage {stage}": time for stage, time in times.items()}
    for stage in times:
        assert {pipe.placement[stage] for pipe in p.header.pipes} == {stage, p.header.ranks - 1 - stage}


@pytest.mark.parametrize("D", GRADIENTS_DONE)
def test_gradients_of_chimera_are_done_at_known_times(D: int) -> None:
    check_gradients_done(program("chimera", D=D), GRADIENTS_DONE[D])


def test_gradients_of_a_late_stage_are_done_earlier_if_its_backward_goes_first() -> None:
    """Stage 6 is done at 21 instead of 24 if ranks 1 and 6 run its last backward before the first backward of stage 1."""
    p = program("chimera", D=8)
    changed = streams(p)
    for rank, late in ((6, "down[0] s6 m3"), (1, "up[0] s6 m7")):
        texts = [instruction_text(i, p.pipe_names) for i in changed[rank]]
        place = texts.index(f"BWD {late}")
        previous = max(k for k in range(place) if texts[k].startswith("BWD"))
        assert " s1 " in texts[previous]
        changed[rank][previous:previous] = [changed[rank].pop(place) for _ in range(2)]  # the task and its SEND
    exchanged = verify(with_streams(p, changed))
    check_gradients_done(exchanged, GRADIENTS_DONE[8] | {6: 21})
    assert simulate(exchanged).makespan == 36


def test_chimera_is_faster_than_1f1b_at_one_unit_and_slower_at_four() -> None:
    for N, chimera, one_f_one_b in ((8, 36, 45), (32, 126, 117)):  # N, and the makespans at D = 8
        assert simulate(program("chimera", D=8, N=N), {"F": 1, "B": 2}).makespan == chimera
        assert simulate(program("1f1b", D=8, N=N), {"F": 1, "B": 2}).makespan == one_f_one_b
