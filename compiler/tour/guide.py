"""What the tour writes and asks: paragraphs, commands with their output, and questions."""

from __future__ import annotations

import shlex
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from chimerac.chimera_ir.files import write_stdout

MAX_COLUMNS = 100  # of a paragraph


@cache
def schedules() -> dict[str, Any]:
    """Return the content of schedules.toml: the names of the schedules that the tour shows, by what it shows with them."""
    return tomllib.loads(resources.files(__package__).joinpath("schedules.toml").read_text(encoding="utf-8"))


class EndedError(Exception):
    """The reader has ended the tour: with q, or with the end of the input."""


@dataclass(frozen=True, slots=True)
class Guide:
    """Writes to the reader of the tour, and asks.

    Attributes:
        chimerac: runs the command chimerac with the arguments that it is given, and returns the exit status.
        asks: whether the reader is asked; if not, every choice is the default, and the tour does not pause.
        columns: the width of the terminal.
    """

    chimerac: Callable[[Sequence[str]], int]
    asks: bool
    columns: int = MAX_COLUMNS

    def title(self, text: str) -> None:
        """Write a title."""
        write_stdout(f"\n{text}\n{'=' * len(text)}\n")

    def say(self, text: str) -> None:
        """Write a paragraph, wrapped. A line break in the text counts as a space."""
        width = min(self.columns, MAX_COLUMNS)
        write_stdout("\n" + textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False) + "\n")

    def show(self, text: str) -> None:
        """Write a drawing, a table or a command as it is."""
        write_stdout("\n" + text.rstrip("\n") + "\n")

    def command(self, *words: str) -> int:
        """Write a command as the reader can type it, run it, and return its exit status.

        Args:
            words: what follows `chimerac`.
        """
        write_stdout(f"\n$ {shlex.join(['chimerac', *words])}\n")
        return self.chimerac(words)

    def choose(self, question: str, choices: Sequence[str]) -> str:
        """Return the choice of the reader, by default the first one. Raises EndedError."""
        if not self.asks:
            return choices[0]
        return self._answer(f"\n{question} ({', '.join([f'{choices[0]}: press Enter', *choices[1:]])}; q ends) ", choices)

    def wait(self) -> None:
        """Wait until the reader wants to go on. Raises EndedError."""
        if self.asks:
            self._answer("\n-- press Enter to go on, q to end -- ", [""])

    def _answer(self, prompt: str, choices: Sequence[str]) -> str:
        """Ask until the answer is one of the choices, and return it; an empty one means the first choice. Raises EndedError."""
        while True:
            try:
                answer = input(prompt).strip()
            except EOFError:
                write_stdout("\n")
                raise EndedError from None
            if answer.lower() in ("q", "quit", "exit"):
                raise EndedError
            if answer in choices or not answer:
                return answer or choices[0]
            prompt = f"one of {', '.join(choices)}, or q: " if any(choices) else "press Enter, or q and Enter: "
