"""Common mistakes in `order listing` blocks, such as loops of other languages and blocks without braces; and in ranges."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.blocks import NO_LOOP
from chimerac.compiler.diagnose.slips.change import (
    Answer,
    Change,
    begins_value,
    is_number,
    last_of,
    minus_one,
    start_of_line,
    value_after,
)
from chimerac.compiler.syntax.kinds import KINDS

_LOOP_ADVICE = "a loop is written: repeat i in 0 .. 3 { ... }"
_LOOP_WORDS = ("for", "foreach", "loop", "while", "do", "times", "until")
_RANGE_WORDS = ("to", "through", "until", "..", "...", "..=", "..<")  # what other languages write between LOW and HIGH
_EXCLUSIVE = ("until", "..<")  # the range words whose range does not include HIGH


def loops(p: Place) -> Iterator[Answer]:
    """Loops of other languages, in listings and in `order ticks`."""
    text = p.text()
    if p.kind == "ticks" and text in _LOOP_WORDS:
        yield NO_LOOP
    if p.kind != "listing":
        return
    start = start_of_line(p)
    end, tokens = p.end_of_line(start), p.tokens
    begin = next((k for k in range(start, min(p.at + 1, end)) if tokens[k].text in (*_LOOP_WORDS, "repeat")), None)
    if begin is not None:
        yield from _loop(p, begin, end)
    if p.text(-2) == "repeat" and p.text(-1) in KINDS and begins_value(p, p.at):
        yield Change(p.at - 2, p.at + 1, f"repeat {text} {{ {p.text(-1)} }}")
    if text == "*" and p.text(1) in KINDS and p.text(-1).isidentifier():  # w * F
        yield Change(p.at - 1, p.at + 2, f"repeat {p.text(-1)} {{ {p.text(1)} }}")
    if p.text(-1) in KINDS and text in ("*", "x", "^", "**", "times") and p.at + 1 < end:  # F * w
        yield Change(p.at - 1, p.at + 2, f"repeat {p.text(1)} {{ {p.text(-1)} }}")
    if is_number(text):  # 4 F, 4 * F
        task = p.at + 2 if p.text(1) in ("*", "x") else p.at + 1
        if task < end and tokens[task].text in KINDS:
            yield Change(p.at, task + 1, f"repeat {text} {{ {tokens[task].text} }}")
    if text in _LOOP_WORDS:
        yield _LOOP_ADVICE


def ranges(p: Place) -> Iterator[Answer]:
    """Ranges as other languages write them, in place of LOW .. HIGH."""
    text = p.text()
    if text in ("...", "..=", "..<") or (".." in p.allowed and text in ("to", "until", "through", "-", "->", ":", ",")):
        end = value_after(p, p.at + 1)
        if text in _EXCLUSIVE and p.at + 1 < end:
            yield Change(p.at, end, f".. {minus_one(p, p.at + 1, end)}", "a range includes both ends")
        yield Change(p.at, p.at + 1, "..")
    if text == "[" and p.text(-1) == "in" and (close := p.closing_bracket(p.at)) is not None:  # in [0, 3]
        comma = next((k for k in range(p.at, close) if p.tokens[k].text in (",", "..")), None)
        if comma is not None:
            yield Change(p.at, close + 1, f"{p.between(p.at + 1, comma)} .. {p.between(comma + 1, close)}")
    if text == ".." and p.open_brackets("(") and p.tokens[p.open_brackets("(")[-1] - 1].text == "in":  # in (0 .. 3)
        bracket = p.open_brackets("(")[-1]
        close = p.closing_bracket(bracket)
        if close is not None:
            yield Change(bracket, close + 1, p.between(bracket + 1, close))
    name = last_of(p, ("range",), start_of_line(p), p.at)  # range(4)
    if name is not None and p.text_at(name + 1) == "(" and (close := p.closing_bracket(name + 1)) is not None and close < p.at:
        yield Change(name, close + 1, _range_of(p, name + 1, close))
    if p.allows_only("..") and text in ("on", "{", "]"):
        yield "a range has a first and a last value, both included: LOW .. HIGH"


def _range_of(p: Place, bracket: int, close: int) -> str:
    """Return `0 .. STOP - 1` for Python's range(STOP), and `START .. STOP - 1` for range(START, STOP).

    Args:
        bracket, close: the indices of its brackets.
    """
    depth, comma = 0, None
    for k in range(bracket + 1, close):
        text = p.tokens[k].text
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if text == "," and not depth:
            comma = k
            break
    start = p.between(bracket + 1, comma) if comma else "0"
    return f"{start} .. {minus_one(p, (comma or bracket) + 1, close)}"


def _loop(p: Place, k: int, end: int) -> Iterator[Answer]:
    """Yield answers that write a loop with `repeat`.

    Args:
        k: the index of the word that begins the loop, such as `for`.
        end: the index after the last token of its line.
    """
    tokens, loop_word = p.tokens, p.tokens[k].text
    texts = [w.text for w in tokens[k + 1 : end]]
    if loop_word == "while":
        yield "a loop has a count: repeat COUNT { ... }, or repeat i in LOW .. HIGH { ... }"
    closing = p.closing_bracket(k + 1) if texts[:1] == ["("] else None  # repeat (i in 0 .. 3) { ... }
    if closing is not None and "in" in texts and closing < end:
        yield Change(k, closing + 1, f"repeat {p.between(k + 2, closing)}")
    name = k + 1  # the index of the loop variable
    if texts[:1] in (["each"], ["every"]):
        texts, name = texts[1:], name + 1
    if len(texts) > 3 and texts[0].isidentifier() and texts[1] in ("in", "=", "from", ":", "of", ":="):
        if texts[2] == "range" and texts[3] == "(" and (close := p.closing_bracket(name + 3)) is not None:
            yield from _loop_with_head(p, k, close + 1, end, f"repeat {texts[0]} in {_range_of(p, name + 3, close)}")
        to = next((j for j in range(name + 2, end) if tokens[j].text in _RANGE_WORDS), None)
        if to is not None:
            stop = next((j for j in range(to, end) if tokens[j].text in ("{", ":")), end)
            last = minus_one(p, to + 1, stop) if tokens[to].text in _EXCLUSIVE else p.between(to + 1, stop)
            head = f"repeat {texts[0]} in {p.between(name + 2, to)} .. {last}"
            yield from _loop_with_head(p, k, stop, end, head)
    if loop_word in ("for", "loop", "do", "times") and "in" not in texts:
        yield Change(k, k + 1, "repeat")
    if loop_word == "repeat" and texts[:1] == ["{"]:
        yield "write the count: repeat N { ... }"
    if loop_word == "repeat" and p.text() in ("times", "x") and p.text(1) == "{":
        yield Change(p.at, p.at + 1, "")


def _loop_with_head(p: Place, first: int, stop: int, end: int, head: str) -> Iterator[Answer]:
    """Yield answers that give a loop the head `head`. If a colon ends its present head, they also put its body in braces.

    Args:
        first: the index of the loop's first token.
        stop: the index after its present head.
        end: the index after the last token of its line.
    """
    if stop < end and p.tokens[stop].text == ":":
        if stop + 1 < end:
            yield Change(first, end, f"{head} {{ {p.between(stop + 1, end)} }}")
        yield f"write: {head} {{ ... }}"
    else:
        yield Change(first, stop, head)


def bodies(p: Place) -> Iterator[Answer]:
    """Blocks without braces, and symbols between tasks or around them."""
    text, end = p.text(), p.end_of_line(p.at)
    if p.kind != "listing":
        return
    yield from _tasks(p)
    if "{" not in p.allowed:
        return
    bracket = p.at if text in ("(", "[") else None  # repeat 3 ( F B )
    if p.starts_line and p.text(-1) == ")":  # repeat N ( F ), read as a call: the error is at the next line
        bracket = p.opening_bracket(p.at - 1)
    close = p.closing_bracket(bracket) if bracket is not None else None
    if bracket is not None and close is not None and {w.text for w in p.tokens[bracket + 1 : close]} <= {*KINDS, ",", "&"}:
        yield Change(bracket, close + 1, f"{{ {p.between(bracket + 1, close).replace(',', '')} }}")
    if p.starts_line:
        return
    if text == "then" and p.text(1) == "{":
        yield Change(p.at, p.at + 1, "", "'then' belongs to an if-expression, not to a block of tasks")
    if text in (*KINDS, "repeat") and end < len(p.tokens) and p.tokens[end].text == "}":  # a block without {, closed by }
        texts = [w.text for w in p.tokens]
        if texts.count("{") < texts.count("}"):
            yield Change(p.at - 1, p.at, f"{p.text(-1)} {{")
    if text in ("then", ":", *KINDS, "do", "repeat"):  # if r == 0 then F else B
        first = p.at if text in (*KINDS, "repeat") else p.at + 1  # where the body begins
        otherwise = next((k for k in range(first, end) if p.tokens[k].text == "else"), None)
        if first < (otherwise or end) and p.tokens[first].text != "{":
            new = f"{{ {p.between(first, otherwise or end)} }}"
            if otherwise is not None:
                second = otherwise + 2 if p.text_at(otherwise + 1) == ":" else otherwise + 1  # where the body of else begins
                if second < end:
                    new += f" else {{ {p.between(second, end)} }}"
            yield Change(p.at, end, new, "the body of repeat, if and else is written in braces")
        yield "the body of repeat, if and else is written in braces: repeat N { F }, if r == 0 { F } else { B }"


_PIPE_ADVICE = "the name of the pipe follows the task, without a dot"
_SEPARATORS = ("->", "=>", ">", "then", "-")


def _tasks(p: Place) -> Iterator[Answer]:
    """Symbols between tasks or around them."""
    text = p.text()
    if text == "{" and p.text(-1) == "{":
        yield Change(p.at, p.at + 1, "", "one brace opens a block")
    if text == "." and p.text(-1) in KINDS:
        yield Change(p.at - 1, p.at + 2, f"{p.text(-1)} {p.text(1)}", _PIPE_ADVICE)
    elif text == "." and p.text(1) in KINDS:
        yield Change(p.at - 1, p.at + 2, f"{p.text(1)} {p.text(-1)}", _PIPE_ADVICE)
    if text == ")" and p.text(-1) == "(" and p.text(-2) in KINDS:
        yield Change(p.at - 1, p.at + 1, "", f"{p.text(-2)} without a stage is written without parentheses")
    close = p.closing_bracket(p.at)
    if text in ("(", "[") and close is not None and {w.text for w in p.tokens[p.at + 1 : close]} <= {*KINDS, ",", "&"}:
        yield Change(p.at, close + 1, p.between(p.at + 1, close).replace(",", ""), "tasks are written one after another")
    if p.text(1) in KINDS and (p.text(-1) in KINDS or p.text(-1) in (")", "]")):
        if text in _SEPARATORS:
            yield Change(p.at, p.at + 1, "", "tasks are written one after another, in their order")
        if text in ("+", "|", "||", "and", "/"):
            yield "two tasks one after the other are written F B; an overlapped pair is written F & B"
