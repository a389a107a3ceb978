"""Counts and their nouns."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.counts import count_text, sizes_text, times_text
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.report import report
from chimerac.compiler.analyze.simulate import simulate
from chimerac.interpreter.pipeline.world import check_world
from tests.helpers import findings_of_call

ONE = """schedule one
ranks 1
stages 1
pipe main { stage s on rank s   micro_batches 1 }
order listing for rank r { F  B }
"""


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "rank", "0 ranks"),
        (1, "rank", "1 rank"),
        (2, "rank", "2 ranks"),
        (1, "micro-batch", "1 micro-batch"),
        (2, "micro-batch", "2 micro-batches"),
        (3, "process", "3 processes"),
        (1, "weight copy", "1 weight copy"),
        (2, "weight copy", "2 weight copies"),
        (2, "day", "2 days"),
        (1, "data-parallel replica", "1 data-parallel replica"),
    ],
)
def test_a_noun_is_singular_or_plural_as_its_count_requires(number: int, noun: str, text: str) -> None:
    assert count_text(number, noun) == text


def test_two_times_are_twice_and_more_are_counted() -> None:
    assert [times_text(n) for n in range(1, 5)] == ["once", "twice", "3 times", "4 times"]


def test_each_noun_of_the_sizes_agrees_with_its_own_count() -> None:
    assert sizes_text(ranks=1, stages=2, micro_batches=1) == "1 rank, 2 stages, 1 micro-batch"
    program = compile_text(ONE).program
    assert report(program, simulate(program)).splitlines()[1] == (
        "1 rank, 1 stage, 1 micro-batch, pipes: 1, width 1; 2 instructions"
    )


def test_the_finding_about_the_number_of_ranks_agrees_with_its_counts() -> None:
    [finding] = findings_of_call(check_world, compile_text(ONE).program, 2)
    assert finding.message == "1 rank is needed, and there are 2"
    assert finding.notes == ("1 data-parallel replica x 1 pipeline rank",)
    [finding] = findings_of_call(check_world, compile_text(ONE, width=2).program, 1)
    assert finding.message == "2 ranks are needed, and there is 1"
    assert finding.notes == ("2 data-parallel replicas x 1 pipeline rank",)
