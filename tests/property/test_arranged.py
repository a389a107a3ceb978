"""For every order that runs, transfers and collectives can be arranged for every machine, even with costs of 0.

Programs are compiled from texts of schedules, or read from their JSON form.
"""

from __future__ import annotations

from typing import get_args

from hypothesis import example, given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.program import Machine
from chimerac.compiler import compile_text
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.verify import verify
from tests.effort import examples
from tests.helpers import streams, with_move, with_streams
from tests.helpers_orders import costed_listings, greedy_schedules
from tests.helpers_random import schedules
from tests.helpers_reference import find_error

# All tasks take no time. So every all-reduce is launched at time 0, like all tasks, but it must come after some of them.
ALL_AT_ONCE = """schedule all_at_once  ranks 2  stages 3
sync eager
cost F = 0, B = 0
pipe a { stage s on rank if s == 0 then 1 else 0         micro_batches 1 }
pipe b { stage s on rank if s == 1 then 0 else 1         micro_batches 1 }
order listing for rank r {
    if r == 0 { F a(1) F a(2) F b(1) B a(2) B a(1) B b(1) }
    if r == 1 { F a(0) F b(0) F b(2) B a(0) B b(2) B b(0) }
}
"""

# costed_listings() is given twice, so that half of the texts come from it: in these texts many tasks take no time.
texts = costed_listings() | costed_listings() | schedules() | greedy_schedules(never_stuck=True).map(lambda case: case.text)


@given(texts, st.sampled_from(get_args(Machine)), st.integers(1, 3))
@example(ALL_AT_ONCE, "serial", 1)
@examples(50)
def test_a_schedule_is_arranged_from_its_text(text: str, machine: Machine, width: int) -> None:
    p = compile_source(Source("drawn", text), {}, width, machine, arrange=True).program
    assert p.header.machine == machine
    assert not find_error(p, range(1))


@given(texts, st.sampled_from(["paired", "serial"]), st.integers(1, 3))
@examples(50)
def test_a_program_from_its_json_form_is_arranged(text: str, machine: Machine, width: int) -> None:
    original = compile_text(text, width=width).program
    p = arranged(program_from_json(program_to_json(original)), machine)
    assert p is not None and verify(p).header.machine == machine


def test_a_program_with_an_early_all_reduce_is_arranged() -> None:
    p = compile_text(ALL_AT_ONCE).program
    rank_0, rank_1 = streams(p)
    all_reduce, backward = (next(k for k, i in enumerate(rank_0) if i.op == op) for op in ("ALLREDUCE", "BWD"))
    early = with_streams(p, [with_move(rank_0, all_reduce, backward + 1), rank_1])
    rearranged = arranged(early, "serial")
    assert rearranged is not None and verify(rearranged).header.machine == "serial"
