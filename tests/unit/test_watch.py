"""`chimerac watch`: a file that changes, is wrong, disappears and comes back; the display in a terminal; refused arguments."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

from chimerac.compiler.library import find
from tests.helpers_command import COMMAND, SIGINT_ON

TEXT = find("gpipe").text


def test_it_follows_a_file_until_it_is_interrupted(tmp_path: Path) -> None:
    path, pipe = tmp_path / "mine.sched", subprocess.PIPE
    path.write_text(TEXT)
    command = [*COMMAND, "watch", "mine.sched", "-p", "D=2", "-p", "N=2"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, preexec_fn=SIGINT_ON)
    assert process.stdout is not None

    def until(words: str) -> str:
        """Return the lines of the output up to the next one with these words."""
        lines = ""
        assert process.stdout is not None
        while words not in lines:
            line = process.stdout.readline()
            assert line, lines
            lines += line
        return lines

    assert "rank 1 |.. F0 F1" in until("F forward;")
    path.write_text(TEXT.replace("ranks D", "ranks d"))
    found = until("did you mean")
    assert found.startswith("--- mine.sched  ") and "error[E201]" in found
    path.unlink()
    until("there is no file mine.sched now; waiting for it")
    with path.open("w") as file:  # written line by line: only the whole text has a drawing
        for part in TEXT.splitlines(keepends=True):
            file.write(part)
            file.flush()
    until("F forward;")
    new_file = tmp_path / "new"
    new_file.write_text(TEXT.replace("N = 2*D", "N = 3*D"))
    new_file.replace(path)  # as editors do
    until("F forward;")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "\nno longer watching\n"
    assert process.returncode == 130


def test_a_terminal_is_cleared_and_the_drawing_fits_into_it(tmp_path: Path) -> None:
    (tmp_path / "mine.sched").write_text(TEXT)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "LINES": "9", "NO_COLOR": "1", "TERM": "xterm"}
    command = [*COMMAND, "watch", "mine.sched", "-p", "D=4", "-p", "N=8"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, env=environment, preexec_fn=SIGINT_ON)
    os.close(theirs)
    received = b""
    while b"more lines" not in received:
        received += os.read(ours, 2**16)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(ours)
    text = received.decode().replace("\r\n", "\n")
    assert text.startswith("\x1b[H\x1b[2Jmine.sched")
    lines = text.splitlines()[1:]
    drawn = [line for line in lines if line.startswith("rank")]
    assert len(lines) <= 7 and drawn and all(len(line) <= 60 for line in drawn)  # 9 less the first line and that of the cursor


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    for words, code in ((["-"], "E002"), (["nowhere.sched"], "E001")):
        ended = subprocess.run([*COMMAND, "watch", *words], cwd=tmp_path, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (2, "") and ended.stderr.startswith(f"error[{code}]")
