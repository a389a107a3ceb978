"""The machines of docs/semantics.md: a program is verified to terminate on one of them.

For fast start-up, this module imports only the standard library.
"""

from __future__ import annotations

from typing import Literal, get_args

Machine = Literal["posted", "window", "rendezvous", "paired", "serial"]
MACHINES: tuple[Machine, ...] = get_args(Machine)
PROCESSES: Machine = "window"  # the machine of ranks that are processes (docs/semantics.md, "Transports")


def machine_name(machine: Machine, window: int) -> str:
    """Return the name of a machine in messages.

    Args:
        window: sends of a channel that may be incomplete.
    """
    return f"window({window})" if machine == "window" else machine


def max_incomplete_sends(machine: Machine, window: int) -> int | None:
    """Return how many sends of a channel may be incomplete on a machine; None for any number."""
    match machine:
        case "posted":
            return None
        case "rendezvous":
            return 0
        case "window" | "paired" | "serial":
            return window
