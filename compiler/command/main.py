"""The command chimerac: it runs one of the verbs, or compiles a schedule.

Products go to stdout or to the file of -o, and findings to stderr. `watch` shows the findings about its file on stdout. Exit
status: 0; 1 for findings; 2 for an invalid command line or a file that cannot be read or written; 130 after Ctrl-C. `compare`,
`diff` and `fmt` also have 1 for some results, and `diff` has 2 for all findings. `tour` also has 1 without torch, and the
status of its training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from chimerac.chimera_ir.files import discard_output
from chimerac.compiler.command import compile, explain, fmt, partition


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: the words after `chimerac`; None: those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    verb = argv[0] if argv else ""
    try:
        return VERBS[verb](argv[1:]) if verb in VERBS else compile.run(argv, VERBS)  # a file named fmt is given as ./fmt
    except BrokenPipeError:  # the reader, such as head, has closed its end
        discard_output(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return 130


def _compare(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.compare import run  # start-up: 5 ms, for this verb only

    return run(argv)


def _diff(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.diff import run  # start-up: 8 ms, for this verb only

    return run(argv)


def _search(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.search import run  # start-up: 4 ms, for this verb only

    return run(argv)


def _plan(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.plan import run  # start-up: 25 ms, for this verb only

    return run(argv)


def _tour(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.tour import run  # start-up: 8 ms, for this verb only

    return run(argv, main)


def _serve(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.serve import run  # start-up: 43 ms, for this verb only

    return run(argv)


def _watch(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.watch import run  # start-up: 1 ms, for this verb only

    return run(argv)


def _lsp(argv: Sequence[str]) -> int:
    from chimerac.compiler.command.lsp import run  # start-up: 1 ms, for this verb only

    return run(argv)


VERBS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "partition": partition.run,
    "compare": _compare,
    "diff": _diff,
    "search": _search,
    "plan": _plan,
    "tour": _tour,
    "serve": _serve,
    "watch": _watch,
    "fmt": fmt.run,
    "explain": lambda argv: explain.run(argv, main),
    "lsp": _lsp,
}
