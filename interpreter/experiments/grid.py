"""The runs of a grid: every combination of the values of its axes, with cases, further runs and exclusions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]
NESTED = ("parameters", "labels")  # keys whose values are mappings, which are merged


@dataclass(frozen=True, slots=True)
class RunValues:
    """What a run sets: settings by field of RunSettings (launch/settings.py), and labels, which change nothing of it."""

    settings: dict[str, Any]
    labels: dict[str, Any]


def combinations(
    settings: Values, grid: Values, cases: Sequence[Values], include: Sequence[Values], exclude: Sequence[Values]
) -> tuple[list[RunValues], int | None]:
    """Return the runs, in the order of the file and without duplicates, and the index of an unused entry of `exclude`.

    This is the first entry that excludes no run; None if each entry excludes some.

    Args:
        settings: of all runs.
        grid: its lists are axes.
        cases: an axis whose values are whole sets of settings.
        include: further runs, with `settings`, but not combined with grid or cases.
        exclude: a run that has all values of one of these entries is left out.

    `grid` overrides `settings`, `cases` overrides both, and `include` overrides `settings`.
    """
    # With `include`, but neither grid nor cases, there are no other runs. Without all three there is one run: `settings` alone.
    found = [merged(settings, *parts) for parts in _product(grid, cases)] if grid or cases or not include else []
    found += [merged(settings, one) for one in include]
    patterns = [merged(one) for one in exclude]
    unused = next((k for k, pattern in enumerate(patterns) if not any(matches(run, pattern) for run in found)), None)
    runs = list[RunValues]()
    for values in found:
        run = RunValues({k: v for k, v in values.items() if k != "labels"}, dict(values.get("labels", {})))
        if run not in runs and not any(matches(values, pattern) for pattern in patterns):
            runs.append(run)
    return runs, unused


def _product(grid: Values, cases: Sequence[Values]) -> Iterator[tuple[Values, ...]]:
    axes = list[list[Values]]()
    for key, values in grid.items():
        if key == "parameters":
            axes += [[{key: {name: one}} for one in as_axis(parameter)] for name, parameter in values.items()]
        else:
            axes.append([{key: one} for one in as_axis(values)])
    if cases:
        axes.append(list(cases))
    return itertools.product(*axes)


def as_axis(value: Any) -> list[Any]:
    """Return the values of an axis: those of a list, or a single value."""
    return value if isinstance(value, list) else [value]


def merged(*parts: Values) -> dict[str, Any]:
    """Return the settings of all parts; a later part overrides an earlier one, also within the values of NESTED keys.

    Dashes in keys become underscores, but not within the values of NESTED keys.
    """
    result = dict[str, Any]()
    for part in parts:
        for key, value in part.items():
            name = key.replace("-", "_")
            result[name] = {**result.get(name, {}), **value} if name in NESTED else value
    return result


def matches(values: Values, pattern: Values) -> bool:
    """Return whether a run has all values of a pattern."""
    for key, value in pattern.items():
        if key in NESTED:
            if not matches(values.get(key, {}), value):
                return False
        elif key not in values or values[key] != value:
            return False
    return True
