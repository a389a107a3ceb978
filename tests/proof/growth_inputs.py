"""Inputs of any length: a given text with pieces that are repeated, with or without a number in each copy.

A `Recipe` builds a text from a number of copies. If there are many, twice as many copies give a text about twice as long, so a
reader should take about twice as long. `colliding` makes tuples of numbers whose hashes are equal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|\s+|[^\w\s]")  # a word, a number, white space or a symbol
WORD_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|\d+")


@dataclass(frozen=True)
class Part:
    """A repeated piece.

    Attributes:
        place: the position in the recipe's text.
        copy: (k, number of copies) -> text of copy k.
        closing: follows the last copy, once per copy.
    """

    place: int
    copy: Callable[[int, int], str]
    closing: str = ""
    description: str = ""


@dataclass(frozen=True)
class Recipe:
    """A text of variable length: a given text with parts inserted, one after another.

    If a part's place is before that of the previous part, the text between the two places occurs twice.
    """

    text: str
    parts: tuple[Part, ...]

    def build(self, copies: int) -> str:
        """Return the text with this number of copies of every part."""
        result, at = [], 0
        for part in self.parts:
            result += [self.text[at : part.place], *(part.copy(k, copies) for k in range(copies)), part.closing * copies]
            at = part.place
        return "".join([*result, self.text[at:]])

    def of_length(self, length: int) -> str:
        """Return a text of about this length. Every copy adds about the same length, measured with 8 and with 16 copies."""
        length_8, length_16 = len(self.build(8)), len(self.build(16))
        per_copy = max(1, length_16 - length_8) / 8
        length_0 = 2 * length_8 - length_16
        return self.build(max(1, round((length - length_0) / per_copy)))

    @property
    def description(self) -> str:
        return "; ".join(part.description for part in self.parts)


def random_recipe(seeds: Sequence[str], known: Sequence[str], rng: random.Random) -> Recipe:
    """Return a random recipe: a seed in which one to three pieces are repeated.

    Args:
        known: pieces for it from outside the seed.
    """
    text = rng.choice(seeds)
    count = rng.choice((1, 1, 1, 2, 2, 3))
    places = sorted(rng.choice(_places(text)) for _ in range(count))
    return Recipe(text, tuple(_part(place, text, known, rng) for place in places))


@cache
def _places(text: str) -> tuple[int, ...]:
    """Return the places for pieces: before every token of a text, and at its end."""
    return (*(m.start() for m in TOKEN.finditer(text)), len(text))


def _part(place: int, text: str, known: Sequence[str], rng: random.Random) -> Part:
    """Return a random part for a text: nested pieces, a symbol, a known piece, or a piece of the text.

    Args:
        place: where the part is inserted; a piece of the text may also be repeated where it is.
    """
    match rng.randrange(10):
        case 0:
            opening, closing = rng.choice(NESTS)
            return Part(place, lambda k, n: opening, rng.choice((closing, closing, "")), f"{opening!r} ... {closing!r}")
        case 1:
            symbol = rng.choice(SYMBOLS)
            return Part(place, lambda k, n: symbol, description=repr(symbol))
        case 2 | 3 if known:
            piece = rng.choice(known)
        case 4 | 5 | 6:  # a line, a statement, an object or a token is repeated where it is
            repeated = rng.choice([*rng.choice(_REPEATABLE).finditer(text)] or [*TOKEN.finditer(text)])
            return Part(repeated.start(), *_numbered(repeated[0], rng, [""]))
        case _:
            starts = _places(text)
            first = rng.randrange(len(starts))
            last = min(len(starts) - 1, first + rng.choice((1, 1, 2, 4, 8, 20, 60)))
            piece, place = text[starts[first] : starts[last]] or " ", rng.choice((place, starts[last]))
    return Part(place, *_numbered(piece, rng, JOINS))


_REPEATABLE = [
    re.compile(pattern)
    for pattern in (
        r"[^\n]*\n",  # a line
        r"\{[^{}]*\}(?:,\s*)?",  # an object of JSON without others in it, or a block
        r"[^\n;]+;",  # what a semicolon ends, such as an instruction of the compact text form
        r"\d+,? ?",  # a number
        r"\b[a-z]\w+ [^\n]*?(?= [a-z]\w+ |\n)",  # a keyword and what follows, up to the next word or line
        r"[FBIWR]\b[^\n]*?at[^\n]*",  # a rule for ticks
    )
]
JOINS = ["", "", " ", ", ", ",\n", "\n", "; "]  # what follows each copy


def _numbered(piece: str, rng: random.Random, joins: Sequence[str]) -> tuple[Callable[[int, int], str], str, str]:
    """Return copy, closing and description of a `Part`.

    The copies are equal, or each copy changes one or all of the words and numbers of the piece: it appends a number to a word,
    and replaces a number by another one. From copy to copy these new numbers rise, fall, or have no order.
    """
    join = rng.choice(joins)
    spans = [m.span() for m in WORD_OR_NUMBER.finditer(piece)]
    numbering = rng.randrange(5) if spans else 0  # 0: none; 1, 2: rising; 3: falling; 4: without order
    if numbering == 0:
        return lambda k, n: piece + join, "", repr(piece[:60])
    chosen = spans if rng.random() < 0.2 else [rng.choice(spans)]
    seed = rng.randrange(2**31)

    def numbered(k: int, n: int) -> str:
        result, at = [], 0
        for start, end in chosen:
            word = piece[start:end]
            # 2654435761 is a large odd factor, so the numbers of the copies are different, without order.
            number = {1: k, 2: k, 3: n - k, 4: (seed + k * 2654435761) % 2**31}[numbering]
            result += [piece[at:start], str(number) if word.isdigit() else f"{word}{number}"]
            at = end
        return "".join([*result, piece[at:], join])

    return numbered, "", f"{piece[:60]!r} with numbers"


NESTS = [  # (opening, closing)
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ('{"a":', "}"),
    ("[[", "]]"),
    ("if 1 == 1 then ", " else 0"),
    ("- ", ""),
    ("not ", ""),
    ("repeat 1 { ", " }"),
    ("if r == 0 { ", "}"),
    ("min(", ")"),
    ('{"op": [', "]}"),
    ("1 + ", ""),
    ("(1 + ", ")"),
]
SYMBOLS = [
    '"',
    '\\"',
    '"\\',
    "\\",
    "'",
    "\\ud800",
    "\\u0041",
    "é",
    "\ud800",
    "9",
    "0",
    "x",
    " ",
    "\n",
    "\t",
    "\r\n",
    "\0",
    "\ufeff",
    "#",
    "# x\n",
    ";",
    ",",
    "[]",
    "[],",
    "{}",
    "{},",
    '"",',
    '"a":1,',
    "1,",
    "1e9,",
    "-",
    "&",
    "..",
    ". ",
    "=",
    "a=1 ",
    "F ",
    "F(0) ",
    "1 ",
    "null,",
]


# --- tuples of numbers with equal hashes --------------------------------------------------------------------------------

# the constants of CPython's hash of a tuple (Objects/tupleobject.c)
_P1, _P2, _P5 = (np.uint64(p) for p in (11400714785074694791, 14029467366897019727, 2870177450012600261))


def colliding(count: int) -> Iterator[tuple[int, ...]]:
    """Yield `count` different tuples of numbers below 2^31. All have the same length and the same hash in Python.

    A tuple is a sequence of triples. For each triple there are two choices that lead the hash to the same state.
    """
    bits = max(1, (count - 1).bit_length())
    state, blocks = _P5, []
    with np.errstate(over="ignore"):
        for _ in range(bits):
            a, b, state = _block(state)
            blocks.append((a, b))
    for k in range(count):
        # Bit j of k chooses triple j.
        yield tuple(x for j, choices in enumerate(blocks) for x in choices[k >> j & 1])


def _block(state: np.uint64) -> tuple[tuple[int, ...], tuple[int, ...], np.uint64]:
    """Return two triples of numbers that lead from `state` to the same next state, and that state."""
    drawn = np.random.default_rng(1).integers(0, 2**31, (2, 2**19), dtype=np.uint64)
    after_two = _step(_step(state, drawn[0]), drawn[1])
    # A third number x adds x * _P2 to the state. So x after one state and 0 after the other lead to equal states, if the
    # quotient of the other by _P2 is larger by x.
    quotients = after_two * np.uint64(pow(int(_P2), -1, 2**64))
    order = np.argsort(quotients)
    k = int(np.argmin(np.diff(quotients[order])))
    low, high = order[k], order[k + 1]
    third = int(quotients[high] - quotients[low])
    assert 0 < third < 2**31, "no two of the drawn pairs lead to states that are close enough"
    pairs = drawn[:, [low, high]].astype(int)
    return (*pairs[:, 0].tolist(), third), (*pairs[:, 1].tolist(), 0), _step(after_two[high], np.uint64(0))


def _step(state: Any, number: Any) -> Any:
    """Return the state of the hash of a tuple after one more number, as CPython computes it."""
    mixed = state + number * _P2
    return ((mixed << np.uint64(31)) | (mixed >> np.uint64(33))) * _P1
