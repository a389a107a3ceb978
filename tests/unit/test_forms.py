"""The two text forms of a program, its digest, and equality."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import NAME, NAME_FORM, AllReduce, Fwd, Send
from chimerac.chimera_ir.jsonform import ProgramFile, json_schema, program_from_json, program_to_json
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import Costs, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import compile_text
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.verify import findings, verify
from tests.helpers import codes_of_call, findings_of_call, program, replaced

RIGHT = program("chimera", width=2, D=2)


def test_json_has_the_documented_form() -> None:
    file = json.loads(program_to_json(RIGHT))
    assert list(file)[:3] == ["format", "version", "schedule"]
    assert (file["format"], file["version"], file["width"], file["ranks"]) == ("chimera-program", 1, 2, 2)
    assert file["pipes"][1] == {"name": "up[0]", "placement": [1, 0], "micro_batches": [1]}
    assert len(file["streams"]) == 4
    assert file["streams"][0][0] == {
        "op": "RECV", "value": "act", "pipe": 1, "stage": 1, "micro_batches": [1], "peer": 1,
    }  # fmt: skip
    assert {"op": "ALLREDUCE", "group": "stage 0", "stage": 0, "ranks": [0, 1, 2, 3]} in file["streams"][3]


def test_the_published_schema_is_that_of_the_reader() -> None:
    schema = json.loads(json_schema())
    assert schema["title"] == "chimera-program version 1"
    assert set(schema["required"]) >= {"format", "version", "streams", "ranks", "stages", "pipes"}
    assert "costs" in schema["properties"]
    assert schema["additionalProperties"] is False
    properties = TypeAdapter(ProgramFile).json_schema()["properties"]
    assert schema["properties"] == properties
    assert set(json.loads(program_to_json(RIGHT))) == set(properties) - {"partition"}, (
        "a program without a partition has no such field"
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ranks": 0}, "E603"),
        ({"ranks": True}, "E603"),
        ({"ranks": 2.0}, "E603"),
        ({"ranks": "2"}, "E603"),
        ({"machine": "quantum"}, "E603"),
        ({"version": "1"}, "E602"),
        ({"format": None}, "E602"),
        ({"width": 2**20}, "E604"),
        ({"micro_batches": 2**30}, "E604"),
        ({"streams": [[{"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": []}]]}, "E603"),
        ({"streams": [[{"op": "FWD", "pipe": -1, "stage": 0, "micro_batches": [0]}]]}, "E603"),
        ({"streams": [[{"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [0], "peer": 1}]]}, "E603"),
        ({"streams": [[{"pipe": 0, "stage": 0, "micro_batches": [0]}]]}, "E603"),
    ],
)
def test_json_with_a_wrong_field_is_refused(change: dict[str, object], code: str) -> None:
    assert codes_of_call(program_from_json, json.dumps(json.loads(program_to_json(RIGHT)) | change)) == {code}


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"a": }', "[" * 100_000, '"\\ud800"', "NaN"])
def test_a_text_that_is_no_json_object_is_refused(text: str) -> None:
    [d] = findings_of_call(program_from_json, text)
    assert d.code in ("E601", "E602")
    is_unlike_json = text in ("", "nonsense", "NaN")  # then the help says how to get a program
    assert d.help.startswith("compile one with: chimerac") == is_unlike_json


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FWD down[0] s0 m0;", "FWD down[0] s0 m0garbage;"),  # an instruction, and more characters
        ("FWD down[0] s0 m0;", "FWD down[0] s0 m;"),
        ("FWD down[0] s0 m0;", "FWD down[0] m0 s0;"),
        ("FWD down[0] s0 m0;", "FWD down[0] s0 m0 recompute twice;"),
        ("FWD down[0] s0 m0;", "FWD down[0] s0 m0,;"),
        ("FWD down[0] s0 m0;", "FWD down[0] s0 m0;;"),
        ("-> 1", "-> one"),
        ("rank 0:", "rank 0"),
        ("window=2", "window=two words"),
        ("pipe up[0]  on 1 0", "pipe up[0]  at 1 0"),
        ("costs FWD=1", "costs FWD=one"),
        ("chimera-program 1\n", "chimera-program 2\n"),
    ],
)
def test_a_text_with_a_wrong_word_is_refused(old: str, new: str) -> None:
    text = replaced(program_to_text(RIGHT), (old, new))
    assert codes_of_call(program_from_text, text) <= {"E602", "E603", "E605"}


@pytest.mark.parametrize(
    ("old", "new", "message", "help"),
    [
        ("m0 -> 1", "m0 <- 1", "the arrow of SEND is '->', not '<-'", "write SEND act PIPE sS mIDS -> PEER"),
        ("m0 <- 1", "m0 -> 1", "the arrow of RECV is '<-', not '->'", "write RECV act PIPE sS mIDS <- PEER"),
        ("m0 -> 1", "m0", "'SEND act down[0] s1 m0' names no peer", "write SEND act PIPE sS mIDS -> PEER"),
        ("BWD down[0] s0 m0", "BWD down[0] s0 m0 -> 1", "BWD has no peer, but 'BWD down[0] s0 m0 -> 1' names one",
         "write BWD PIPE sS mIDS"),
        ("FWD down[0] s0 m0", "FWD down[0] s0 m0 overlap overlap",
         "'overlap' appears twice in 'FWD down[0] s0 m0 overlap overlap'",
         "write FWD PIPE sS mIDS, then recompute or overlap or both"),
        ("FWD down[0] s0 m0", "FWD down[0] s0 m00",
         "a number of 'FWD down[0] s0 m00' begins with 0", "write FWD down[0] s0 m0"),
        ("s1 over 0,1", "s1 over 00,1", "a number of 'ALLREDUCE s1 over 00,1,2,3' begins with 0",
         "write ALLREDUCE s1 over 0,1,2,3"),
        ("BWD down[0] s0 m0", "BWD down[0] s0 m0 recompute",
         "'BWD down[0] s0 m0 recompute' is not an instruction", "write BWD PIPE sS mIDS"),
        ("BWD down[0] s0 m0", "BWD act down[0] s0 m0",
         "'BWD act down[0] s0 m0' is not an instruction", "write BWD PIPE sS mIDS"),
        ("FWD down[0] s0 m0", "FWT down[0] s0 m0", "unknown instruction 'FWT': did you mean 'FWD'?", ""),
        ("FWD down[0] s0 m0;", "FWD down[0] s0 m0;;", "'' is not an instruction",
         "remove the ';', or write an instruction there"),
        ("on 0 1", "on 00 1", "the number '00' begins with 0", "write 0"),
        ("on 0 1", "on 0 -01", "the number '-01' begins with 0", "write -1"),
        ("on 0 1", f"on {'0' * 21} 1", f"'{'0' * 21}' is not an integer of at most 20 characters", ""),
        ("on 0 1", "on 0x 1", "'0x' is not an integer of at most 20 characters", ""),
    ],
)  # fmt: skip
def test_a_wrong_instruction_or_number_is_refused_with_this_message_and_help(
    old: str, new: str, message: str, help: str
) -> None:
    text = replaced(program_to_text(RIGHT), (old, new))
    [d] = findings_of_call(program_from_text, text)
    assert (d.code, d.message, d.help) == ("E605", message, help)


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        ({"costs": {"FWD": [1]}}, ["costs.BWD: this field is missing", "costs.BWD_INPUT: this field is missing",
                                   "costs.BWD_WEIGHT: this field is missing"]),
        ({"pipes": []}, ["pipes: expected a list with 1 or more items, found []"]),
        ({"width": True}, ["width: expected an integer, found true"]),
        ({"width": None}, ["width: expected an integer, found null"]),
        ({"width": float("nan")}, ["width: expected an integer, found NaN"]),
        ({"schedule": "no name"},
         [f'schedule: expected a name: {NAME_FORM}, found "no name"']),
        ({"kind": "test"}, ['kind: expected "training" or "evaluation", found "test"']),
        ({"streams": [[{"op": "FWD", "FOO": 1}]]},
         [f"streams[0][0].{name}: this field is missing" for name in ("pipe", "stage", "micro_batches")]
         + ["streams[0][0].FOO: this field is unknown"]),
    ],
)  # fmt: skip
def test_a_wrong_field_is_described_in_terms_of_json(change: dict[str, object], messages: list[str]) -> None:
    found = findings_of_call(program_from_json, json.dumps(json.loads(program_to_json(RIGHT)) | change), "p.json")
    assert [(d.code, d.message) for d in found] == [("E603", f"p.json: {fact}") for fact in messages]


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("[" * 100_000, "brackets are nested more than 200 deep", 201),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "brackets are nested more than 200 deep", 206),
        ('{"a": ' + "1" * 6000 + "}", "a number has 6000 digits", 7),
        ('{"a": "x\\ud800"}', "half of a surrogate pair is no character", 9),
        ('{"a": "x\ud800"}', "half of a surrogate pair is no character", 9),
    ],
)
def test_the_finding_for_json_that_cannot_be_read_has_reason_and_place(text: str, message: str, column: int) -> None:
    [d] = findings_of_call(program_from_json, text, "p.json")
    assert d.span is not None
    assert (d.code, d.message, d.span.column) == ("E601", f"p.json cannot be read: {message}", column) and d.help


@pytest.mark.parametrize(
    ("old", "new", "message", "caret"),
    [
        ("costs FWD=1", "costs FWD=-1", "<streams>: costs.FWD[0]: expected 0 or more, found -1", "FWD=-1"),
        ("width=2", "width=0", "<streams>: width: expected 1 or more, found 0", "width=0"),
        ("D=2", "D=" + "9" * 19, f"<streams>: parameters.D: expected {2**61} or less, found {'9' * 19}", "D=" + "9" * 19),
        ("up[0]  on 1", "up[0]  on -1", "<streams>: pipes[1].placement[0]: expected 0 or more, found -1",
         "pipe up[0]  on -1 0  micro_batches 1"),
        ("SEND act up[0] s1 m1 -> 0", "SEND act up[0] s1 m1 -> 9999999999",
         "'SEND act up[0] s1 m1 -> 9999999999': peer: expected 2147483647 or less, found 9999999999",
         "SEND act up[0] s1 m1 -> 9999999999"),
    ],
)  # fmt: skip
def test_the_finding_for_a_wrong_field_of_a_text_has_its_place(old: str, new: str, message: str, caret: str) -> None:
    text = replaced(program_to_text(RIGHT), (old, new))
    d = findings_of_call(program_from_text, text)[0]
    assert d.span is not None
    assert (d.code, d.message) == ("E603", message)
    assert d.span.source.line(d.span.line)[d.span.column - 1 : d.span.end_column - 1] == caret


# Words of the text form that are valid names too.
WORDS = ["on", "micro_batches", "stages", "model", "over", "rank", "pipe", "tied", "recompute", "s0", "m0", "FWD", "act"]
# Texts that are no name in a header. The name of a model may be any printable text of 1 to 128 characters.
HOSTILE = [
    "#",
    "#x",
    "x y",
    "x=1",
    "x\n",
    "\ud800",
    "",
    "stage 0",
    "x" * 65,
    "x" * 129,
    "ü",
    "x[-1]",
    "\u0661",
    "a\u2028b",
    '"',
]
NAMES = st.sampled_from([*WORDS, *HOSTILE, "x[0]"]) | st.text(st.characters(), max_size=5) | st.from_regex(NAME, fullmatch=True)
KINDS = ("schedule", "parameter", "pipe", "tied", "limit")  # of the names in a header


@given(st.sampled_from((*KINDS, "model")), NAMES)
@settings(max_examples=300)
def test_a_program_with_any_name_is_refused_or_read_back(kind: str, name: str) -> None:
    """A wrong name in a header is refused when the header is made, a wrong name of a model when the program is written."""
    names = dict.fromkeys((*KINDS, "model"), "x") | {kind: name}
    try:
        header = replace(
            RIGHT.header,
            schedule=names["schedule"],
            parameters={names["parameter"]: 1},
            pipes=(replace(RIGHT.header.pipes[0], name=names["pipe"]),),
            tied=(Tied(names["tied"], (0, 1)),),
            limits={names["limit"]: 1},
        )
    except ValueError as error:
        assert kind != "model" and not NAME.fullmatch(name) and repr(name) in str(error)
        return
    assert kind == "model" or NAME.fullmatch(name)
    streams = [[Fwd(0, 0, (0,)), AllReduce(names["tied"], 0, (0, 1)), Send("act", 0, 1, (0,), 1)]]
    p = program_of(header, streams).with_partition(Partition(names["model"], ((0, 1), (1, 2))))
    for read, write in ((program_from_json, program_to_json), (program_from_text, program_to_text)):
        try:
            text = write(p)
        except ChimeraError as error:
            assert kind == "model" and [d.code for d in error.diagnostics] == ["E707"]
            assert not name.isprintable() or not 1 <= len(name) <= 128
        else:
            reread = read(text)
            assert (reread.header, reread.digest, reread.partition) == (p.header, p.digest, p.partition)


@pytest.mark.parametrize(
    ("old", "new", "message", "help"),
    [
        ("up[0]  on", "up[0]  over", "line 6 cannot be parsed", "write pipe NAME  on RANK ...  micro_batches ID ..."),
        ("up[0]  on", "up[0]  up on", "line 6 cannot be parsed", "write pipe NAME  on RANK ...  micro_batches ID ..."),
        ("pipe up[0]", "tied x  ranks 0 1\npipe up[0]", "line 6 cannot be parsed", "write tied NAME  stages STAGE ..."),
        ("pipe up[0]", "tied x  0 1\npipe up[0]", "line 6 cannot be parsed", "write tied NAME  stages STAGE ..."),
        ("pipe up[0]", f"partition 0:1 1:2  model {'[' * 100_000}\npipe up[0]", "line 6 cannot be parsed",
         'write partition FIRST:END ...  model "NAME"'),
        ("pipe up[0]", 'partition 0:1 1:2  model "x" y\npipe up[0]', "line 6 cannot be parsed",
         'write partition FIRST:END ...  model "NAME"'),
        ("pipe up[0]", 'partition 0:1 1:2  "x"\npipe up[0]', "line 6 cannot be parsed",
         'write partition FIRST:END ...  model "NAME"'),
        ("pipe up[0]", 'partition 0:1 1:2  model "\\ud800"\npipe up[0]', "half of a surrogate pair",
         "write the character itself"),
        ("micro_batch_size=", "micro_batch_siz=", "unknown size 'micro_batch_siz': did you mean 'micro_batch_size'?", ""),
        ("machine=window", "machine=\ud800", "half of a surrogate pair", "write the character itself"),
        ("D=2", " ".join(f"p{k}=0" for k in range(1025)), "this line gives 1027 values; at most 1024", ""),
    ],
)  # fmt: skip
def test_a_wrong_header_line_is_the_place_of_its_finding(old: str, new: str, message: str, help: str) -> None:
    text = replaced(program_to_text(RIGHT), (old, new))
    [d] = findings_of_call(program_from_text, text)
    assert d.span is not None and d.code == "E605" and message in d.message and d.help.startswith(help)
    assert d.span.line == 1 + text[: text.index(new)].count("\n")


def test_line_breaks_empty_lines_and_comments_do_not_change_what_a_text_means() -> None:
    text = program_to_text(RIGHT).replace("; ", "\n    ").replace("\n\n", "\n# a remark\n\n   \n")
    assert program_from_text(text) == RIGHT


def test_costs_are_not_part_of_the_digest() -> None:
    costlier = replace(RIGHT, costs=replace(RIGHT.costs, hop=RIGHT.costs.hop + 1))
    assert costlier == RIGHT and costlier.digest == RIGHT.digest
    text = program_to_json(RIGHT)
    without_costs = "".join(line for line in text.splitlines(keepends=True) if not line.startswith('"costs"'))
    assert RIGHT.digest == hashlib.sha256(without_costs.encode()).hexdigest()
    assert program_to_json(costlier) != text and program_to_text(costlier) != program_to_text(RIGHT)
    for read, write in ((program_from_json, program_to_json), (program_from_text, program_to_text)):
        assert read(write(costlier)).costs == costlier.costs


def test_a_file_without_costs_has_those_of_a_schedule_without_costs() -> None:
    for read, write in ((program_from_json, program_to_json), (program_from_text, program_to_text)):
        kept = [line for line in write(RIGHT).splitlines(keepends=True) if not line.lstrip('"').startswith("costs")]
        assert len(kept) == len(write(RIGHT).splitlines()) - 1
        reread = read("".join(kept))
        assert reread == RIGHT and reread.costs == Costs((1, 1), (2, 2), (1, 1), (1, 1))
    with pytest.raises(ChimeraError, match="costs"):
        program_from_json(re.sub('"costs": .*', '"costs": null,', program_to_json(RIGHT)))


def test_programs_are_equal_exactly_when_their_digests_are() -> None:
    reread, other = program_from_json(program_to_json(RIGHT)), RIGHT.with_header(window=3)
    assert reread == RIGHT and hash(reread) == hash(RIGHT)
    assert other != RIGHT and other.digest != RIGHT.digest
    assert len(RIGHT.digest) == 64


def test_a_program_gives_its_instructions_with_their_places_and_the_holders_of_a_stage() -> None:
    assert [i for g in range(RIGHT.world) for i in RIGHT.stream(g)] == RIGHT.instructions(range(len(RIGHT)))
    assert RIGHT.place(int(RIGHT.offsets[1])).startswith("rank 1, instruction 0: ")
    assert RIGHT.header.holders([0]) == (0, 1, 2, 3)
    assert isinstance(RIGHT.stream(3)[-1], AllReduce)
    assert Fwd(0, 0, (0,)) in RIGHT.stream(2)


TIED = """schedule shared  ranks 2  stages 3
pipe main { stage s on rank s % 2   micro_batches 2 }
tied ends on stages 2, 0
tied every on stages 1, 2, 1, 0
order ticks {
    F(s, m) at s + 3*m
    B(s, m) at 20 - s + 3*m
}
"""


def test_sets_of_a_header_may_be_in_any_order() -> None:
    """The micro-batches of a pipe and the stages of tied parameters are sets: their order in a file does not matter."""
    p = compile_text(TIED, width=2).program
    text = program_to_text(p)
    reordered = text.replace("stages 0 2\n", "stages 2 0\n").replace("stages 0 1 2\n", "stages 1 2 0 1\n")
    reordered = reordered.replace("micro_batches 0 1\n", "micro_batches 1 0\n")
    assert reordered != text and [t.stages for t in p.header.tied] == [(0, 2), (0, 1, 2)]
    reread = program_from_text(reordered)
    assert reread.header == p.header and reread.digest == p.digest and program_to_text(reread) == text
    file = json.loads(program_to_json(p))
    for fields, key in ((file["pipes"][0], "micro_batches"), *((tied, "stages") for tied in file["tied"])):
        fields[key].reverse()
    assert program_from_json(json.dumps(file)) == p
    for machine in ("window", "paired", "serial"):
        result = arranged(reread, machine)
        assert result is not None and verify(result).collectives == p.collectives


def test_a_pipe_with_a_duplicate_micro_batch_is_a_finding() -> None:
    text = program_to_text(compile_text(TIED).program)
    [found] = findings(program_from_text(text.replace("micro_batches 0 1\n", "micro_batches 1 0 1\n")))
    assert found.code == "E401" and "the pipes list micro-batch 1 twice" in found.message
