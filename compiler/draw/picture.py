"""Pictures of timelines for papers: SVG, PNG and PDF, with matplotlib (the extra `draw`).

A row for each rank, time to the right, a box for each task that takes time, with the numbers of its micro-batches where they
fit; idle time is white. A file shows its text without an installed font. With one version of matplotlib, the same input gives
the same bytes: no date is written, the font comes with matplotlib, and a user's settings of matplotlib have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.compiler.draw.curves import draw_curves
from chimerac.compiler.draw.extent import FONT, MAX_ROWS
from chimerac.compiler.draw.layout import BELOW_TITLE, BESIDE_NAME, LINE, MARGIN, MIDDLE, SMALL, SPACE, TITLE, Layout
from chimerac.compiler.draw.legend import flowed, wrapped
from chimerac.compiler.draw.panels import Panel
from chimerac.compiler.draw.rows import Row, Rows
from chimerac.compiler.draw.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
DOTS = 200  # of a PNG, per inch
TICKS = 0.17  # inches: the height of the numbers of the time axis
_SETTINGS: Any = {  # by the names of matplotlib's settings
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "svg.hashsalt": "chimerac",
    "svg.fonttype": "path",  # glyphs as outlines: the same everywhere
    "pdf.fonttype": 42,  # TrueType: text can be searched; publishers refuse Type 3
    "hatch.linewidth": 0.5,
    "path.simplify": False,
}
# By format: entries that matplotlib would write into the file. None: they are left out.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_is_available() -> None:
    """Raise ChimeraError E002 if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        message = "pictures need a package that is not installed: matplotlib"
        raise refuse("E002", message, help="pip install 'chimerac[draw]'; --emit timeline needs no package")


def draw_picture(
    panels: Sequence[Panel],
    form: str,
    time_label: str,
    ranks: Sequence[int] | None = None,
    inches: float | None = None,
    remarks: Sequence[str] = (),
) -> bytes:
    """Return the picture of timelines, one under the other on one time axis, in one of `FORMATS`.

    Args:
        time_label: what is written below the time axis, such as its unit.
        ranks: the global ranks to draw, default all; panels leave out those that they do not have.
        inches: the width of the picture; None for one in which most numbers fit, within limits.
        remarks: sentences that are written below the legend.

    An iteration that is too long for the width is drawn without its middle, and the picture says so.

    Raises ChimeraError E002 without matplotlib, for more than `MAX_ROWS` ranks of all panels together, and for a width that has
    no room for the boxes.
    """
    check_is_available()
    chosen = [[r for r in range(p.program.world) if ranks is None or r in ranks] for p in panels]
    if (rows := sum(map(len, chosen))) > MAX_ROWS:
        way_out = "draw some of them: --ranks 0..15" if len(panels) == 1 else "draw fewer ranks, or fewer timelines"
        raise refuse("E002", f"a picture has at most {MAX_ROWS} rows, and this one would have {rows}", help=way_out)
    layout = Layout(panels, chosen, time_label, inches)
    layout.notes += remarks
    with _settings():
        out = BytesIO()
        _drawn(layout).savefig(out, format=form, dpi=DOTS, metadata=_METADATA[form])
    return _with_title(out.getvalue(), panels, layout.notes) if form == "svg" else out.getvalue()


@contextmanager
def _settings() -> Iterator[None]:
    """Use matplotlib's own defaults and `_SETTINGS`, whatever a user has set."""
    import matplotlib  # 0.2 s

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def _with_title(svg: bytes, panels: Sequence[Panel], notes: Sequence[str]) -> bytes:
    """Return an SVG with a title and a description, for readers who do not see it."""
    title = "; ".join(p.title for p in panels)
    about = " ".join([*(f"{p.title}: {p.facts}." for p in panels), *notes])
    text = f"<title>{escape(title)}</title>\n <desc>{escape(about)}</desc>"
    # The role goes into the <svg ...> tag, the texts right after it.
    return re.sub(rb"(<svg [^>]*)>", lambda m: m[1] + b' role="img">\n ' + text.encode(), svg, count=1)


def _drawn(layout: Layout) -> Figure:
    """Return the figure of a picture: its panels, the time axis, the legend and the notes."""
    heights = [layout.panel_height(p, ranks) for p, ranks in zip(layout.panels, layout.chosen, strict=True)]
    label_lines = wrapped(layout.time_label, layout.text_width, SMALL)
    legend_lines = flowed(layout.entries, layout.text_width, SMALL)
    note_lines = [line for note in layout.notes for line in wrapped(note, layout.text_width, SMALL)]
    axis_height = TICKS + LINE * len(label_lines)
    height = SPACE + sum(heights) + axis_height + SPACE + LINE * (len(legend_lines) + len(note_lines)) + MARGIN
    sheet = Sheet(layout.width, height, layout.left, layout.extent)
    top = SPACE
    axes: list[Axes] = []
    for index, panel_height in enumerate(heights):
        axes = _draw_panel(sheet, layout, index, top)
        top += panel_height
    sheet.time_axis(axes)
    top += TICKS
    for line in label_lines:
        sheet.text(layout.width / 2, top, line, ha="center")
        top += LINE
    top += SPACE
    for placed in legend_lines:
        sheet.legend_line(placed, top)
        top += LINE
    for line in note_lines:
        sheet.text(MARGIN, top, line, style="italic")
        top += LINE
    return sheet.figure


def _draw_panel(sheet: Sheet, layout: Layout, index: int, top: float) -> list[Axes]:
    """Draw a panel whose upper edge is `top` inches below that of the sheet.

    Args:
        index: of the panel in the layout.

    Return the axes of its lowest block, one for each part of the time. The lowest block is the memory curves, or the rows if
    the panel has no curves.
    """
    panel, ranks = layout.panels[index], layout.chosen[index]
    sheet.text(MARGIN, top, panel.title, TITLE, weight="bold")
    if (lines := layout.head_lines(panel)) == 1:
        sheet.text(layout.left + layout.axis, top, panel.facts, ha="right")
    else:
        for k, line in enumerate(wrapped(panel.facts, layout.text_width, SMALL), 1):
            sheet.text(MARGIN, top + k * LINE, line)
    top += LINE * lines + BELOW_TITLE
    height = len(ranks) * layout.pitch
    axes = sheet.axes(top, height)
    rows = [Row(rank=r, top=k * layout.pitch, lane=k * layout.pitch + layout.row) for k, r in enumerate(ranks)]
    for row in rows:
        sheet.text(layout.left - BESIDE_NAME, top + row.top + layout.row / 2 - MIDDLE, f"rank {row.rank}", ha="right")
    all_rows = Rows(layout, index, rows)
    for part, axes_of_part in enumerate(axes):
        axes_of_part.set_gid(f"panel-{index}-part-{part}")
        all_rows.draw(axes_of_part, part)
    if panel.memory:
        axes = draw_curves(sheet, panel, panel.memory, ranks, top + height + SPACE, layout.width - layout.right)
    return axes
