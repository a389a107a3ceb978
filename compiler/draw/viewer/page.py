"""The page of the viewer: its script, its style and the data of programs in one HTML file.

The file is ASCII. Its Content Security Policy allows only the script and the style that are in the file.
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

    Args:
        panels: for each program the data that compiler/analyze/viewed.py returns, or {"name", "reason"} if it cannot run.
        command: the words of the command line that made the page, without -p and its values.
        parameters: those that -p can set, with their values. The page has a field for each, in which a reader changes the -p of
            the command line. None: no fields.

    The programs are drawn one above another on one time axis.
    """
    return _page(panels, command, parameters, embedded=False)[0]


def embedded_page() -> tuple[str, str]:
    """Return a page without programs for a frame of another page, and its Content Security Policy.

    The page around it calls `viewer.replace(panels)` of the frame's window to show programs, and `viewer.setTheme(name)` for
    dark or light colours. The frame's document dispatches the event `switchtheme` when a reader presses the key for the other
    colours.
    """
    return _page([], [], None, embedded=True)


def _page(
    panels: Sequence[Mapping[str, Any]], command: Sequence[str], parameters: Mapping[str, int] | None, *, embedded: bool
) -> tuple[str, str]:
    """Return the page and its policy.

    Args:
        embedded: it hides its header and command line; the page around it sets the colours.
    """
    folder = files(__package__)
    style = _ascii((folder / "viewer.css").read_text(encoding="utf-8"))
    body = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = _ascii(f'"use strict";\n(() => {{\n{body}\n}})();\n')
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    data = {
        "command": list(command),
        "parameters": None if parameters is None else dict(parameters),
        "colours": page_colours(),
        "words": WORDS,
        "embedded": embedded,
        "panels": list(panels),
    }
    parts = {"policy": policy, "style": style, "data": _data(data), "script": script}
    text = _ascii((folder / "viewer.html").read_text(encoding="utf-8"))
    # In one pass, so that a {{name}} inside a part stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], text), policy


def _data(value: Any) -> str:
    """Return a value as JSON in ASCII. It has no character that HTML reads as markup, so it cannot end its script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    """Return the source expression with which a policy allows this inline text and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _ascii(text: str) -> str:
    """Return the text unchanged. Raises ValueError unless it is ASCII.

    In ASCII its bytes, and so its hash, do not depend on the encoding that a browser assumes.
    """
    text.encode("ascii")
    return text
