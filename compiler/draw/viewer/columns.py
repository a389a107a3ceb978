"""Columns of numbers as text in a page: the smallest type that holds them, in base64."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import numpy.typing as npt

Column = dict[str, str]
# Of each type of integers, the smallest first: its typed array in JavaScript, its name in numpy, its least and greatest number.
_TYPES: tuple[tuple[str, str, int, int], ...] = (
    ("Uint8Array", "<u1", 0, 2**8 - 1),
    ("Int16Array", "<i2", -(2**15), 2**15 - 1),
    ("Int32Array", "<i4", -(2**31), 2**31 - 1),
)


def column(numbers: npt.NDArray[Any]) -> Column:
    """Return numbers as {"type": name of a typed array, "bytes": base64}.

    Args:
        numbers: integers, booleans or floats; an array of objects has Python's integers. Floats, and integers that do not all
            fit into 32 bits with a sign, become 64-bit floats, as JavaScript's numbers are. Integers beyond 2^53 may then be
            rounded.
    """
    if numbers.dtype.kind in "iub" or numbers.dtype == object:
        low, high = (int(f(numbers)) if len(numbers) else 0 for f in (np.min, np.max))
        for name, kind, least, greatest in _TYPES:
            if least <= low and high <= greatest:
                return {"type": name, "bytes": b64encode(numbers.astype(kind).tobytes()).decode()}
    return {"type": "Float64Array", "bytes": b64encode(numbers.astype("<f8").tobytes()).decode()}
