"""Common mistakes about blocks: statements in the wrong block, the heads of pipes and orders, the contents of pipes."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.change import COMPARISONS, Answer, Change, begins_value, is_number, minus_one
from chimerac.compiler.syntax.kinds import KINDS

NO_LOOP = "formulas need no loop: F(s, m) at ... is for every stage and micro-batch; listings have loops: repeat"
_NO_LOOP_IN_GREEDY = "a scheduler needs no loop: it starts every task; listings have loops: repeat"
# word -> the kind of the block that it belongs in, and the advice if it is somewhere else
_BLOCK_OF = {
    "prefer": ("greedy", "'prefer' is a line of order greedy"),
    "group": ("greedy", "'group' is a line of order greedy; in order ticks a group is written F(s, m = 2*g .. 2*g + 1) at ..."),
    "stage": ("pipe", "'stage' belongs in the braces of a pipe: pipe main { stage s on rank s   micro_batches N }"),
    "micro_batches": ("pipe", "'micro_batches' belongs in the braces of a pipe, after its stages"),
}
_NO_FORMULAS_IN_GREEDY = "formulas belong in order ticks; order greedy has lines of prefer, then, limit, group and cost"
_LIMIT_ADVICE = "a limit on what a rank holds belongs outside of the order: limit activations <= 4"
_COST_ADVICE = "costs belong outside of the order"
# (kind of a block, or '' outside of all blocks; a word that does not belong there) -> advice
_ADVICE = {
    ("greedy", "let"): "order greedy has no let: name the value above, outside of the order",
    **dict.fromkeys([("greedy", task) for task in KINDS], _NO_FORMULAS_IN_GREEDY),
    ("listing", "at"): "formulas with 'at' belong in order ticks; a listing names one task after another",
    ("listing", "when"): "in a listing a condition is written: if r == 0 { ... }",
    ("listing", "limit"): _LIMIT_ADVICE,
    ("ticks", "limit"): _LIMIT_ADVICE,
    ("listing", "cost"): _COST_ADVICE,
    ("ticks", "cost"): _COST_ADVICE,
    ("ticks", "&"): "overlapped pairs belong in order listing",
    ("ticks", "repeat"): NO_LOOP,
    ("greedy", "repeat"): _NO_LOOP_IN_GREEDY,
    ("greedy", "for"): _NO_LOOP_IN_GREEDY,
    ("greedy", "if"): "choices belong in values: then smaller (if s < D then 0 else 1)",
    ("ticks", "if"): "a condition comes after the task: F(s, m) when s == 0 at ...",
    ("", "repeat"): "loops belong in order listing for rank r { ... }",
    ("", "for"): "there is no loop over statements; several pipes are a family: pipe main[i in 0 .. 1] { ... }",
}
# kind of a block -> words that belong in it; outside of all blocks, such a word suggests that the last block ended too early
_WORDS_OF_BLOCK = {
    "ticks": tuple(KINDS),
    "greedy": ("prefer", "then", "group"),  # and `limit` and `cost`, also statements outside of blocks
    "listing": (*KINDS, "repeat", "if", "else"),
    "pipe": ("stage", "micro_batches"),
}


def wrong_blocks(p: Place) -> Iterator[Answer]:
    """Statements and words where they do not belong, inside or outside of blocks, and blocks that end too early.

    The advice of `_ADVICE` about `at` and `when` is given anywhere on a line, about `&` anywhere but after an operand. Its
    other advice is given only at the first word of a line.
    """
    text = p.text()
    kind, advice = _BLOCK_OF.get(text, (p.kind, ""))
    if kind != p.kind and (text != "stage" or p.text(2) in ("on", "in")):
        yield advice
    if p.closed and not p.blocks:
        block = p.closed[-1]
        if text in _WORDS_OF_BLOCK.get(block.kind, ()) and block.close is not None and p.starts_line:
            yield Change(block.close, block.close + 1, "", f"it ends '{block.opening}'")
            yield f"'{text}' belongs in a block, and '{block.opening}' has ended at line {p.tokens[block.close].line}"
    if text == "else" and p.kind == "listing" and p.text(-1) == "}":
        yield "an else comes right after the block of its if: if r == 0 { F } else { B }"
    if p.kind == "listing" and text == "when":
        yield Change(p.at, p.at + 1, "if")
    # Outside of blocks, `for rank` is the head of a listing without its first words: `orders` answers it.
    anywhere = text in ("at", "when") or (text == "&" and "AND" not in p.terminals)
    if (p.kind, text) in _ADVICE and (anywhere or (p.starts_line and text != "&" and p.text(1) != "rank")):
        yield _ADVICE[p.kind, text]


_WORDS_FOR_ON = ("at", "->", "=>", ":", "=", "to", "in", "of")
_ORDER_ADVICE = "write which form it has: order ticks { ... }, order greedy { ... } or order listing for rank r { ... }"


def pipes(p: Place) -> Iterator[Answer]:
    """Mistakes in `pipe NAME[i in LOW .. HIGH] { stage s on rank EXPR   micro_batches EXPR }`."""
    text = p.text()
    if p.text(-1) == "pipe" and text == "{":
        yield Change(p.at, p.at + 1, "main {", "a pipe has a name")
    if "[" in p.allowed and text == "(" and p.text(-2) == "pipe" and (close := p.closing_bracket(p.at)) is not None:
        yield Change(p.at, close + 1, f"[{p.between(p.at + 1, close)}]")
    if p.text(-1) == "[" and p.text(-3) == "pipe":
        if p.text(1) == "..":
            yield Change(p.at, p.at + 1, f"i in {text}", "the pipes of a family are numbered by a name")
        elif p.text(1) == "]" and text in ("0", "1"):
            yield Change(p.at - 1, p.at + 2, "", "one pipe has no index")
        elif p.text(1) == "]" and is_number(text):
            last = minus_one(p, p.at, p.at + 1)
            yield Change(p.at, p.at + 1, f"i in 0 .. {last}", "the pipes of a family are numbered by a name")
    if p.allows_only("in") and text == "]":
        yield f"write the range of indices: [{p.text(-1)} in 0 .. 1]"
    range_follows = ".." in [p.text(k) for k in range(2, 8)]  # stage s = 0 .. D - 1
    expects_in = p.allows_only("in") or (p.kind == "pipe" and "in" in p.allowed and range_follows)
    if expects_in and text in ("=", ":", "from", "of", "<-"):
        yield Change(p.at, p.at + 1, "in")
    if "{" in p.allowed and text == ":" and p.text(-2) == "pipe":
        if p.text(1) == "{":
            yield Change(p.at, p.at + 1, "")
        yield Change(p.at, p.end_of_line(p.at), f"{{ {p.between(p.at + 1, p.end_of_line(p.at))} }}")
        yield "what is in a pipe belongs in braces: pipe main { stage s on rank s   micro_batches N }"
    if p.kind != "pipe":
        return
    colon = next((k for k in range(p.at, p.end_of_line(p.at)) if p.tokens[k].text == ":"), None)
    if text == "for" and colon is not None and p.between(colon + 1, colon + 2) == "stage":  # for s in 0 .. 3: stage s on
        yield Change(p.at, colon + 3, f"stage {p.between(p.at + 1, colon)}")
    if p.text(-1) in ("stage", "stages") and is_number(text):
        yield Change(p.at, p.at + 1, f"s in {text}")
    if p.text(-1) == "recompute" and text in ("if", "where", "for", "at"):
        yield Change(p.at, p.at + 1, "when")
    if p.allows_only("stage") and text in ("rank", "recompute"):
        yield "a pipe first places its stages: stage s on rank s; after that comes recompute"
    on = next((k for k in range(p.at, p.end_of_line(p.at)) if p.tokens[k].text == "on"), p.at)
    to = next((k for k in range(p.at, on) if p.tokens[k].text in ("to", "..", "...", "until")), None)
    if {"in", "on"} <= p.allowed and to is not None and text in ("from", "=", ":", "of", "between", "<-"):  # from 0 to 3 on
        yield Change(p.at, on, f"in {p.between(p.at + 1, to)} .. {p.between(to + 1, on)}")
    if {"in", "on"} <= p.allowed and text in (*COMPARISONS, "when", "if", "where", "for"):
        yield "the stages of a clause are a range: stage s in 0 .. D - 1 on rank ..."
    if "on" in p.allowed:
        if text == "rank":
            yield Change(p.at, p.at + 1, "on rank")
        elif text in _WORDS_FOR_ON:
            yield Change(p.at, p.at + 1, "on" if p.text(1) == "rank" else "on rank")
    if text == "rank" and p.text(-1) == "in":
        yield Change(p.at - 1, p.at + 1, "on rank")
    if p.allows_only("rank") and begins_value(p, p.at):
        yield Change(p.at, p.at + 1, f"rank {text}")
    if p.text(-1) == "stage" and text == "on":
        yield Change(p.at, p.at + 1, "s on", "the stage has a name, which the formula uses")
    if "stage" in p.allowed and text.isidentifier() and p.text(1) in ("on", "in"):
        yield Change(p.at, p.at + 1, "stage" if text in ("stages", "for") else f"stage {text}")
    if "micro_batches" in p.allowed:
        if text == "micro" and p.text(1) in ("batches", "batch"):
            yield Change(p.at, p.at + 2, "micro_batches")
        if text == "micro" and p.text(1) == "-":
            yield Change(p.at, p.at + 3, "micro_batches")
        if text in ("batches", "microbatch", "mb", "m"):
            yield Change(p.at, p.at + 1, "micro_batches")
        if text == "}":
            yield "write how many micro-batches flow through the pipe, after its stages: micro_batches N"
    if text == "micro_batches" and p.allows_only("stage"):
        yield "the stages come first: stage s on rank s   micro_batches N"
    if text == "stage" and "}" in p.allowed:
        yield "the stages come first, then micro_batches"


def missing_openings(p: Place) -> Iterator[Answer]:
    """Blocks whose opening brace is missing."""
    if "{" in p.allowed and p.allowed <= {"{", "[", "(", "in", "}"} and p.at and (p.starts_line or not p.blocks):
        yield Change(p.at - 1, p.at, f"{p.text(-1)} {{")


def orders(p: Place) -> Iterator[Answer]:
    """Mistakes in `order ticks {`, `order greedy {` and `order listing for rank r {`."""
    text = p.text()
    if text in ("ticks", "greedy", "listing") and not p.blocks and p.text(-1) != "order":
        yield Change(p.at, p.at + 1, f"order {text}")
    if "ticks" in p.allowed:
        if text in ("by", "in", "of", "is", "=", ":", "as"):
            yield Change(p.at, p.at + 1, "")
        if text in ("list", "lists", "program", "loop"):
            yield Change(p.at, p.at + 1, "listing")
        if text in ("tick", "time", "formula", "formulas"):
            yield Change(p.at, p.at + 1, "ticks")
        yield _ORDER_ADVICE
    if p.allows_only("{") and not p.blocks and text == ":":
        yield Change(p.at, p.at + 1, "{")
    if not p.blocks and text == "for" and p.text(1) == "rank":
        yield Change(p.at, p.at + 1, "order listing for")
    if p.allows_only("for"):
        if text == "(" and p.text(2) == ")":
            yield Change(p.at, p.at + 3, f"for rank {p.text(1)}")
        if text in ("{", "rank", "ranks"):
            yield Change(p.at, p.at + 1, "for rank r {" if text == "{" else "for rank")
        if text in ("of", "per", "by", "on", "at"):
            yield Change(p.at, p.at + 1, "for")
    if p.allows_only("rank") and not p.blocks:
        if text in ("each", "every", "all", "any"):
            yield Change(p.at, p.at + 2, "rank")
        elif text.isidentifier():
            yield Change(p.at, p.at + 1, "rank" if text == "ranks" else f"rank {text}")
    if p.text(-1) == "rank" and p.text(-2) == "for" and text == "{":
        yield Change(p.at, p.at + 1, "r {", "the rank has a name, which the tasks use")
    if p.allows_only("{") and not p.blocks and text == "in":
        brace = next((k for k in range(p.at, p.end_of_line(p.at)) if p.tokens[k].text == "{"), None)
        if brace is not None:
            yield Change(p.at, brace, "", "the block is for every rank")
