"""Closed forms of schedules with split backwards, groups, recomputation or several stages per rank, and of GEMS.

Letters: D ranks, N micro-batches, f pairs of pipes, v stages per rank, w waves; F, I, W the costs of the tasks of a stage.
B = I + W and the hop is 0 unless a test says otherwise. Most times are compared with those of an independent simulator
(`measure`).
"""

# ruff: noqa: N803, N806, E741 (letters as in the papers)

from __future__ import annotations

from fractions import Fraction

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.verify import peaks
from tests.helpers import chimera_pairs, program
from tests.helpers_events import makespan

SIZES = [(D, k * D) for D in (4, 8, 16) for k in (1, 2, 4)]
LONG = [(D, N) for D, N in SIZES if N >= 2 * D]
UNIT = (1, 1, 1)  # F, I, W
HALF, TENTH = Fraction(1, 2), Fraction(1, 10)


def measure(p: Program, costs: tuple[int, int, int] = UNIT, B: int | None = None, hop: Fraction | int = 0) -> Simulation:
    """Return the simulation, after comparing its makespan with that of an independent simulator.

    Args:
        costs: F, I, W.
        B: the cost of a full backward; None: I + W.
    """
    F, I, W = costs
    B = I + W if B is None else B
    s = simulate(p, {"F": F, "I": I, "W": W, "B": B, "hop": hop})
    assert Fraction(s.makespan, s.scale) == makespan(p, {"FWD": F, "BWD": B, "BWD_INPUT": I, "BWD_WEIGHT": W}, hop)
    return s


def wall_bubble(s: Simulation) -> Fraction:
    """Return the wall bubble. It must be the same on every rank."""
    assert len(set(s.wall_bubbles)) == 1
    return Fraction(s.wall_bubbles[0], s.scale)


def activation_range(p: Program) -> tuple[int, int]:
    """Return the minimum and the maximum over ranks of the peak number of activations."""
    return min(peaks(p).activations), max(peaks(p).activations)


# --- zero bubble: Qi et al., ICLR 2024 --------------------------------------------------------------------------------


@pytest.mark.parametrize(("D", "N"), SIZES)
def test_zb_h1_has_its_bubble_and_activations(D: int, N: int) -> None:
    p = program("zb_h1", D=D, N=N)
    for F, I, W in (UNIT, (2, 2, 1), (3, 4, 2), (2, 3, 2)):
        assert wall_bubble(measure(p, (F, I, W))) == (D - 1) * (F + I - W)
    assert activation_range(p) == (D, D)
    assert peaks(p).weight_copies == (1,) * D


@pytest.mark.parametrize(("D", "N"), LONG)
def test_zb_h2_has_its_bubbles_and_activations(D: int, N: int) -> None:
    p = program("zb_h2", D=D, N=N)
    for F, I, W in (UNIT, (2, 2, 1), (3, 4, 2), (2, 3, 2)):
        assert max(measure(p, (F, I, W)).own_bubbles) == (D - 1) * (F + I - 2 * W)
    assert wall_bubble(measure(p)) == wall_bubble(measure(program("zb_h1", D=D, N=N))) == D - 1
    assert activation_range(p) == (2 * D - 1, 2 * D - 1)


@pytest.mark.parametrize(("D", "N"), LONG)
def test_zb_v_has_no_own_bubble_and_its_activations(D: int, N: int) -> None:
    """The wall bubble is (D - 1)F/2, and there are D activations, for the F and the activations of a rank's share of the model.

    A stage is half of a share.
    """
    p = program("zb_v", D=D, N=N)
    s = measure(p)
    assert set(s.own_bubbles) == {0}
    assert wall_bubble(s) == D - 1
    assert activation_range(p) == (2 * D, 2 * D)
    assert peaks(p).weight_copies == (2,) * D


@pytest.mark.parametrize(("D", "least"), [(D, 2 * D - 1) for D in (1, 2, 4, 8)])
@pytest.mark.parametrize("schedule", ["zb_h2", "zb_v"])
def test_zero_bubble_schedules_have_no_own_bubble_at_their_least_number_of_micro_batches(
    schedule: str, D: int, least: int
) -> None:
    assert set(measure(program(schedule, D=D, N=least)).own_bubbles) == {0}
    with pytest.raises(ChimeraError) as caught:
        program(schedule, D=D, N=least - 1)
    assert caught.value.diagnostics[0].code == "E210"


