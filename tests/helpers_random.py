"""hypothesis strategies: schedules that must compile, syntax trees, and arbitrary programs, most of them wrong."""

from __future__ import annotations

import re

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from chimerac.chimera_ir.diagnostics import Source, Span
from chimerac.chimera_ir.instructions import (
    AllReduce,
    Bwd,
    BwdInput,
    BwdWeight,
    Free,
    Fwd,
    Instruction,
    Recompute,
    Recv,
    Send,
    stage_group,
)
from chimerac.chimera_ir.program import Costs, Header, Pipe, Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.kinds import KINDS

NOWHERE = Span(Source("nowhere", ""), 1, 1, 1, 1)


@st.composite
def schedules(draw: DrawFn) -> str:
    """Draw a schedule that must compile: its placements, pipes, window, costs and sync are random; its order cannot deadlock.

    The tick of a task is `logical time * scale + number of the task`, with a scale larger than every number. The logical
    times respect every dependency for any placement. No two tasks of a rank have the same tick: their numbers differ, except
    those of the F and the R of a micro-batch, whose logical times differ.
    """
    ranks, stages = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any))
    scale = 4 * len(counts) * stages * max(counts)
    lines = [f"schedule random{draw(st.integers(0, 9))}", f"param D = {ranks}   let S = {stages}", "ranks D   stages S"]
    lines += draw(st.lists(st.sampled_from(["sync at end", "sync eager", "sync eager where idle"]), max_size=1))
    if draw(st.booleans()):
        lines.append(f"window {draw(st.integers(0, 3))}")
    if draw(st.booleans()):
        F, B, hop = (draw(st.integers(0, 4)) for _ in range(3))  # noqa: N806
        lines.append(f"cost F(s) = {F} + s % 2, B = {B}, hop = {hop}")
    if stages > 1 and draw(st.booleans()):
        lines.append(f"tied shared on stages 0, {stages - 1}")
    rules = []
    for p, count in enumerate(counts):
        places = draw(placements(ranks, stages))
        lines.append(f"pipe p{p} {{ {places}  micro_batches {count} }}")
        size = draw(st.sampled_from([1, 1, 1, 2, 3]))  # of the groups of forwards
        # The time of a forward increases with s. The time of a backward decreases with s, and is after all forwards of m.
        forward_stride, forward_slope = draw(st.integers(1, 3)), draw(st.integers(-2, 5))
        forward_start = draw(st.integers(0, 9))
        backward_stride, backward_slope = draw(st.integers(1, 3)), draw(st.integers(-2, 5))
        # `2 * size`: a group of forwards has the time of its first micro-batch. With the slope -2 this is up to
        # 2 * (size - 1) later than the time of its last one.
        delay = max(0, forward_slope - backward_slope) * count + 2 * size + draw(st.integers(0, 6))
        backward_start = forward_start + forward_stride * stages + delay
        number = f"(s*{count} + m)*{4 * len(counts)} + {4 * p}"
        offset = 40  # added to all logical times, so that they are positive for negative slopes too
        group = f" = {size}*g .. {size}*g + {size - 1}" if size > 1 else ""
        rules.append(
            f"F p{p}(s, m{group}) at ({offset + forward_start} + {forward_stride}*s + {forward_slope}*m)*{scale} + {number}"
        )
        backward = f"({offset + backward_start} + {backward_stride}*(S - 1 - s) + {backward_slope}*m)*{scale} + {number}"
        # An R has the logical time of the backward, and a smaller tick. It may exist only where its stage recomputes.
        if "recompute" in places and draw(st.booleans()):
            of_stage = re.search(r"recompute when (s [%>] \d(?: == 0)?)", places)
            condition = f"{of_stage[1] if of_stage else 's >= 0'}{draw(st.sampled_from(['', ' and m % 2 == 0']))}"
            rules.append(f"R p{p}(s, m) when {condition} at {backward}")
        if draw(st.booleans()):
            weight_delay = draw(st.integers(0, 5))
            rules.append(f"I p{p}(s, m) at {backward} + 1")
            rules.append(f"W p{p}(s, m) at {backward} + {weight_delay}*{scale} + 2")
        else:
            rules.append(f"B p{p}(s, m) at {backward} + 3")
    lines.append("order ticks {\n    " + "\n    ".join(draw(st.permutations(rules))) + "\n}")
    return "\n".join(lines) + "\n"


