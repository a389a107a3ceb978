"""Command lines: an argument parser that suggests the option or the choice that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from chimerac.chimera_ir.diagnostics import did_you_mean, visible

MIN_SIMILARITY = 0.7  # of an unknown option to the option that is suggested for it; 1 for equal names


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with suggestions.

    Attributes:
        verbs: the parsers of the command's verbs, whose usage is shown too.
        other_options: for options that this parser does not have, what to write instead, by the option's name in lower case
            without the dashes at its beginning.
    """

    verbs: Sequence[argparse.ArgumentParser] = ()
    other_options: Mapping[str, str] = {}

    def format_usage(self) -> str:
        """Return the usage lines of this parser and of its verbs."""
        others = (verb.format_usage().replace("usage:", "      ", 1) for verb in self.verbs)
        return super().format_usage() + "".join(others)

    def format_help(self) -> str:
        return super().format_help().replace(super().format_usage(), self.format_usage(), 1)

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong, and end the process with status 2. With verbs, the usage is one line."""
        verbs = [verb.prog.removeprefix(f"{self.prog} ") for verb in self.verbs]
        first_words = " | ".join([*(action.dest.upper() for action in self._get_positional_actions()), *verbs])
        usage = f"usage: {self.prog} {first_words} ...; see {self.prog} --help\n" if verbs else self.format_usage()
        self.exit(2, f"{usage}{self.prog}: error: {visible(message)}{self._suggestion(message)}\n")

    def _suggestion(self, message: str) -> str:
        """Return what to append to a message of argparse: what was probably meant, or an empty string."""
        option = re.match(r"unrecognized arguments: --?(\w[\w-]*)", message)
        # Here argparse names an option by all its strings, such as -o/--output. The first one is enough to find its choices.
        choice = re.match(r"argument ([^:/]+)[^:]*: invalid choice: '([^']*)'", message)
        word, known = "", list[str]()
        if option:
            instead = self.other_options.get(option[1].lower().replace("_", "-"))
            return f"; {instead}" if instead else self._similar_option(option[1])
        if choice:
            actions = [a for a in self._actions if choice[1] in (*a.option_strings, a.metavar)]
            word, known = choice[2], [str(x) for a in actions for x in a.choices or ()]
        near = did_you_mean(word, known)
        return f"; {near}" if near.startswith("did you mean") else ""

    def _similar_option(self, name: str) -> str:
        """Return a suggestion of the option with the most similar name, or an empty string if none is similar.

        The names are compared without the dashes at their beginning.
        """
        options = {option.lstrip("-"): option for option in self._option_string_actions}
        near = difflib.get_close_matches(name.replace("_", "-"), options, n=1, cutoff=MIN_SIMILARITY)
        return f"; did you mean '{options[near[0]]}'?" if near else ""