# --- DualPipe: DeepSeek-V3, 2024 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("D", "N"), LONG)
def test_dualpipe_and_dualpipev_have_the_same_bubble(D: int, N: int) -> None:
    """The bubble is (D/2 - 1)(F&B + B - 3W), where F&B, the cost of an overlapped pair, is F + B if overlapping saves no time.

    DualPipeV on D/2 ranks has the same bubble.
    """
    p, v = program("dualpipe", D=D, N=N), program("dualpipev", D=D // 2, N=N)
    for F, I, W in (UNIT, (2, 2, 1), (3, 3, 2)):
        B = I + W
        bubble = (D // 2 - 1) * ((F + B) + B - 3 * W)
        assert wall_bubble(measure(p, (F, I, W))) == wall_bubble(measure(v, (F, I, W))) == bubble
    assert wall_bubble(measure(p)) == {4: 2, 8: 6, 16: 14}[D]  # the formula at F = I = W = 1, in numbers
    assert set(peaks(p).activations) == {D + 1}
    assert set(peaks(v).activations) == {D + 1}  # of stages that are half of a rank's share
    assert peaks(p).weight_copies == (2,) * D
    assert peaks(v).weight_copies == (2,) * (D // 2)


# --- bidirectional ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("D", "N"), SIZES)
def test_bitpipe_has_its_bubble_and_activations(D: int, N: int) -> None:
    p = program("bitpipe", D=D, N=N)
    s = measure(p, B=1)
    assert Fraction(s.wall_bubbles[0], s.makespan) == Fraction(D - 2, 4 * N + D - 2)
    assert wall_bubble(s) == D - 2
    assert max(peaks(p).activations) == 2 * D  # of stages that are half of a rank's share
    assert peaks(p).weight_copies == (4,) * D


@pytest.mark.parametrize(("D", "k"), [(D, k) for D in (4, 8, 16) for k in (1, 2, 4)])
def test_forward_doubling_has_its_bubble_and_activations(D: int, k: int) -> None:
    """N = 2kD: the bubble is 2(D - 2)F at B = 2F for every k. D = 4, N = 8: makespan 28."""
    p = program("chimera_doubling", D=D, N=2 * k * D)
    assert wall_bubble(measure(p)) == 2 * (D - 2)
    assert activation_range(p) == (D + 2, 2 * D)
    assert {len(i.micro_batches) for g in range(D) for i in p.stream(g) if i.op == "FWD"} == {2}
    assert {len(i.micro_batches) for g in range(D) for i in p.stream(g) if i.op == "BWD"} == {1}
    if (D, k) == (4, 1):
        assert simulate(p).makespan == 28


@pytest.mark.parametrize(("D", "k", "bubble"), [(4, 1, 6), (4, 2, 8), (8, 1, 18), (8, 2, 24)])
def test_forward_doubling_with_recomputation_has_its_bubble(D: int, k: int, bubble: int) -> None:
    """A backward takes 3F: 2F of its own, and F because it repeats the forward."""
    p = program("chimera_doubling", D=D, N=2 * k * D, again=1)
    s = measure(p)
    assert wall_bubble(s) == bubble
    assert set(s.busy) == {2 * k * D * (1 + 3)}


@pytest.mark.parametrize(("D", "k"), [(D, k) for D in (4, 8, 16) for k in (1, 2, 4)])
def test_backward_halving_has_its_bubble_and_activations(D: int, k: int) -> None:
    """kD whole micro-batches run as 2kD halves at half the cost.

    The bubble is (D - 2)F, and the peaks are (D + 2)/2 to D activations, for the F and the activations of a whole micro-batch.
    """
    p = program("chimera_halving", D=D, N=2 * k * D)
    s = measure(p)  # in units of a half's forward, which is F / 2
    assert wall_bubble(s) / 2 == D - 2
    assert activation_range(p) == (D + 2, 2 * D)  # halves
    assert p.header.micro_batch_size == (1, 2)
    if (D, k) == (4, 2):
        assert s.makespan == 52


@pytest.mark.parametrize(("D", "N"), SIZES)
def test_the_bubble_ratio_of_gems_approaches_its_limit(D: int, N: int) -> None:
    """At B = 2F the bubble ratio approaches (D - 1)/(D + 1/2) as N grows. It exceeds this limit by less than 1/(2N)."""
    p = program("gems", D=D, N=N)
    s = measure(p)
    limit = Fraction(D - 1) / (D + HALF)
    assert limit < Fraction(s.wall_bubbles[0], s.makespan) < limit + Fraction(1, 2 * N)
    assert activation_range(p) == (1, 1)
    assert peaks(p).weight_copies == (2,) * D


# --- several stages per rank ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("D", "N"), SIZES)
def test_looped_bfs_has_its_bubble_and_activations(D: int, N: int, v: int) -> None:
    """Bubble (D - 1)(F + B)/v with costs of a rank's share, so (D - 1)(F + B) with costs of a stage. Activations: N v."""
    p = program("looped_bfs", D=D, N=N, v=v)
    for F, I, W in (UNIT, (2, 3, 2)):
        assert wall_bubble(measure(p, (F, I, W))) == (D - 1) * (F + I + W)
    assert activation_range(p) == (N * v, N * v)


# By (D, w): the bubble, in units of F of a stage.
HANAYO = {
    (4, 1): 12,
    (8, 1): 28,
    (16, 1): 60,
    (4, 2): 13,
    (8, 2): 30,
    (16, 2): 66,
}


@pytest.mark.parametrize(("D", "w"), HANAYO)
def test_hanayo_has_its_bubble_and_activations(D: int, w: int) -> None:
    """At N = D and B = 2F the bubble is 2(D - 1)F/w for the F of a rank's share. For w = 2 it is up to 10 % more."""
    p = program("hanayo", D=D, w=w)
    bubble = wall_bubble(measure(p))
    assert bubble == HANAYO[D, w]
    share = 2 * w  # stages of a rank
    if w == 1:
        assert bubble / share == 2 * (D - 1)
    assert Fraction(2 * (D - 1), w) <= bubble / share <= Fraction(2 * (D - 1), w) * Fraction(11, 10)
    assert max(peaks(p).activations) == D * share


# --- bidirectional with split backward --------------------------------------------------------------------------------


def lower_bound(p: Program, costs: tuple[int, int, int] = UNIT) -> int:
    """Return a lower bound on the makespan of any order with these placements at hop 0.

    It is the maximum over ranks of the earliest start plus the costs of all tasks of the rank. A rank can start when the first
    micro-batch of a pipe has passed the stages before the rank's first stage in this pipe. No wait for other ranks is
    added after the last task, because that task can be a weight gradient.

    Args:
        costs: F, I, W.
    """
    bounds = []
    for rank in range(p.header.ranks):
        # (stage, number of micro-batches)
        stages = [(s, len(pipe.micro_batches)) for pipe in p.header.pipes for s, r in enumerate(pipe.placement) if r == rank]
        earliest_start = min(s for s, count in stages if count) * costs[0]
        bounds.append(earliest_start + sum(count for _, count in stages) * sum(costs))
    return max(bounds)


def must_reach_the_bound(D: int, N: int, f: int) -> bool:
    """Return whether the greedy order of chimera_zb must reach the lower bound, so that MISSED may not have this size."""
    return N == D or (D in (4, 6, 8, 16) if f == 1 else D <= 16)


# The sizes (D, N, f) at which chimera_zb does not reach the bound, and by how much its makespan exceeds the bound.
MISSED = {
    (10, 20, 1): 1, (10, 40, 1): 1, (12, 24, 1): 2, (12, 48, 1): 2,
    (32, 64, 1): 4, (32, 128, 1): 4, (32, 64, 2): 2, (32, 128, 2): 4,
}  # fmt: skip
BIDIRECTIONAL = [(D, k * D, f) for D in (2, 4, 6, 8, 10, 12, 16, 32) for f in chimera_pairs(D) for k in (1, 2, 4)]


@pytest.mark.parametrize(("D", "N", "f"), BIDIRECTIONAL)
def test_chimera_zb_reaches_the_lower_bound_or_misses_it_by_a_known_amount(D: int, N: int, f: int) -> None:
    """At F = I = W and hop 0 the bound leaves only the bubble until the first micro-batch arrives, (D/(2f) - 1)F."""
    p = program("chimera_zb", D=D, N=N, f=f)
    s = measure(p) if D < 32 else simulate(p)
    assert lower_bound(p) == 3 * N + D // (2 * f) - 1
    excess = MISSED.get((D, N, f), 0)
    assert s.makespan - lower_bound(p) == excess
    assert not (excess and must_reach_the_bound(D, N, f))
    assert max(peaks(p).activations) == D
    assert peaks(p).weight_copies == (2 * f,) * D


@pytest.mark.parametrize("D", [4, 8, 16])
def test_chimera_zb_has_half_of_the_bubble_of_dualpipe(D: int) -> None:
    """At hop 0 and N = 2D the bubble is half of that of DualPipe, with one activation less."""
    chimera_zb, dualpipe = (program(name, D=D, N=2 * D) for name in ("chimera_zb", "dualpipe"))
    assert 2 * wall_bubble(measure(chimera_zb)) == wall_bubble(measure(dualpipe))
    assert max(peaks(chimera_zb).activations) == max(peaks(dualpipe).activations) - 1


def fill_bound(D: int, hop: Fraction | int) -> Fraction:
    """Return a lower bound on the wall bubble of two pipes with at most D activations on a rank, F = I = W = 1.

    A middle rank's first task starts after D/2 - 1 forwards and transfers. Its first backward starts at least D tasks and
    D - 1 transfers later. In between the rank can run D forwards at most.
    """
    return (D // 2 - 1) * (1 + Fraction(hop)) + (D - 1) * hop


@pytest.mark.parametrize("hop", [0, TENTH, HALF])
@pytest.mark.parametrize(("D", "k"), [(D, k) for D in (2, 4, 6, 8, 16) for k in (1, 2, 5)] + [(32, 2)])
def test_the_bubble_of_chimera_fill_does_not_grow_with_the_micro_batches(D: int, k: int, hop: Fraction | int) -> None:
    """The bubble does not grow with N, and exceeds the lower bound by (D/2 - 1) transfers. At hop 0 it is the bound."""
    p = program("chimera_fill", D=D, N=k * D)
    bubble = wall_bubble(measure(p, hop=hop) if D * k <= 40 else simulate(p, {"hop": hop}))
    assert bubble == D // 2 - 1 + (2 * D - 3) * hop == fill_bound(D, hop) + (D // 2 - 1) * hop
    assert max(peaks(p).activations) == D
    assert peaks(p).weight_copies == (2,) * D


@pytest.mark.parametrize("D", [2, 4, 6, 8, 12])
def test_a_unit_that_is_not_full_costs_chimera_fill_few_transfers(D: int) -> None:
    """A unit of fewer micro-batches than the others costs nothing at hop 0, and at most D/2 transfers otherwise.

    With an odd N one pipe has a micro-batch less. This costs at most 2F and D transfers more.
    """
    for N in range(D, 3 * D + 1):
        p = program("chimera_fill", D=D, N=N)
        left_over = (N + 1) // 2 % (D // 2)  # micro-batches of the first pipe in the smaller unit, 0 if there is none
        for hop in (0, TENTH, HALF):
            s = simulate(p, {"hop": hop})
            bubble = Fraction(s.makespan, s.scale) - 3 * N
            full = D // 2 - 1 + (2 * D - 3) * hop
            odd = 2 + D * hop if N % 2 else 0
            assert fill_bound(D, hop) <= bubble <= full + 2 * min(left_over, D // 4) * hop + odd
        assert max(peaks(p).activations) <= D


RANKING = [  # D = 8, F = I = W = 1: schedule, N, and the largest wall bubble of a rank at hop 0, 0.1 F and 0.3 F
    ("chimera_zb", 32, 3, 112 * TENTH, 276 * TENTH),
    ("zb_h1", 32, 7, 98 * TENTH, 154 * TENTH),
    ("zb_h2", 32, 7, 77 * TENTH, 91 * TENTH),
    ("chimera_fill", 32, 3, 43 * TENTH, 69 * TENTH),
    ("1f1b", 32, 21, 278 * TENTH, 414 * TENTH),
    ("chimera_zb", 8, 3, 49 * TENTH, 87 * TENTH),
    ("zb_h1", 8, 7, 96 * TENTH, 148 * TENTH),
]


@pytest.mark.parametrize(("schedule", "N", "bubble_0", "bubble_01", "bubble_03"), RANKING)
def test_transfers_change_the_ranking(schedule: str, N: int, bubble_0: int, bubble_01: Fraction, bubble_03: Fraction) -> None:
    """Orders planned for hop 0 are simulated with this hop and with larger ones.

    At N = 32 chimera_zb is one of the two best at hop 0, and the fourth at both other hops.
    """
    p = program(schedule, D=8, N=N)
    for hop, bubble in ((0, bubble_0), (TENTH, bubble_01), (3 * TENTH, bubble_03)):
        s = measure(p, hop=hop)
        assert Fraction(max(s.wall_bubbles), s.scale) == bubble


@pytest.mark.parametrize(("D", "bubble_01", "bubble_05"), [(4, 36 * TENTH, 6), (8, 82 * TENTH, 13)])
def test_an_order_planned_for_a_small_hop_does_not_lose_more_with_more_micro_batches(
    D: int, bubble_01: Fraction, bubble_05: Fraction
) -> None:
    """The order is planned for a hop of F/20.

    Args:
        bubble_01, bubble_05: the bubbles at hop 0.1 F and 0.5 F, for both N.
    """
    for N in (4 * D, 8 * D):
        p = program("chimera_zb", D=D, N=N, F=20, hop=1)
        for hop, bubble in ((TENTH, bubble_01), (HALF, bubble_05)):
            assert wall_bubble(measure(p, hop=hop)) == bubble


def test_an_order_planned_for_a_hop_differs() -> None:
    """The scheduler plans for the given hop: its order for hop 1 is the faster one at hop 1, and the slower one at hop 0."""
    for_hop_0, for_hop_1 = program("chimera_zb", D=8, N=32), program("chimera_zb", D=8, N=32, hop=1)
    assert measure(for_hop_1, hop=1).makespan < measure(for_hop_0, hop=1).makespan
    assert measure(for_hop_0).makespan < measure(for_hop_1).makespan