@st.composite
def placements(draw: DrawFn, ranks: int, stages: int) -> str:
    """Draw stage clauses: a formula, a chain of `if`, or ranges of stages."""
    kind = draw(st.sampled_from(["formula", "chain", "ranges"]))
    recompute = draw(st.sampled_from(["", "", "", " recompute", " recompute when s % 2 == 0", " recompute when s > 1"]))
    if kind == "formula":
        return f"stage s on rank ({draw(st.integers(0, 4))} + {draw(st.integers(-3, 3))}*s) % D{recompute}"
    on = [draw(st.integers(0, ranks - 1)) for _ in range(stages)]  # the rank of every stage
    if kind == "chain":
        return f"stage s on rank {''.join(f'if s == {s} then {r} else ' for s, r in enumerate(on[:-1]))}{on[-1]}{recompute}"
    cut = draw(st.integers(0, stages))
    halves = [(0, cut - 1, on[0]), (cut, stages - 1, on[-1])]  # one of them may be empty
    return "  ".join(f"stage s in {first} .. {last} on rank {r}{recompute}" for first, last, r in halves if first <= last)


# --- syntax trees ---------------------------------------------------------------------------------------------------

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(lambda x: x not in keywords())
binders = identifiers.map(lambda x: n.Identifier(x, span=NOWHERE))


