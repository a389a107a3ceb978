"""Colours of pictures and pages: a hue for each pipe, a shade for each kind of task.

The shades of a hue differ in lightness, so they differ in grey print and for the colour-blind: lightness (CIELAB) is 86 for F,
60 for B, 72 for I, 42 for W and 95 for R. In pictures R is hatched too. In grey print the numbers of the micro-batches tell the
pipes of a picture apart: if it shows one program, its legend says which micro-batches each pipe has. On pages the pipes also
have different patterns.
"""

from __future__ import annotations

from typing import Any

from chimerac.chimera_ir.instructions import Op

# By pipe: the shades of FWD, BWD, BWD_INPUT, BWD_WEIGHT, RECOMPUTE, of equal lightness in all hues.
PIPES = (
    ("#badafe", "#0a98e2", "#6eb7f5", "#03699e", "#e8f2fe"),  # blue
    ("#f7d0ae", "#c28341", "#dda671", "#8e5614", "#fdeee2"),  # orange
    ("#f1cbf1", "#be78c2", "#d79dd9", "#8c4a91", "#faedfa"),  # purple
    ("#b6e2c0", "#46a265", "#7ac08d", "#047339", "#e6f4e9"),  # green
    ("#d7d7d7", "#919191", "#b0b0b0", "#636363", "#f1f1f1"),  # grey
)
DARK, LIGHT = "#111111", "#ffffff"
# Hatches of matplotlib: the more characters, the denser the lines.
RECOMPUTE_HATCH, ALL_REDUCE_HATCH = "//////", "xxxxxxxx"


def shade(pipe: int, op: int) -> str:
    """Return the colour of a task. The hues repeat after the fifth pipe."""
    return PIPES[pipe % len(PIPES)][op]


def text_colour(op: int) -> str:
    """Return the colour of a number on a task; its contrast to the shade is at least 5 to 1."""
    return LIGHT if op == Op.BWD_WEIGHT else DARK


def page_colours() -> dict[str, Any]:
    """Return the colours for the script of the viewer, as a value for JSON.

    shades: by pipe, then by Op of a task; texts: by Op, the colour of a text on a shade; lines: by Op, the colour of a pattern
    on a shade, '#rrggbbaa'.
    """
    texts = [text_colour(op) for op in range(len(PIPES[0]))]
    return {"shades": PIPES, "texts": texts, "lines": ["#ffffff2e" if text == LIGHT else "#0000001c" for text in texts]}
