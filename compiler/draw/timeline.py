"""The timeline of a program for the terminal, predicted or measured: a row per rank, time to the right, in colour or plain.

rank 0 |F0 F1 ..... B0--- F2 B1--- F3 B2--- .. B3--- |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from math import ceil

import numpy as np

from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.program import OVERLAP, Mask, Program
from chimerac.chimera_ir.timeline import Timeline

# Background colours (256-colour palette): a row per pipe, a column per Op of a task, FWD to RECOMPUTE.
_PALETTE = (
    (117, 32, 38, 66, 153),
    (222, 172, 178, 137, 223),
    (157, 34, 71, 65, 194),
    (218, 162, 169, 132, 225),
    (189, 98, 104, 60, 183),
)
# What the letter of a task stands for.
WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient", "R": "recomputation"}
MAX_WIDTH = 50_000  # characters of a whole timeline of one rank
MAX_SIZE = 2**28  # characters of a whole timeline of all ranks together
MAX_PIPES = 8  # pipes that a legend names
_FILLER = "\0"  # stands for a character of a task before its label, until it is replaced
Line = tuple[str, bytes]  # the characters of a rank, and their background colours (see paint)


def draw_timeline(
    program: Program,
    timeline: Timeline,
    *,
    ranks: Sequence[int] | None = None,
    columns: int | None = None,
    colour: bool = False,
    stops: Mapping[int, str] | None = None,
    bands: int | None = None,
) -> str:
    """Return the drawing of the tasks of a timeline, from time 0 on.

    Args:
        ranks: those to draw, default all.
        columns: the width of a line, also of the legend; a longer timeline continues in further lines. None: each rank has one
            line. A line is wider where it would hold fewer than 20 characters of tasks, or less than the longest time that
            divides all starts and ends.
        colour: with background colours, and blanks in place of dots and dashes.
        stops: by rank, a text that follows its last character and is not cut.
        bands: how many lines of each rank are drawn, the last ones; None: all.

    Where a label has no room, the letter of its task is drawn alone, or nothing, and the legend says so.
    """
    chosen = range(program.world) if ranks is None else ranks
    fused = fused_bars(program, timeline)
    bars = timeline.take(program.table.is_task[timeline.row] & ~fused & np.isin(timeline.rank, list(chosen)))
    labels = _labels(program, bars, set(timeline.row[fused].tolist()))
    heads = {r: f"rank {r} |" for r in chosen}
    margin = max(map(len, heads.values()), default=0)
    end = int(bars.end.max(initial=0))
    per_time, step = _scale(bars, labels, end, min(MAX_WIDTH, MAX_SIZE // max(len(chosen), 1)))
    width = int(end * per_time)
    bars = bars.take(np.argsort(bars.rank, kind="stable"))
    begins, ends = (np.searchsorted(bars.rank, list(chosen), side=side).tolist() for side in ("left", "right"))
    available = width if columns is None else max(columns - margin - 1, 20)
    band = max(available // step, 1) * step  # a multiple of `step`, because tasks begin and end only at such multiples
    lines = {
        r: _line(program, bars.take(slice(a, b)), labels, per_time, width, band, colour)
        for r, a, b in zip(chosen, begins, ends, strict=True)
    }
    if stops and not width:
        return "".join(f"{heads[r]:>{margin}}{stops[r]}\n" for r in chosen)
    text = []
    starts = range(0, max(width, 1), band)
    if bands is not None and len(starts) > bands:
        text.append(f"... {(len(starts) - bands) * band} characters of each rank before")
        starts = starts[-bands:]
    for first in starts:
        after = first + band
        text.append((" " * margin + _ruler(range(first, min(after, width)), end, timeline.scale, per_time)).rstrip())
        for r, (characters, shades) in lines.items():
            end_of_rank = f" {stops[r]}" if stops and after >= width else ""
            text.append(f"{heads[r]:>{margin}}{paint(characters[first:after], shades[first:after])}|{end_of_rank}")
    places = ((labels[row], int(a * per_time), int(b * per_time)) for row, a, b in _times(bars))
    is_cut = any(label not in _placed(label, first, last, band) for label, first, last in places)
    return "\n".join([*text, *_legend(program, timeline.unit, is_cut, columns, colour)]) + "\n"


def _times(bars: Timeline) -> Iterator[tuple[int, int, int]]:
    """Return the row, the start and the end of each bar."""
    return zip(bars.row.tolist(), bars.start.tolist(), bars.end.tolist(), strict=True)


def fused_bars(program: Program, timeline: Timeline) -> Mask:
    """Return which bars are the second task of an overlapped pair whose first bar, as simulated, takes the time of both."""
    before = np.maximum(timeline.row - 1, 0)
    second = (timeline.row > 0) & ((program.table.flags[before] & OVERLAP) != 0) & (program.rank_of[before] == timeline.rank)
    fused: Mask = second & (timeline.start == timeline.end)
    return fused


def _labels(program: Program, bars: Timeline, fused: set[int]) -> dict[int, str]:
    """Return the label of each bar, by row.

    Args:
        fused: rows that are drawn with the row before them.

    'F3' is the forward of micro-batch 3, 'F3.5' that on stage 5 where a pipe puts several stages on one rank, 'F3&B1' an
    overlapped pair.
    """
    with_stages, t = has_several_stages(program), program.table

    def label(row: int) -> str:
        name = ids_text(program.micro_batch_lists[int(t.operand[row])])
        return f"{FORMS[t.op[row]].letter}{name}" + (f".{t.stage[row]}" if with_stages else "")

    return {row: label(row) + (f"&{label(row + 1)}" if row + 1 in fused else "") for row in bars.row.tolist()}


def has_several_stages(program: Program) -> bool:
    """Return whether a pipe has several stages on one rank."""
    return any(len(set(p.placement)) < len(p.placement) for p in program.header.pipes)


def ids_text(ids: Sequence[int]) -> str:
    """Return ids as text, such as '3', '0-3' or '0,2,5-7'; '' for none. After three parts, '...' stands for the rest."""
    cuts = [0, *(k for k in range(1, len(ids)) if ids[k] != ids[k - 1] + 1), len(ids)]
    parts = [str(ids[a]) if b == a + 1 else f"{ids[a]}-{ids[b - 1]}" for a, b in pairwise(cuts[:4]) if b > a]
    return ",".join([*parts, "..."] if len(cuts) > 4 else parts)


def _scale(bars: Timeline, labels: dict[int, str], end: int, max_width: int) -> tuple[Fraction, int]:
    """Return the characters per integer of time, and the characters of the longest time that divides all starts and ends.

    The first number is the smallest at which the labels of all tasks that take time fit, and every task takes a whole number of
    characters. If that makes the drawing wider than max_width, or more than three times as wide as its labels need because the
    times have no large common divisor, tasks are rounded to whole characters, labels may be cut, and the second number is 1.
    """
    step = int(np.gcd.reduce(np.concatenate([bars.start, bars.end]), initial=0)) or 1
    longest: dict[int, int] = {}  # duration -> characters of the longest label of a task that takes so long
    for row, duration in zip(bars.row.tolist(), (bars.end - bars.start).tolist(), strict=True):
        longest[duration] = max(longest.get(duration, 0), len(labels[row]))
    fits = max((Fraction(size + 1, duration) for duration, size in longest.items() if duration), default=Fraction(1))
    exact = Fraction(ceil(fits * step), step)
    if exact <= 3 * fits and end * exact <= max_width:
        return exact, int(exact * step)
    return min(fits, Fraction(max_width, end)), 1


def _line(
    program: Program, bars: Timeline, labels: dict[int, str], per_time: Fraction, width: int, band: int, colour: bool
) -> Line:
    """Return a rank's characters and their colours. Idle time is dotted, or blank with colours.

    A task ends with a blank, unless its label takes all of its characters.

    Args:
        colour: with colours; without, the second result is empty.
        band: the number of characters after which the line continues below; no label is cut there.
    """
    parts: list[str] = []
    shades, size = bytearray(), 0
    characters, time = per_time.as_integer_ratio()
    for row, start, end in _times(bars):
        first, last = start * characters // time, end * characters // time
        idle = _idle(first - size, colour)
        label = _placed(labels[row], first, last, band)
        text = f"{label:{' ' if colour else '-'}<{max(last - first - 1, 0)}} "[: last - first]
        text = text.replace(_FILLER, " " if colour else "-")
        parts += (idle, text)
        size += len(idle) + len(text)
        if colour:
            shades += bytes(len(idle))
            shades += bytes([background(int(program.table.pipe[row]), int(program.table.op[row]))]) * len(text)
    return "".join([*parts, _idle(width - size, colour)]), bytes(shades)


def _placed(label: str, first: int, last: int, band: int) -> str:
    """Return a label for the characters `first` to `last`, with fillers before it where it would be cut by the end of a band.

    If it has no room, return only the letter of its task, or '': a part of a number would be another number.
    """
    cut = (first // band + 1) * band  # where the band ends in which the task begins
    if len(label) <= min(last, cut) - first:
        return label
    if first < cut < last and len(label) <= min(last - cut, band):
        return _FILLER * (cut - first) + label
    return label[: last - first][:1]


def _idle(width: int, colour: bool) -> str:
    return " " * width if colour else "." * (width - 1) + " "[:width]


def background(pipe: int, op: int) -> int:
    """Return the background colour of a task, of the 256-colour palette; from the sixth pipe on the colours repeat."""
    return _PALETTE[pipe % len(_PALETTE)][op]


def paint(text: str, shades: bytes) -> str:
    """Return characters in their colours.

    Args:
        shades: the background colour of each character, 0 for none. Characters after the end of `shades` have none.
    """
    if not any(shades):
        return text
    parts, begin = [], 0
    for shade, run in groupby(shades):
        end = begin + sum(1 for _ in run)
        parts.append(f"\x1b[38;5;16;48;5;{shade}m{text[begin:end]}\x1b[0m" if shade else text[begin:end])
        begin = end
    return "".join([*parts, text[begin:]])


def _ruler(band: range, end: int, scale: int, per_time: Fraction) -> str:
    """Return the times above a band of characters. Numbers begin at least ten characters apart and do not touch.

    Args:
        end: of the timeline, in integers of time.
        scale: how many of these make a unit.
        per_time: characters for one of them.
    """
    total, per_unit = Fraction(end, scale), scale * per_time  # the time in units; the characters of a unit
    # Of 1, 2 and 5 times a power of ten, the smallest distance that is an integer of time and either wide enough or longer than
    # the whole timeline.
    distances = ((power, digit * Fraction(10) ** power) for power in range(-9, 20) for digit in (1, 2, 5))
    power, step = next((k, s) for k, s in distances if (s * scale).denominator == 1 and (s * per_unit >= 10 or s > total))
    line, first, last = "", ceil(band.start / per_unit / step), min(total, band.stop / per_unit) // step
    for t in (k * step for k in range(first, last + 1)):
        place = int(t * per_unit) - band.start
        if (0 <= place < len(band) or (not len(band) and t == 0)) and (not line or place > len(line)):
            line = f"{line:<{place}}" + _decimal(t, -power)
    return line or _decimal(band.start / per_unit, 2 - power)  # a short band without a mark: the time at which it begins


def _decimal(number: Fraction, decimals: int) -> str:
    """Return an integer as it is, and any other number with at most `decimals` decimals and no exponent."""
    if number.denominator == 1:
        return str(number.numerator)
    text = f"{float(number):.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _legend(program: Program, unit: str, is_cut: bool, columns: int | None, colour: bool) -> list[str]:
    """Return the lines of the legend.

    Args:
        is_cut: a label had no room.
        columns: the width of a line; None: one line.
    """
    used = [form.letter for form in FORMS if form.letter and (program.table.op == form.op).any()]
    stage = ", then the stage" if has_several_stages(program) else ""
    parts = [*(f"{x} {WORDS[x]}" for x in used), f"numbers are micro-batches{stage}"]
    parts += ["a letter alone: no room for the number"] if is_cut else []
    parts += [f"times in {unit}"] if unit else []
    words = [f"{part};" for part in parts]
    pipes = program.header.pipes[:MAX_PIPES] if len(program.header.pipes) > 1 else ()
    for pipe in pipes:
        words.append(f"{pipe.name} {ids_text(pipe.micro_batches) or 'none'},")
    words += ["...,"] if len(program.header.pipes) > MAX_PIPES else []
    words[-1] = words[-1][:-1]
    lines = [""]
    for k, word in enumerate(words):
        # The name of a pipe has its colour, and a blank on both sides.
        is_name = colour and len(parts) <= k < len(parts) + len(pipes)
        visible = len(re.sub("\x1b.*?m", "", lines[-1])) + 1 + len(word) + 2 * is_name
        if lines[-1] and columns is not None and visible > columns:
            lines.append("")
        if is_name:
            shade, name = _PALETTE[(k - len(parts)) % len(_PALETTE)][0], pipes[k - len(parts)].name
            word = f"\x1b[38;5;16;48;5;{shade}m {name} \x1b[0m" + word.removeprefix(name)
        lines[-1] += f" {word}" if lines[-1] else word
    return lines
