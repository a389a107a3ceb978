"""The page of the viewer: its script, its style and the data of programs in one HTML file.

The file is ASCII. A strict policy of content security allows the page's own script and style, and nothing from anywhere else.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from chimerac.compiler.draw.shades import page_colours
from chimerac.compiler.draw.timeline import WORDS

SCRIPTS = ("data.js", "text.js", "canvas.js", "lanes.js", "explain.js", "viewer.js")  # one scope, in this order


def page(panels: Sequence[Mapping[str, Any]], command: Sequence[str], parameters: Mapping[str, int] | None) -> str:
    """Return the HTML file.

    panels: of compiler/analyze/viewed.py, one for each program, one above another on one axis of time. command: the words of
    the command line that made the page, without the values of its parameters. parameters: those that a reader may change in
    the command line; None where they are fixed.
    """
    return _page(panels, command, parameters, embedded=False)[0]


def embedded_page() -> tuple[str, str]:
    """Return a page without programs for a frame of another page, and its policy of content security.

    The page around it calls `viewer.replace(panels)` of the frame's window to show programs, and `viewer.setTheme(name)`. The
    frame's document has the event `switchtheme` when a reader asks for the other colours.
    """
    return _page([], [], None, embedded=True)


def _page(
    panels: Sequence[Mapping[str, Any]], command: Sequence[str], parameters: Mapping[str, int] | None, *, embedded: bool
) -> tuple[str, str]:
    """Return the page and its policy. embedded: it has no title, no command line and no choice of colours of its own."""
    folder = files(__package__)
    style = _ascii((folder / "viewer.css").read_text(encoding="utf-8"))
    body = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = _ascii(f'"use strict";\n(() => {{\n{body}\n}})();\n')
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    found = {
        "command": list(command),
        "parameters": None if parameters is None else dict(parameters),
        "colours": page_colours(),
        "words": WORDS,
        "embedded": embedded,
        "panels": list(panels),
    }
    parts = {"policy": policy, "style": style, "data": _data(found), "script": script}
    text = _ascii((folder / "viewer.html").read_text(encoding="utf-8"))
    # One pass: no part is searched for the names of others.
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], text), policy


def _data(value: Any) -> str:
    """Return JSON that no parser of HTML can mistake for the end of its element. It is ASCII."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    """Return the source of a policy that allows this inline text alone."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _ascii(text: str) -> str:
    """Return a file of the viewer. Raises ValueError unless it is ASCII: so the encoding of the page cannot change its hash."""
    text.encode("ascii")
    return text
