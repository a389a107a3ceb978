"""Blocks of a report: a heading, a paragraph, a list, a table or a plot, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from chimerac.interpreter.experiments.plots import Plot

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .75rem; text-align: right }
th.label, td.label { text-align: left } th { border-bottom: 2px solid #888 }
table.facts th, table.facts td { text-align: left; vertical-align: top }
svg { max-width: 100%; height: auto } code { background: #f2f2f2; padding: 0 .2em }
"""


class Block(Protocol):
    """A part of a report."""

    def markdown(self) -> str:
        """Return its lines in Markdown."""

    def html(self) -> str:
        """Return its element in HTML."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading.

    Attributes:
        level: 1 for the title.
    """

    text: str
    level: int = 2

    def markdown(self) -> str:
        """Return its lines in Markdown."""
        return f"{'#' * self.level} {self.text}\n"

    def html(self) -> str:
        """Return its element in HTML."""
        return f"<h{self.level}>{escape(self.text)}</h{self.level}>"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str

    def markdown(self) -> str:
        """Return its lines in Markdown."""
        return f"{self.text}\n"

    def html(self) -> str:
        """Return its element in HTML."""
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    texts: Sequence[str]

    def markdown(self) -> str:
        """Return its lines in Markdown."""
        return "".join(f"- {text}\n" for text in self.texts)

    def html(self) -> str:
        """Return its element in HTML."""
        return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in self.texts) + "</ul>"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        rows: the head first.
        labels: how many columns at the left have texts; the others have numbers.
        is_facts: whether it is a table of names and texts, without numbers. In HTML such a table has no head.
    """

    rows: Sequence[Sequence[str]]
    labels: int = 0
    is_facts: bool = False

    def markdown(self) -> str:
        """Return its lines in Markdown."""
        lines = ["| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |\n" for row in self.rows]
        columns = ["---" if k < self.labels or self.is_facts else "---:" for k in range(len(self.rows[0]))]
        return "".join([lines[0], f"|{'|'.join(columns)}|\n", *lines[1:]])

    def html(self) -> str:
        """Return its element in HTML."""
        head, *body = self.rows
        lines = "".join(self._row("td", row) for row in body)
        if self.is_facts:
            return f'<table class="facts">\n{lines}</table>'
        return f'<div class="wide"><table>\n{self._row("th", head)}{lines}</table></div>'

    def _row(self, tag: str, row: Sequence[str]) -> str:
        attributes = [' class="label"' if k < self.labels else "" for k in range(len(row))]
        cells = (f"<{tag}{attribute}>{escape(cell)}</{tag}>" for attribute, cell in zip(attributes, row, strict=True))
        return f"<tr>{''.join(cells)}</tr>\n"


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot.

    Attributes:
        name: of its file, to which the Markdown form refers.
    """

    name: str
    plot: Plot

    def markdown(self) -> str:
        """Return its lines in Markdown."""
        return f"![{self.plot.description}]({self.name})\n"

    def html(self) -> str:
        """Return its element in HTML."""
        label = f'<svg role="img" aria-label="{escape(self.plot.description)}"'
        return self.plot.svg.replace("<svg", label, 1)


def page(title: str, blocks: Sequence[Block]) -> str:
    """Return the HTML file of these blocks."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    head += f"<title>{escape(title)}</title>"
    body = "\n".join(block.html() for block in blocks)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