def _node(kind: type, *parts: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Return a strategy for nodes of this kind, whose fields are drawn from `parts`."""
    return st.tuples(*parts).map(lambda fields: kind(*fields, span=NOWHERE))


def _compound(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Return a strategy for expressions whose parts are drawn from `inner`."""
    operators = st.sampled_from(["or", "and", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "//", "%"])
    return st.one_of(
        _node(n.Binary, operators, inner, inner),
        _node(n.Unary, st.sampled_from(["-", "not"]), inner),
        _node(n.IfElse, inner, inner, inner),
        _node(n.Call, identifiers, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    )


expressions = st.recursive(
    st.one_of(_node(n.Int, st.integers(0, 2**61)), _node(n.Name, identifiers)),
    _compound,
    max_leaves=12,
)
_ranges = _node(n.Range, expressions, expressions)
_recompute = _node(n.Recompute, st.none() | expressions)
_clauses = _node(n.StageClause, binders, st.none() | _ranges, expressions, st.none() | _recompute)
_lets = _node(n.Let, binders, expressions)
_rules = _node(
    n.Rule, binders, st.none() | _node(n.PipeRef, binders, st.none() | expressions), binders, binders,
    st.none() | _ranges, st.none() | expressions, expressions,
)  # fmt: skip
_fills = _node(n.Fill, binders, binders, binders, expressions)
_costs = _node(
    n.CostStatement, st.lists(_node(n.Cost, binders, st.none() | binders, expressions), min_size=1, max_size=3).map(tuple)
)
_greedy = _node(
    n.Greedy,
    st.lists(_costs, max_size=2).map(tuple),
    st.lists(binders, max_size=3).map(tuple),
    st.lists(_node(n.Key, expressions, st.booleans()), max_size=3).map(tuple),
    st.lists(_node(n.Grouping, binders, expressions), max_size=2).map(tuple),
    st.lists(_node(n.Limit, expressions, st.sampled_from(["rank", "stage", "pipe"])), max_size=2).map(tuple),
)
_kinds = st.sampled_from(tuple(KINDS)).map(lambda x: n.Identifier(x, span=NOWHERE))
_pipe_names = identifiers.filter(lambda x: x not in KINDS).map(lambda x: n.Identifier(x, span=NOWHERE))
_pipes = st.none() | _node(n.PipeRef, _pipe_names, st.none() | expressions)
_arguments = st.lists(expressions, max_size=3).map(lambda x: (*x, None, None, None)[:3])  # stage, first, last


@st.composite
def _actions(draw: DrawFn, depth: int = 2) -> tuple[object, ...]:
    """Draw the actions of a block of a listing. `&` is only between two tasks, and a task is in at most one pair.

    Args:
        depth: how deep other blocks may be nested in this one.
    """
    actions: list[object] = []
    kinds = ["let", "task", "pair"] + (["repeat", "repeat in", "if"] if depth else [])
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
        match kind:
            case "let":
                actions.append(draw(_lets))
            case "task" | "pair":
                for overlap in [False] if kind == "task" else [True, False]:
                    actions.append(n.TaskAction(draw(_kinds), draw(_pipes), *draw(_arguments), overlap, span=NOWHERE))
            case "if":
                parts = draw(_actions(depth - 1)), draw(_actions(depth - 1))
                actions.append(n.Choice(draw(expressions), *parts, span=NOWHERE))
            case _:
                binder, low = (draw(binders), draw(expressions)) if kind == "repeat in" else (None, None)
                actions.append(n.Repeat(binder, low, draw(expressions), draw(_actions(depth - 1)), span=NOWHERE))
    return tuple(actions)


statements = st.one_of(
    _node(n.Param, binders, st.none() | expressions),
    _node(n.Require, expressions),
    _lets,
    _node(n.Setting, st.sampled_from(["ranks", "stages", "window"]), expressions),
    _node(n.Size, st.integers(0, 2**61), st.integers(0, 2**61)),
    _node(
        n.PipeDecl, binders, st.none() | _node(n.Family, binders, _ranges),
        st.lists(_clauses, min_size=1, max_size=3).map(tuple), expressions,
    ),
    _node(
        n.Ticks, st.lists(_lets, max_size=2).map(tuple), st.lists(_rules, max_size=3).map(tuple),
        st.lists(_fills, max_size=2).map(tuple),
    ),
    _greedy,
    _node(n.Listing, binders, _actions()),
    _costs,
    _node(n.Sync, st.sampled_from(["at end", "eager", "eager where idle"])),
    _node(n.TiedDecl, binders, st.lists(expressions, min_size=1, max_size=3).map(tuple)),
    _node(n.MemoryLimit, binders, expressions),
)  # fmt: skip
trees = _node(n.Schedule, binders, st.lists(statements, max_size=6).map(tuple))


# --- arbitrary programs ---------------------------------------------------------------------------------------------


@st.composite
def programs(draw: DrawFn) -> Program:
    """Draw a program that has both text forms, but that the verifier would usually refuse.

    It may have all instructions and flags, groups of micro-batches, limits and tied parameters.
    """
    ranks, stages, width = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any))
    total, first, pipes = sum(counts), 0, []
    for p, count in enumerate(counts):
        name = draw(st.sampled_from([f"pipe{p}", f"down[{p}]"]))
        placement = tuple(draw(st.integers(0, ranks - 1)) for _ in range(stages))
        pipes.append(Pipe(name, placement, tuple(range(first, first + count))))
        first += count
    costs = [tuple(draw(st.integers(0, 9)) for _ in range(stages)) for _ in range(4)]
    header = Header(
        schedule="any",
        parameters={"D": ranks, "N": draw(st.integers(-3, 3))},
        ranks=ranks,
        stages=stages,
        micro_batches=total,
        pipes=tuple(pipes),
        width=width,
        window=draw(st.integers(0, 3)),
        machine=draw(st.sampled_from(["posted", "window", "rendezvous", "paired", "serial"])),
        kind=draw(st.sampled_from(["training", "evaluation"])),
        micro_batch_size=draw(st.sampled_from([(1, 1), (1, 2)])),
        tied=draw(st.sampled_from([(), (Tied("shared", (0, stages - 1)),)])),
        limits=draw(st.sampled_from([{}, {"activations": 3}, {"activations": 1, "receive_buffers": 2}])),
    )
    pipe, stage, peer = st.integers(0, len(pipes) - 1), st.integers(0, stages - 1), st.integers(0, width * ranks - 1)
    ids = st.lists(st.integers(0, total - 1), min_size=1, max_size=3).map(tuple)
    value, flag = st.sampled_from(["act", "grad"]), st.booleans()
    members = st.lists(peer, min_size=1, max_size=3).map(tuple)
    instruction: st.SearchStrategy[Instruction] = st.one_of(
        st.builds(Fwd, pipe, stage, ids, overlap=flag, recompute=flag),
        *(st.builds(task, pipe, stage, ids, overlap=flag) for task in (Bwd, BwdInput, BwdWeight, Recompute)),
        *(st.builds(transfer, value, pipe, stage, ids, peer) for transfer in (Send, Recv)),
        st.builds(Free, value, pipe, stage, ids),
        st.tuples(stage, members).map(lambda x: AllReduce(stage_group(x[0]), *x)),
        members.map(lambda ranks: AllReduce("shared", 0, ranks)),
    )
    streams = [draw(st.lists(instruction, max_size=6)) for _ in range(width * ranks)]
    of_recompute = draw(st.sampled_from([(), costs[0], (4,) * stages]))
    return program_of(header, streams, Costs(*costs, hop=draw(st.integers(0, 3)), RECOMPUTE=of_recompute))
