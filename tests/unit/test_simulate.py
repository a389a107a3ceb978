"""The simulated times on each machine (docs/semantics.md, "Times"), and which costs, sizes and machines are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Machine
from chimerac.chimera_ir.textform import program_from_text
from chimerac.compiler import compile_schedule, compile_text, simulate
from chimerac.compiler.verify import verify
from tests.helpers import program
from tests.helpers_by_hand import three
from tests.helpers_events import makespan
from tests.proof.drawn import MACHINES

# --- machines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "window", "expected"),
    [
        ("posted", 2, 16),  # acts sent at 1, 2, 3, received at 5, 6, 7; grads sent at 7, 9, 11, the last received at 15
        ("window", 2, 16),  # the third SEND waits for the first transfer, until 5; its value still arrives in time
        ("window", 1, 22),  # acts sent at 1, 5, 9, so the RECVs of the grads are posted at 9; grads sent at 9, 13, 17
        ("window", 0, 16),  # every RECV is posted before its SEND
        ("rendezvous", 2, 16),
        ("paired", 2, 26),  # one transfer after another: acts received at 5, 9, 13, and grads at 17, 21, 25
        ("serial", 2, 26),
        ("paired", 0, 32),  # a rank also waits for the transfer of every SEND: until 5, 10, 15, and 19, 25, 31
    ],
)
def test_makespans_computed_by_hand(machine: Machine, window: int, expected: int) -> None:
    p = three(machine, window)
    assert simulate(p).makespan == makespan(p) == expected


WITH_ALL_REDUCES = """chimera-program 1
schedule held
sizes width=1 ranks=3 stages=2 micro_batches=3 window=2 machine={machine} kind=training micro_batch_size=1/1
costs FWD=1 BWD=1 BWD_INPUT=1 BWD_WEIGHT=1 hop=1
pipe a on 0 0 micro_batches 0 1
pipe b on 1 2 micro_batches 2
rank 0:
  FWD a s0 m0; FWD a s1 m0; FWD a s0 m1; FWD a s1 m1; BWD a s1 m0; BWD a s1 m1; ALLREDUCE s1 over 0,2
  BWD a s0 m0; BWD a s0 m1; ALLREDUCE s0 over 0,1
rank 1:
  FWD b s0 m2; SEND act b s1 m2 -> 2; RECV grad b s0 m2 <- 2
  BWD b s0 m2; ALLREDUCE s0 over 0,1
rank 2:
  RECV act b s1 m2 <- 1
  FWD b s1 m2; BWD b s1 m2; ALLREDUCE s1 over 0,2; SEND grad b s0 m2 -> 1
