"""The readers whose costs are measured as the input grows, with the texts and pieces from which inputs are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, render
from chimerac.chimera_ir.forms import read_program
from chimerac.chimera_ir.model import model_from_json
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.timeline_form import timeline_from_json
from chimerac.compiler import verify
from chimerac.compiler.exchange.torch_csv import program_from_csv
from chimerac.compiler.format import format_schedule
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.syntax.parse import parse
from tests.proof.fuzz_targets import TARGETS, low_limits, timed_program
from tests.proof.growth_inputs import Part, Recipe, colliding


def schedule(text: str) -> None:
    """Parse, format, resolve and order a schedule.

    The limits on sizes are lowered: the test is about long texts, not about large numbers in them.
    """
    source = Source("a.sched", text)
    tree = parse(source)
    format_schedule(source)
    with low_limits():
        budget = Budget()
        order_tasks(resolve(tree, {}, budget), budget)


def program(text: str) -> None:
    """Read a program in either text form, and verify it."""
    verify(read_program(Source("a", text)))


def model(text: str) -> None:
    """Read a model description and partition it."""
    description = model_from_json(text, "model.json")
    stages = (len(description.layers) + 1) // 2  # the number of stages for which the partition takes longest
    description.stage_sums(balanced(description, stages).layers)


def timeline(text: str) -> None:
    """Read a timeline, and check that it is one of `timed_program`."""
    timeline_from_json(text, "times.json").of(timed_program())


def torch_csv(text: str) -> None:
    """Read a schedule of torch.distributed.pipelining."""
    with low_limits():
        program_from_csv(Source("a.csv", text))


@dataclass(frozen=True)
class Reader:
    """A reader of input, and the inputs for it.

    Attributes:
        run: reads a text.
        seeds: texts into which pieces are inserted; some of these texts are wrong on purpose.
        known: pieces that come from outside the seeds.
        regressions: inputs of kinds that were once too slow.
        longest: the most characters of an input whose time is measured.
    """

    run: Callable[[str], None]
    seeds: Callable[[], list[str]]
    known: tuple[str, ...]
    regressions: Callable[[], Iterator[Recipe]]
    longest: int = 2**22


def _texts(target: str) -> Callable[[], list[str]]:
    """Return a function that returns the seeds of a target of the fuzzing as texts, without the long ones."""
    return cache(lambda: [seed.decode() for seed in TARGETS[target].seeds() if len(seed) < 20_000])


def _recipe(text: str, mark: str, *pieces: str, description: str = "") -> Recipe:
    """Return a recipe that repeats each piece before the first `mark`. {k} in a piece becomes the number of the copy."""
    place = text.index(mark)
    parts = (Part(place, _copies(piece), description=description or repr(piece[:60])) for piece in pieces)
    return Recipe(text, tuple(parts))


def _copies(piece: str) -> Callable[[int, int], str]:
    """Return the function `copy` of a `Part`: the piece, with the number of the copy in place of {k}."""
    before, _, after = piece.partition("{k}")
    return (lambda k, n: f"{before}{k}{after}") if "{k}" in piece else (lambda k, n: piece)


HEAD = "schedule x ranks 2 stages 2 pipe p { stage s on rank s micro_batches 2 } "
TICKS = "order ticks { F(s, m) at s + 2*m B(s, m) at 3 - s + 2*m } "
FILLED = "order ticks { F(s, m) at s + 2*m I(s, m) at 9 - s + 2*m fill W(r, k) at 20 + k}"
LISTING = "order listing for rank r { F F B B }"


def _schedules() -> Iterator[Recipe]:
    for piece in (
        "tied t{k} on stages 0, 1 ",
        "order greedy { prefer B, F } ",
        "require z{k} == 1 ",
        "let y{k} = 1 ",
        "let y = = 1 ",
        "pipe q{k} { stage s on rank s micro_batches 0 } ",
        "cost F = 1 ",
        "window 2 ",
        "# x\n",
    ):
        yield _recipe(HEAD + TICKS, "order", piece)
    bad_rank = HEAD.replace("on rank s", "on rank s + 1")
    assert bad_rank != HEAD
    yield _recipe(bad_rank + TICKS, " + 1", " # x\n", description="a comment in an expression that the help quotes")
    for piece in ("F ", "F & B ", "F(r, 1) ", "let y{k} = 1 ", "if r == 7 { F } ", "repeat 0 { } ", "F # x\n"):
        yield _recipe(HEAD + LISTING, "F F", piece)
    yield _recipe(HEAD + LISTING, "F F", "let y{k} = 1 ", "repeat 0 { } ")
    yield _recipe(HEAD + LISTING, "F F", "let y{k} = 1 ", "if r == 7 { F } ")
    for piece in ("+ m - m ", "+ 0\n", "- - ", "* 1 ", "and ", "+ s // 1 "):
        yield _recipe(HEAD + TICKS, " B(s", piece)
    for piece in ("fill W(r, k) at 2*k ", "fill W(r, k{k}) at z ", "fill F(r, k) at 0 ", "let y{k} = 1 "):
        yield _recipe(HEAD + FILLED, "fill", piece)
    yield _recipe(HEAD + FILLED, " + k}", " + 0")
    for piece in ("x", "9", "(", "{ ", '"', "\n", " "):
        yield _recipe(HEAD + TICKS, "ranks", piece)
    yield _recipe("schedule x order greedy { prefer B, F }", "}", "then smaller s ", "limit F <= 9 ")
    yield _recipe(HEAD + "order greedy { prefer B }", "B }", "F, ")
    yield Recipe(HEAD + LISTING, (Part(len(HEAD + LISTING) - 1, lambda k, n: "repeat 1 { F ", "} ", "blocks in blocks"),))


JSON_ALLREDUCE = ',\n  {"op": "ALLREDUCE", "group": "stage 0", "stage": 0, "ranks": [0]}'


def _json_programs() -> Iterator[Recipe]:
    text = _texts("program json")()[0]
    end, header_field, instruction = "]\n]}", '"schedule"', '"op"'
    for piece in (
        '"',
        '\\"',
        '"\\',
        '"a": 1, ',
        '"a{k}": 1, ',
        '"a{k}": "',
        "[",
        '{"a": ',
        "]",
        "}",
        "9",
        '"\\ud800',
        "\\u0041",
        "-",
        "1,",
    ):
        yield _recipe(text, header_field, piece)
        yield _recipe(text, instruction, piece)
        yield _recipe(text, end, piece)
    yield _recipe(text, header_field, '"a": 1, "a": 2' + '\\" ' * 5, description="a field twice, and stray quotes")
    for piece in (
        JSON_ALLREDUCE,
        JSON_ALLREDUCE.replace("stage 0", "t{k}"),
        JSON_ALLREDUCE.replace("[0]", "[0, {k}]"),
        ",[]",
        ", {}",
        ', {"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [{k}]}',
        ', {"op": "FWD", "pipe": 7, "stage": {k}}',
    ):
        yield _recipe(text, end, piece)
    tied, pipe = '{"name": "t{k}", "stages": [0, 1]}, ', '{"name": "q{k}", "placement": [0, 1], "micro_batches": []}, '
    with_tied = text.replace('"tied": []', '"tied": [{"name": "t", "stages": [0, 1]}]')
    yield _recipe(with_tied, '{"name": "t"', tied)
    yield _recipe(text, '{"name"', pipe)
    parts = _recipe(with_tied, '{"name"', pipe).parts + _recipe(with_tied, '{"name": "t"', tied).parts
    yield Recipe(with_tied, parts)
    yield Recipe(
        text,
        (
            Part(
                text.index(end),
                _colliding(', {"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [%s]}'),
                description="lists of micro-batches with equal hashes",
            ),
        ),
    )
    yield Recipe(
        text,
        (
            Part(
                text.index(end),
                _colliding(JSON_ALLREDUCE.replace("[0]", "[%s]")),
                description="lists of ranks with equal hashes",
            ),
        ),
    )


def _colliding(template: str) -> Callable[[int, int], str]:
    """Return the function `copy` of a `Part`: %s becomes a list of numbers, and all lists have equal hashes."""

    def piece(k: int, n: int) -> str:
        return template % ",".join(map(str, _tuples()[k % len(_tuples())]))

    return piece


@cache
def _tuples() -> list[tuple[int, ...]]:
    """Return tuples with equal hashes."""
    return list(colliding(2**14))


def _text_programs() -> Iterator[Recipe]:
    text = _texts("program text")()[0]
    for piece in (
        "; ",
        "  FWD main s0 m0\n",
        "  FWD main s0 m{k}\n",
        "  FWD other s0 m{k}\n",
        "  ALLREDUCE s0 over 0\n",
        "  FWD main s9 m0\n",
        "  ALLREDUCE t{k} s0 over 0,1\n",
        "pipe q{k} on 0 1 micro_batches\n",
        "pipe q{k} on 0 1 micro_batches\n  FWD main s0 m0\n",
        "tied t{k}  stages 0 1\n",
        "# x\n",
        "\n",
        " ",
        "9",
        "x",
        "  FWD main s0 m0,1" + ",0" * 9 + "\n",
        "rank 1:\n",
        "0",
    ):
        yield _recipe(text, "\nrank 1:", "\n" + piece)
        yield _recipe(text, "rank 0:", piece)
        yield _recipe(text, " m0", piece)
        if piece.strip():
            yield _recipe(text, " m0", piece.strip())
    yield Recipe(
        text,
        (
            Part(
                text.index("\nrank 1:"),
                _colliding("\n  FWD main s0 m%s"),
                description="lists of micro-batches with equal hashes",
            ),
        ),
    )


def _models() -> Iterator[Recipe]:
    text = _texts("model")()[0]
    layer = text[text.index('{"name": "a"') : text.index('{"name": "b"')]
    for piece in (
        layer,
        layer.replace('"a"', '"a{k}"'),
        '"a{k}": 1, ',
        '"',
        '\\"',
        "[",
        "{",
        '{"shape": [1], "dtype": "bool", "gradient": true}, ',
        "9",
    ):
        yield _recipe(text, '{"name": "a"', piece)
        yield _recipe(text, '"layers"', piece)
    yield _recipe(text, '{"name": "t"', '{"name": "t{k}", "layers": [0, 1, 2], "parameters": 1, "weight_bytes": 4}, ')


def _timelines() -> Iterator[Recipe]:
    text = _texts("timeline")()[0]
    for piece in ("0,", "{k},", '"a{k}": 1, ', '"', '\\"', "[", "]", "{", "9", "-", "1,", " "):
        for mark in ('"unit"', '"rank"', "0,", "]"):
            yield _recipe(text, mark, piece)


def _torch_files() -> Iterator[Recipe]:
    text = _texts("torch csv")()[1]
    for piece in (
        ",",
        "0F{k},",
        "0F0,",
        "{k}F0,",
        "\n",
        "0F0\n",
        "(0F0;0B0)OVERLAP_F_B,",
        "9",
        "x",
        " ",
        '"',
        "(",
        "0SEND_F{k},",
    ):
        yield _recipe(text, "0F0", piece)
        yield _recipe(text, "\n", piece)


READERS = {
    "schedule": Reader(
        schedule,
        _texts("schedule text"),
        (
            "tied t0 on stages 0, 1\n",
            "let y0 = 1\n",
            "require N >= 1\n",
            "F(s, m) at s\n",
            "repeat 1 { F }\n",
            "if r == 0 { F } else { B }\n",
            "F & B\n",
            "cost F = 1\n",
            "pipe q0 { stage s on rank s micro_batches 0 }\n",
            "stage s in 1 .. 0 on rank 0\n",
            "recompute when s == 0\n",
            "# a remark\n",
            "+ 0*s ",
            "then smaller s\n",
        ),
        _schedules,
        longest=900_000,
    ),
    "program json": Reader(
        program,
        _texts("program json"),
        (
            JSON_ALLREDUCE,
            ', {"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [0]}',
            '{"name": "t0", "stages": [0, 1]}, ',
            '{"name": "q0", "placement": [0, 1], "micro_batches": []}, ',
            '"a0": 1, ',
            ', {"op": "RECV", "value": "act", "pipe": 0, "stage": 1, "micro_batches": [0], "peer": 0}',
        ),
        _json_programs,
    ),
    "program text": Reader(
        program,
        _texts("program text"),
        (
            "  FWD main s0 m0\n",
            "\n  RECV act main s1 m0 <- 0",
            "  ALLREDUCE s0 over 0\n",
            "tied t0  stages 0 1\n",
            "pipe q0 on 0 1 micro_batches\n",
            "; FWD main s0 m0",
            "rank 0:\n",
            "# a remark\n",
            "limits activations=1\n",
        ),
        _text_programs,
    ),
    "timeline": Reader(timeline, _texts("timeline"), ("0,", '"a0": 1, ', "[", '"'), _timelines),
    "torch csv": Reader(torch_csv, _texts("torch csv"), ("0F0,", "1B0,", "\n", ",", "(0F0;0B0)OVERLAP_F_B,"), _torch_files),
    "model": Reader(
        model, _texts("model"), ('{"shape": [1], "dtype": "bool", "gradient": true}, ', '"a0": 1, ', "0, ", ", 1"), _models
    ),
}


def rendered(error: ChimeraError) -> str:
    """Return the rendered findings of an error."""
    return render(error.diagnostics)
