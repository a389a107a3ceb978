"""The JSON of programs and models: findings wherever the error is in the text.

A program may have its field `streams` anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import product

import pytest

from chimerac.chimera_ir import json_checks, limits
from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.model import model_from_json
from tests.helpers import findings_of_call, program

RIGHT = program_to_json(program("1f1b", D=2, N=2))
# Pieces of JSON by the name of what is wrong with them; "nothing" is an empty one. A test puts each into a text, with texts of
# STRAY before and after it.
FAULTS = {
    "a field twice": '"a": 1, "a": 2',
    "fields": ", ".join(f'"f{k}": 1' for k in range(limits.FIELDS + 1)),
    "a large object": '"b": {"c": {"d": [' + "1," * 200 + "1]}}",
    "digits": '"a": ' + "1" * 5000,
    "brackets": '"a": ' + "[" * 300,
    "half of a pair": '"a": "\\ud800"',
    "no value": '"a": ',
    "nothing": "",
    "a word": "nul",
}
STRAY = [
    "",
    "]",
    "}",
    "[",
    "{",
    '"',
    '"\\',
    '"\\q": 1',
    "}]}]",
    '"x": "\\',
    ",",
    ":",
    "\\",
    "\0",
    '"\\ud83d": 1',
    "1" * 5000,
]


def first_finding(read: Callable[[str, str], object], text: str) -> Diagnostic:
    """Return the first finding with which `read` refuses a text. The test fails if it does not refuse it."""
    return findings_of_call(read, text, "p.json")[0]


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_among_stray_characters_is_a_finding(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_checks, "MAX_WEIGHT", 100)  # fewer values than "a large object" has
    fault = FAULTS[what]
    instruction = '{"op": "FWD", "pipe": 0, "stage": 0, '
    assert instruction in RIGHT
    # Left out: "[" with "]". With the empty fault between them they make one more stream, an empty one, and the number of
    # streams is not checked here.
    pairs = [pair for pair in product(STRAY, STRAY) if pair != ("[", "]")]
    for before, after in random.Random(what).sample(pairs, 40):
        piece = f"{before}{fault}{after}, "
        for text in (
            f"{{{piece}",
            f"{{{piece}}}",
            "{" + piece + RIGHT[1:],
            RIGHT[:-3] + piece,  # behind the last stream, in the place of the brackets that end the text
            RIGHT.replace(instruction, instruction + piece, 1),
            RIGHT.replace('"streams": [', '"streams": [' + piece),
        ):
            for read in (program_from_json, model_from_json):
                d = first_finding(read, text)
                assert d.code[:2] in ("E6", "E7") and d.message.startswith("p.json")


@pytest.mark.parametrize(
    ("fault", "message", "caret"),
    [
        ('"a": 1, "a": 2', "the field 'a' appears twice in one object", '"a": 2'),
        ('"a": 1, "\\u0061": 2', "the field 'a' appears twice in one object", '"\\u0061": 2'),
        ('"a": [}', "is not JSON: expecting value", "}"),
        ('"a": 1 "b": 2', "is not JSON: expecting ',' delimiter", '"b": 2'),
        ('"a": ' + "1" * 5000, "a number has 5000 digits", "1" * 5000),
        ('"a": "\\\\ud800 \\ud800"', "half of a surrogate pair is no character", "\\ud800"),
        ('"a": "\\ud83d\\ude00 \\ude00"', "half of a surrogate pair is no character", "\\ude00"),
        ('"a": "[[' + "9" * 5000 + '", "b": ' + "[" * 201 + "]" * 201, "nested more than 200 deep", "["),
    ],
)
@pytest.mark.parametrize("place", ["front", "instruction", "behind"])
def test_the_finding_about_a_fault_has_its_place(fault: str, message: str, caret: str, place: str) -> None:
    """The fault is before the header's fields, in an instruction, or after the streams.

    Args:
        place: where it is.
        caret: how the text begins at the place of the finding.
    """
    instruction = '{"op": "FWD", "pipe": 0, "stage": 1, '
    text = {
        "front": "{" + fault + ",\n" + RIGHT[1:],
        "instruction": RIGHT.replace(instruction, instruction + fault + ", ", 1),
        "behind": RIGHT.rstrip()[:-1] + ",\n" + fault + "}",
    }[place]
    d = first_finding(program_from_json, text)
    assert message in d.message and d.span is not None
    line = d.span.source.line(d.span.line)
    assert line[d.span.column - 1 :].startswith(caret)


def test_streams_may_be_anywhere_in_the_object() -> None:
    file = json.loads(RIGHT)
    streams = file.pop("streams")
    for text in (
        json.dumps({"streams": streams} | file),
        json.dumps({"format": file.pop("format"), "streams": streams} | file),
    ):
        assert program_to_json(program_from_json(text)) == RIGHT
        assert program_to_json(program_from_json(text.replace('"streams"', '"\\u0073treams"'))) == RIGHT
        spaced = text.replace("{", " \n{\t").replace(",", " ,\r\n").replace("]", " ] ")
        assert program_to_json(program_from_json(spaced)) == RIGHT


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ("5", "streams: expected a list, found 5"),
        ("{}", "streams: expected a list, found {}"),
        ("[5]", "streams[0]: expected a list, found 5"),
        ("[[], {}]", "streams[1]: expected a list, found {}"),
        ("[[5]]", "streams[0][0]: expected an object, found 5"),
        ("[[[]]]", "streams[0][0]: expected an object, found []"),
        ("[[{}]]", "streams[0][0]: this has no 'op'"),
        ('[[{"op": ["FWD"]}]]', "streams[0][0]: "),
        (
            '[[{"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [0], "recompute": null}]]',
            "streams[0][0].recompute: expected",
        ),
        ('[[{"op": "BWD", "pipe": 0, "stage": 0, "micro_batches": [0], "recompute": true}]]', "streams[0][0].recompute: "),
        ('[[{"op": "BWD", "pipe": 0, "stage": true, "micro_batches": [0]}]]', "streams[0][0].stage: expected an integer"),
    ],
)
def test_an_invalid_stream_is_a_finding_with_its_place(streams: str, message: str) -> None:
    text = RIGHT[: RIGHT.index('"streams"')] + f'"streams": {streams}}}'
    d = first_finding(program_from_json, text)
    assert d.code == "E603" and d.message.startswith(f"p.json: {message}")


def test_errors_of_header_and_streams_are_reported_together() -> None:
    text = RIGHT.replace('"window": 2', '"window": -1').replace('"stage": 1', '"stage": -1', 1)
    found = findings_of_call(program_from_json, text, "p.json")
    assert [d.message.split(":")[1].strip() for d in found] == ["window", "streams[0][3].stage"]
