"""The setting with which a page asks to compile a text: its parameters, its costs, the number of replicas and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.machines import MACHINES, Machine
from chimerac.compiler.given import COSTS, cost_from_text
from chimerac.compiler.pipeline import Compiled, compile_source

NAME = "the text"  # of the source, in messages
MAGNITUDE = 2**63  # that of an integer of a request is smaller; the compiler has lower limits and checks them itself
PARAMETERS = 256  # of a request, at most
COST = 100  # characters of a cost, at most


@dataclass(frozen=True, slots=True)
class Setting:
    """With what a text is compiled and simulated: the command line's -p, --cost, --width, --machine and --for.

    Attributes:
        costs: the text of each, such as 0.5 or 1/3, by name.
        arrange: order the transfers and collectives for the machine, as --for does.
    """

    parameters: Mapping[str, int]
    costs: Mapping[str, str]
    width: int = 1
    machine: Machine = "window"
    arrange: bool = False

    def compiled(self, text: str) -> Compiled:
        """Return the results of all passes for a text. Raises ChimeraError with the findings of the first pass that has any."""
        source = Source(NAME, text.replace("\r\n", "\n").replace("\r", "\n"))
        return compile_source(source, self.parameters, self.width, self.machine, self.arrange)

    def cost_numbers(self) -> dict[str, Fraction]:
        """Return the costs as numbers, by name. Raises ChimeraError with the findings about all wrong costs (E002)."""
        if wrong := self.wrong_costs():
            raise ChimeraError([d for error in wrong.values() for d in error.diagnostics])
        return {name: _cost(name, text) for name, text in self.costs.items()}

    def wrong_costs(self) -> dict[str, ChimeraError]:
        """Return the error of each cost that is wrong, by the name of the cost (E002)."""
        found = {}
        for name, text in self.costs.items():
            try:
                _cost(name, text)
            except ChimeraError as error:
                found[name] = error
        return found

    def words(self) -> tuple[str, ...]:
        """Return the words of a command line for the width and the machine."""
        width = () if self.width == 1 else ("--width", str(self.width))
        option = "--for" if self.arrange else "--machine"
        return (*width, *(() if self.machine == "window" and not self.arrange else (option, self.machine)))

    def cost_words(self) -> tuple[str, ...]:
        """Return the words of a command line for the costs."""
        return tuple(word for name, text in self.costs.items() for word in ("--cost", f"{name}={text}"))


def setting_of(request: Mapping[str, Any]) -> Setting:
    """Return the setting of a request. A missing field has its default. Raises ValueError for a wrong field."""
    parameters, costs = request.get("parameters", {}), request.get("costs", {})
    width, machine, arrange = request.get("width", 1), request.get("machine", "window"), request.get("arrange", False)
    if not (isinstance(parameters, dict) and len(parameters) <= PARAMETERS and all(map(_is_integer, parameters.values()))):
        raise ValueError(f"parameters are at most {PARAMETERS} integers by name, of a magnitude below 2^63")
    if not (isinstance(costs, dict) and set(costs) <= set(COSTS) and all(map(_is_cost, costs.values()))):
        raise ValueError(f"costs are texts of at most {COST} characters by name: {', '.join(COSTS)}")
    if not _is_integer(width):
        raise ValueError("width is an integer of a magnitude below 2^63")
    if machine not in MACHINES:  # MACHINES is a tuple: with a set, a list in the request would raise TypeError
        raise ValueError(f"machine is one of {', '.join(MACHINES)}")
    if type(arrange) is not bool:
        raise ValueError("arrange is true or false")
    return Setting(parameters, costs, width, machine, arrange)


def _cost(name: str, text: str) -> Fraction:
    return cost_from_text(name, text, f"the cost {name} =")


def _is_integer(value: object) -> bool:
    return type(value) is int and abs(value) < MAGNITUDE


def _is_cost(value: object) -> bool:
    return isinstance(value, str) and len(value) <= COST