"""


@pytest.mark.parametrize(("machine", "start"), [("posted", 5), ("window", 5), ("rendezvous", 5), ("paired", 5), ("serial", 7)])
def test_a_collective_in_the_queue_delays_the_operations_after_it(machine: Machine, start: int) -> None:
    """The all-reduce of stage 1 is launched by rank 2 at 4, and by rank 0 at 6. On `serial` rank 2 sends the grad only at 6.

    Args:
        start: when the backward that needs this grad starts.
    """
    p = verify(program_from_text(WITH_ALL_REDUCES.format(machine=machine)))
    s = simulate(p)
    (row,) = (row for row in range(len(p)) if p.text(row) == "BWD b s0 m2")
    assert s.timeline.start[row] == start and s.makespan == makespan(p) == 8


def test_a_compiled_program_has_the_times_of_the_machine_it_is_arranged_for() -> None:
    expected = {"posted": 39, "window": 39, "rendezvous": 39, "paired": 40, "serial": 41}  # halves of a unit
    for machine in MACHINES:
        s = simulate(compile_schedule("chimera", {"D": 4}, machine=machine, arrange=True).program, {"hop": 0.5})
        assert (s.makespan, s.scale) == (expected[machine], 2)


# --- costs --------------------------------------------------------------------------------------------------------------

P = program("chimera", D=2)


@pytest.mark.parametrize(
    "tenth", [0.1, Fraction(1, 10), Decimal("0.1"), np.float64(0.1), np.float32(0.1), np.float16(0.1), np.longdouble("0.1")]
)
def test_a_tenth_is_exact_in_each_type_of_number(tenth: Any) -> None:
    s = simulate(P, {"hop": tenth, "F": np.int64(1)})
    assert (s.scale, s.costs.hop, s.costs.FWD) == (10, 1, (10, 10))
    assert s.makespan == simulate(P, {"hop": Fraction(1, 10)}).makespan


def test_a_float_with_many_digits_has_its_written_value() -> None:
    s = simulate(P, {"hop": 0.1 + 0.2})
    assert Fraction(s.costs.hop, s.scale) == Fraction("0.30000000000000004")
    assert simulate(P, {"hop": 1e-5}).scale == 100_000


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"hop": float("nan")}, "cost hop=nan: expected a number like 2, 0.5 or 1/3"),
        ({"F": float("inf")}, "cost F=inf: expected a number"),
        ({"F": -1}, "cost F=-1: expected a number"),
        ({"F": -0.5}, "cost F=-0.5: expected a number"),
        ({"F": True}, "cost F=True: expected a number"),
        ({"F": np.bool_(True)}, "cost F=np.True_: expected a number"),
        ({"F": "0.5"}, "cost F='0.5': expected a number"),
        ({"F": None}, "cost F=None: expected a number"),
        ({"F": 1j}, "cost F=1j: expected a number"),
        ({"F": Decimal("nan")}, r"cost F=Decimal\('NaN'\): expected a number"),
        ({"F": Decimal("1e999999999")}, r"cost F=Decimal\('1E\+999999999'\): expected a number"),
        ({"F": np.array([1, 2])}, r"cost F=array\(\[1, 2\]\): expected a number"),
        ({"F": 1e300}, "cost F=1e\\+300: a cost is at most 1099511627776"),
        ({"F": 10**5000}, "cost F=a number of 5001 digits: a cost is at most"),
        ({"F": Fraction(10**5000, 3)}, "cost F=a Fraction with a huge number: a cost is at most"),
        ({"F": [10**5000]}, "cost F=a list with a huge number: expected a number"),
        ({"F": 1e-300}, "cost F=1e-300: a part this small is lost when times are added up"),
        ({"F": 2.0**40, "hop": Fraction(1, 2**40)}, "as multiples of 1/1099511627776, times exceed"),
        ({"F": Fraction(1, 2**60 + 1), "hop": Fraction(1, 2**60)}, r"as multiples of 1/1\.3e\+36, times exceed"),
        ({"f": 1}, "cost f=1: there is no cost 'f'"),
        ({1: 1}, "costs are given by name, and 1 is no name"),
        ([("F", 1)], "costs are given by name, as in"),
        (0.5, "costs are given by name, as in"),
    ],
)
def test_an_invalid_cost_is_a_finding(costs: Any, message: str) -> None:
    with pytest.raises(ChimeraError, match=f"^E002: {message}"):
        simulate(P, costs)


@pytest.mark.parametrize("value", [4.0, np.float64(4), Decimal(4), Fraction(4), "4", None, True, np.bool_(True), float("nan")])
def test_a_size_that_is_no_integer_is_refused(value: Any) -> None:
    with pytest.raises(ChimeraError, match=r"E002: parameter D is .*: expected an integer"):
        compile_schedule("chimera", {"D": value})
    with pytest.raises(ChimeraError, match=r"E002: width is .*: expected an integer"):
        compile_schedule("chimera", {"D": 4}, width=value)


def test_integers_of_numpy_are_accepted() -> None:
    compiled = compile_schedule("chimera", {"D": np.int64(4)}, width=np.int32(2))
    assert compiled.program == program("chimera", D=4, width=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parameters": {"D": 10**5000}}, "E002: parameter D is a number of 5001 digits: that is too large"),
        ({"parameters": {2: 4}}, "E002: parameters are given by name, and 2 is no name"),
        ({"parameters": 4}, "E002: parameters are given by name, as in {'N': 4}, and not as 4"),
        ({"parameters": {"D": 4}, "machine": "windows"}, "E002: machine is 'windows': there is none of that name"),
        ({"parameters": {"D": 4}, "machine": None}, "E002: machine is None"),
        ({"parameters": {"D": 4}, "machine": 10**5000}, "E002: machine is a number of 5001 digits"),
    ],
)
def test_invalid_parameters_and_machines_are_findings(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ChimeraError, match=message):
        compile_schedule("chimera", **given)


def test_the_parameters_of_a_text_are_checked_like_those_of_a_file() -> None:
    with pytest.raises(ChimeraError, match=r"E002: parameter D is 4\.0: expected an integer"):
        compile_text("schedule x", {"D": 4.0})


def test_given_costs_replace_those_of_the_program() -> None:
    p = program("1f1b", D=2, N=3)
    # The makespan is N + D - 1 = 4 times F + B.
    assert simulate(p).makespan == 4 * (1 + 2)  # the program's own: F = 1, B = I + W = 2
    assert simulate(p, {"I": 3}).makespan == 4 * (1 + 4)  # B is I + W if one of these is given, and B is not
    assert simulate(p, {"I": 3, "B": 1}).makespan == 4 * (1 + 1)
    half = simulate(p, {"F": Fraction(1, 2), "B": Fraction(2, 3)})
    assert (half.scale, Fraction(half.makespan, half.scale)) == (6, 4 * (Fraction(1, 2) + Fraction(2, 3)))
    assert half.time(half.makespan) == "4.667"  # a time is written with four digits, or all digits before the point
    large = simulate(p, {"F": Decimal("12345.4")})
    assert large.time(large.costs.FWD[0]) == "12345"


def test_a_window_of_one_delays_a_program_more_than_a_window_of_two() -> None:
    """With a window of one a SEND waits until the message before it has arrived, at a hop of 3.

    For each window the makespan is that of the independent simulator, too.
    """
    p = program("gpipe", D=2, N=6)
    with_window_2, with_window_1 = (simulate(p.with_header(window=w), {"F": 1, "B": 1, "hop": 3}).makespan for w in (2, 1))
    assert with_window_2 < with_window_1
    for window in (1, 2, 3):
        changed = p.with_header(window=window)
        assert simulate(changed, {"F": 1, "B": 1, "hop": 3}).makespan == makespan(changed, {"FWD": 1, "BWD": 1}, 3)
