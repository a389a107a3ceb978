"""Readers get inputs that hypothesis draws: syntax trees, words, correct texts with an edit, programs, JSON values and bytes.

The targets and their properties are those of the fuzzing (tests/proof/fuzz_targets.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.printer import print_schedule
from tests.effort import examples
from tests.helpers import program
from tests.helpers_random import programs, schedules, trees
from tests.helpers_slips import RIGHT as RIGHT_TEXTS
from tests.helpers_slips import slip_lines, with_slip
from tests.proof.fuzz_targets import TARGETS, codes_of


def answer(target: str, data: bytes) -> str:
    """Return the answer of a target for an input, or the codes of its findings.

    Any exception but ChimeraError fails the test, also a Failure, which says that a property does not hold.
    """
    try:
        return TARGETS[target].run(data)
    except ChimeraError as error:
        return codes_of(error)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


words = st.sampled_from(
    [*sorted(keywords()), *"DNFBIWRsmpr", "0", "1", "2", "99999999999999999999", *TARGETS["schedule"].words]
)


# The target "schedule" reads options from the first byte: machine, width and whether to arrange. The text follows.
@examples(75)
@given(st.binary(min_size=1, max_size=1), trees)
def test_arbitrary_trees_break_no_property(options: bytes, tree: n.Schedule) -> None:
    text = print_schedule(tree).encode()
    assert answer("schedule text", text).startswith("tree")
    answer("schedule", options + text)


@examples(75)
@given(st.binary(min_size=1, max_size=1), st.lists(words, max_size=60).map(" ".join))
@example(b"\0", "-1")
def test_words_in_any_order_break_no_property(options: bytes, text: str) -> None:
    for beginning in ("schedule x ", ""):
        answer("schedule text", encoded(beginning + text))
        answer("schedule", options + encoded(beginning + text))


@examples(30)
@given(schedules(), st.data())
def test_schedules_with_a_piece_removed_or_repeated_break_no_property(text: str, data: st.DataObject) -> None:
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    removed, repeated = text[:start] + text[end:], text[:end] + text[start:]
    answer("schedule", b"\0" + removed.encode())
    answer("schedule", b"\0" + repeated.encode())


@examples(75)
@given(st.sampled_from(slip_lines("slips_corrected.txt")), st.data())
@example("1f1b: at s + 2*m ==> at if m < 3: s else", None)
@example("listing: \\n}\\n ==> \\n", None)  # no word follows this slip, so the start of the slip is the only end
def test_texts_that_end_after_a_slip_break_no_property(line: str, data: st.DataObject | None) -> None:
    """The text is cut off where the slip begins, or after a word or symbol that follows; only the first 40 such places count.

    Args:
        data: draws one of these places; None: try them all.
    """
    replaced_part, (base, text) = line.split(": ", 1)[1].split(" ==>")[0], with_slip(line)
    start = RIGHT_TEXTS[base].index(replaced_part.replace("\\n", "\n"))
    ends = [start, *(word.end() for word in re.finditer(r"\w+|\S", text) if word.end() > start)][:40]
    for end in ends if data is None else [data.draw(st.sampled_from(ends))]:
        answer("schedule", b"\0" + text[:end].encode())


@examples(75)
@given(programs())
def test_arbitrary_programs_have_the_same_answer_in_both_forms(p: Program) -> None:
    assert answer("program json", program_to_json(p).encode()) == answer("program text", program_to_text(p).encode())


CORRECT_PROGRAM = json.loads(program_to_json(program("1f1b", D=2, N=2)))
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
values = st.recursive(
    leaves | st.sampled_from(["FWD", "act", "stage 0", "window"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*CORRECT_PROGRAM, "op", "stage", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@examples(100)
@given(st.data())
def test_json_programs_with_another_value_somewhere_break_no_property(data: st.DataObject) -> None:
    """A random part of a correct program is replaced by a random JSON value. Such values alone are read too."""
    changed = json.loads(json.dumps(CORRECT_PROGRAM))
    part = changed
    while True:
        key = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else list(range(len(part)))))
        if not isinstance(part[key], dict | list) or not part[key] or data.draw(st.booleans()):
            break
        part = part[key]
    part[key] = data.draw(values)
    answer("program json", encoded(json.dumps(changed)))
    answer("program json", encoded(json.dumps(data.draw(values))))
    answer("model", encoded(json.dumps(data.draw(values))))


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_of_any_kind_break_no_property(target: str) -> None:
    answers: Counter[str] = Counter()

    @examples(30)
    @given(st.binary(max_size=60) | st.text(max_size=60).map(encoded))
    def run(data: bytes) -> None:
        answers[answer(target, data)] += 1

    run()
    assert answers.total() >= 30
