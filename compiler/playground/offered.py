"""What the page offers, and the answer to a request that has no result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Product:
    """A product that can be downloaded.

    Attributes:
        emit: its name for --emit.
        suffix: of its file.
        what: its help.
    """

    emit: str
    suffix: str
    what: str


@dataclass(frozen=True, slots=True)
class Content:
    """What the page offers.

    Attributes:
        schedules: the texts of the schedules, by name.
        titles: their titles, by name.
        first: the name and the text of the schedule with which the page opens.
        products: what can be downloaded.
    """

    schedules: Mapping[str, str]
    titles: Mapping[str, str]
    first: tuple[str, str]
    products: Sequence[Product]


def stopped(message: str) -> dict[str, Any]:
    """Return the answer to a request that has no result: a finding without code and place.

    Args:
        message: the reason.
    """
    return {"findings": [{"code": "", "message": message, "label": "", "notes": [], "help": "", "place": None}], "count": 1}
