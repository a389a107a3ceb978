"""The edits that the help of a finding describes, for quick fixes. An edit is used only if its old text is at its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chimerac.compiler.language_server.text import Text

Edit = tuple[int, int, str]  # start, end: offsets of the text that is replaced; the new text

_DID_YOU_MEAN = re.compile(r"did you mean '(.+?)'(?: instead of '(.+?)')?\?$")
_WRITE = re.compile(r"(?:.*:(\d+):(\d+): )?(?:write '(.+?)' instead of '(.+?)'|remove '(.+?)')(?:;|$)")
_AT_END = re.compile(r"write '(.+?)' at the end of line (\d+)(?:;|$)")


def edits_of(text: Text, finding: Mapping[str, Any]) -> list[Edit]:
    """Return the edits of a finding's help, all of which belong together; nothing if it describes none, or one that does
    not fit the text. finding: as compiler/language_server/worker.py writes it."""
    if finding["start"] is None or not finding["help"]:
        return []
    found = [_edit(text, finding, line) for line in finding["help"].split("\n")]
    edits = [edit for edit in found if edit is not None]
    return edits if len(edits) == len(found) else []


def _edit(text: Text, finding: Mapping[str, Any], line: str) -> Edit | None:
    """Return the edit that a line of the finding's help describes; None if it describes none, or one that does not fit."""
    start, end = finding["start"], finding["end"]
    if meant := _DID_YOU_MEAN.match(line):
        old = meant[2] or text.text[start:end]
        at = text.text.rfind(old, text.text.rfind("\n", 0, start) + 1, end) if meant[2] else start
        return (at, at + len(old), meant[1]) if at >= 0 and old.isidentifier() else None
    if written := _WRITE.match(line):
        at = text.at(int(written[1]), int(written[2])) if written[1] else start
        old, new = written[4] or written[5], written[3] or ""
        found = re.compile(r"\s+".join(map(re.escape, old.split()))).match(text.text, at)  # help has it on one line
        return (at, found.end(), new) if found else None
    if appended := _AT_END.match(line):
        number = int(appended[2])
        code = text.text.split("\n")[number - 1].partition("#")[0].rstrip() if number <= len(text.starts) else None
        at = text.starts[number - 1] + len(code) if code is not None else 0
        return (at, at, f" {appended[1]}") if code is not None else None
    return None
