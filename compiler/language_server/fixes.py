"""The edits that the help of a finding describes, for quick fixes. Either all of them fit the text, or none is offered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chimerac.compiler.language_server.text import Text

Edit = tuple[int, int, str]  # start, end: offsets of the text that is replaced; the new text

_DID_YOU_MEAN = re.compile(r"did you mean '(.+?)'(?: instead of '(.+?)')?\?$")
# The line may begin with the place of the text to change: NAME:LINE:COLUMN. Without it, this text is at the finding.
_WRITE = re.compile(r"(?:.*:(\d+):(\d+): )?(?:write '(.+?)' instead of '(.+?)'|remove '(.+?)')(?:;|$)")
_AT_END = re.compile(r"write '(.+?)' at the end of line (\d+)(?:;|$)")


def edits_of(text: Text, finding: Mapping[str, Any]) -> list[Edit]:
    """Return the edits of a finding's help, all of which belong together: one for each line of the help.

    Return [] if a line describes no edit, or one that does not fit the text. Return [] also for a finding without a place or
    help.

    Args:
        finding: as worker.py writes it.
    """
    if finding["start"] is None or not finding["help"]:
        return []
    lines = finding["help"].split("\n")
    edit_of_line = [_edit(text, finding, line) for line in lines]
    edits = [edit for edit in edit_of_line if edit is not None]
    return edits if len(edits) == len(lines) else []


def _edit(text: Text, finding: Mapping[str, Any], line: str) -> Edit | None:
    """Return the edit that a line of the finding's help describes; None if it describes none, or one that does not fit."""
    start, end = finding["start"], finding["end"]
    if meant := _DID_YOU_MEAN.match(line):
        new, named = meant.groups()  # named: the old word; None if it is the text at the finding
        old = named or text.text[start:end]
        # A named old word is searched backwards from the finding's end to the beginning of the line where the finding starts.
        at = text.text.rfind(old, text.text.rfind("\n", 0, start) + 1, end) if named else start
        return (at, at + len(old), new) if at >= 0 and old.isidentifier() else None
    if written := _WRITE.match(line):
        line_number, column, new, replaced, removed = written.groups()
        at = text.at(int(line_number), int(column)) if line_number else start
        # The help has the old text on one line, with single spaces.
        old_text = re.compile(r"\s+".join(map(re.escape, (replaced or removed).split()))).match(text.text, at)
        return (at, old_text.end(), new or "") if old_text else None
    if appended := _AT_END.match(line):
        number = int(appended[2])
        if number > len(text.starts):
            return None
        code = text.text.split("\n")[number - 1].partition("#")[0].rstrip()
        at = text.starts[number - 1] + len(code)
        return at, at, f" {appended[1]}"
    return None
