"""Random syntax trees, schedules and programs: writing and reading changes nothing, and compiled programs are correct."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.printer import print_schedule
from chimerac.compiler.verify import verify
from tests.effort import examples
from tests.helpers import SMALL, chimera_pairs, program, streams, tasks, with_streams
from tests.helpers_events import makespan
from tests.helpers_random import programs, schedules, trees
from tests.helpers_reference import find_error
from tools import ROOT


def check_exactly_once(p: Program) -> None:
    """Check that tasks are on the rank of their stage, and that none is missing or duplicate.

    For each replica, stage and micro-batch there is one forward, one backward or its two halves, and at most one recomputation.
    """
    h = p.header
    counted = {name: Counter[tuple[int, ...]]() for name in ("FWD", "BWD", "BWD_INPUT", "BWD_WEIGHT", "RECOMPUTE")}
    for g in range(p.world):
        for i in tasks(p.stream(g)):
            assert h.pipes[i.pipe].placement[i.stage] == g % h.ranks
            for m in i.micro_batches:
                assert m in h.pipes[i.pipe].micro_batches
                counted[i.op][g // h.ranks, i.stage, m] += 1
    expected = [(w, s, m) for w in range(h.width) for s in range(h.stages) for m in range(h.micro_batches)]
    assert counted["FWD"] == Counter(expected)
    assert counted["BWD"] + counted["BWD_INPUT"] == Counter(expected)
    assert counted["BWD_INPUT"] == counted["BWD_WEIGHT"]
    assert counted["RECOMPUTE"] <= Counter(expected)


@given(trees)
@examples(125)
def test_a_printed_tree_parses_to_itself(tree: n.Schedule) -> None:
    text = print_schedule(tree)
    assert parse(Source("printed", text)) == tree
    assert print_schedule(parse(Source("printed", text))) == text


@given(programs())
@examples(75)
def test_a_random_program_is_equal_after_writing_and_reading(p: Program) -> None:
    for write, read in ((program_to_json, program_from_json), (program_to_text, program_from_text)):
        reread = read(write(p))
        # Programs are equal if their digests are. A field that a digest lacks shows only in the header and the streams.
        assert (reread.header, streams(reread)) == (p.header, streams(p))
        assert reread == p and reread.digest == p.digest
        assert write(reread) == write(p)
    assert with_streams(p, streams(p)) == p


@given(schedules(), st.sampled_from([1, 1, 2, 3]))
@examples(60)
def test_random_schedules_compile_to_correct_programs(text: str, width: int) -> None:
    """The drawn orders cannot deadlock, so the compiler must succeed for every placement, window and width."""
    tree = parse(Source("random", text))
    assert parse(Source("printed", print_schedule(tree))) == tree
    p = compile_text(text, width=width).program
    check_exactly_once(p)
    assert not find_error(p)
    assert compile_text(print_schedule(tree), width=width).program == p  # compiling again gives the same program
    assert verify(program_from_json(program_to_json(p))) == p
    assert program_from_text(program_to_text(p)) == p


@given(schedules(), st.integers(0, 3), st.integers(0, 5), st.integers(0, 3))
@examples(30)
def test_two_simulators_agree(text: str, F: int, B: int, hop: int) -> None:  # noqa: N803
    p = compile_text(text).program
    costs = {"FWD": F, "BWD": B, "BWD_INPUT": F + B, "BWD_WEIGHT": 1, "RECOMPUTE": 2 * F}
    s = simulate(p, {"F": F, "B": B, "I": F + B, "W": 1, "R": 2 * F, "hop": hop})
    assert s.makespan == makespan(p, costs, hop)
    assert all(b >= 0 and w >= o >= 0 for b, w, o in zip(s.busy, s.wall_bubbles, s.own_bubbles, strict=True))


@st.composite
def library(draw: st.DrawFn) -> Program:
    """Draw a schedule of the library, its parameters and a width; return the program."""
    name = draw(st.sampled_from(sorted(SMALL)))
    width = draw(st.sampled_from([1, 1, 2, 3]))
    if name.startswith("chimera"):
        D = draw(st.sampled_from([2, 4, 6, 8, 12]))  # noqa: N806
        N = draw(st.integers(1, 3)) * D if name == "chimera" else draw(st.integers(1, 20))  # noqa: N806
        extra = {"f": draw(st.sampled_from(chimera_pairs(D)))}
        if name in ("chimera_doubling", "chimera_halving"):
            extra = {"again": draw(st.integers(0, 1))}
        if name == "chimera_fill":
            extra = {}
        if name == "chimera_recompute":
            extra = {"early": draw(st.integers(0, 3))}
        return program(name, width, D=D, N=N, **extra)
    D, N = draw(st.integers(1, 7)), draw(st.integers(1, 12))  # noqa: N806
    if name in ("bitpipe", "dualpipe", "gems"):  # two directions with the same number of micro-batches
        D, N = (D + 1 if name == "gems" else D + D % 2), 2 * N  # noqa: N806
    if name in ("dualpipe", "dualpipev", "zb_h2", "zb_v"):  # they require about 2D micro-batches or more
        N += 2 * D  # noqa: N806
    # By schedule: its third parameter, and the largest value of it that is drawn.
    third = {"dapple": ("policy", 2), "interleaved": ("v", 3), "looped_bfs": ("v", 3), "hanayo": ("w", 3)}
    extra = {third[name][0]: draw(st.integers(1, third[name][1]))} if name in third else {}
    return program(name, width, D=D, N=N, **extra)


@given(library())
@examples(30)
def test_the_library_is_correct_at_random_sizes(p: Program) -> None:
    check_exactly_once(p)
    assert not find_error(p, range(1))
    assert program_from_text(program_to_text(p)) == p
    assert simulate(p).makespan == makespan(p)
    costs = {"FWD": 2, "BWD": 3, "BWD_INPUT": 1, "BWD_WEIGHT": 4}
    assert simulate(p, {"F": 2, "B": 3, "I": 1, "W": 4, "hop": 1}).makespan == makespan(p, costs, 1)


SCRIPT = """
import sys
from chimerac.compiler import compile_schedule
from chimerac.chimera_ir.jsonform import json_schema, program_to_json
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.analyze.graph import dependency_graph, dot, graphml
from chimerac.compiler.analyze.report import report
from chimerac.compiler.analyze.simulate import simulate
from tests.helpers import SMALL
for name, sizes in SMALL.items():
    for parameters in sizes:
        for width in (1, 2):
            p = compile_schedule(name, parameters, width).program
            s, graph = simulate(p), dependency_graph(p)
            drawing = draw_timeline(p, s.timeline)
            sys.stdout.write(program_to_json(p) + report(p, s) + drawing + dot(graph) + graphml(graph))
sys.stdout.write(json_schema())
"""


def test_outputs_have_the_same_bytes_under_two_hash_seeds() -> None:
    outputs = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        completed = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, check=True)
        outputs.append(completed.stdout)
    assert len(outputs[0]) > 100_000
    assert outputs[0] == outputs[1]
