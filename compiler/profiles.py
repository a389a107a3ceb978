"""The profiles that the compiler knows: those that come with the project, made of published times, and profile files."""

from __future__ import annotations

import os
import re
from importlib import resources

from chimerac.chimera_ir.diagnostics import did_you_mean, refuse
from chimerac.chimera_ir.files import read, short_path
from chimerac.chimera_ir.profile import Link, Profile, profile_from_json
from chimerac.compiler.given import shown_text

_FOLDER = resources.files("chimerac").joinpath("models", "profiles")  # data: the package models is not imported
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)"
_LATENCY = re.compile(rf"{_NUMBER} ?(s|ms|us|µs|ns)")
_BANDWIDTH = re.compile(rf"{_NUMBER} ?([kKMGT]?|[KMGT]i)B/s")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_MAX_LATENCY_S = 1000  # as in a profile file


def profile_names() -> list[str]:
    """Return the names of the profiles that come with the project: MODEL-HARDWARE."""
    return sorted(f.name.removesuffix(".json") for f in _FOLDER.iterdir() if f.name.endswith(".json"))


def find_profile(name_or_path: str, model: str) -> Profile:
    """Return the profile of a file, or one that comes with the project by its name or by its hardware alone.

    Args:
        model: a model's name, which the profile's name may leave out: for bert48, p100 is bert48-p100.

    A name may end in .json. A file that exists is read. Another text that is not a known name is a path if it has a separator
    or a suffix.

    Raises ChimeraError: E001 for a file that cannot be read, E711 to E713 for a wrong file, E716 for an unknown name.
    """
    known = profile_names()
    is_file = os.path.lexists(name_or_path)
    name = name_or_path.removesuffix(".json")
    for candidate in () if is_file else (name, f"{model}-{name}"):
        if candidate in known:
            return profile_from_json(_FOLDER.joinpath(f"{candidate}.json").read_text(encoding="utf-8"), f"{candidate}.json")
    if is_file or os.sep in name_or_path or os.path.splitext(name_or_path)[1]:
        return profile_from_json(read(name_or_path), name_or_path)
    near = did_you_mean(name_or_path, known)
    names = f"those that come with the project are {', '.join(known)}; or give the path of a profile (*.json)"
    help = f"{near} {names}" if near.startswith("did you mean") else names
    raise refuse("E716", f"there is no profile '{short_path(name_or_path)}' of {model}", help=help)


def link_from_text(text: str) -> Link:
    """Return the link that an option gives, such as 10us,12GB/s. Raises ChimeraError E717 for a text that is no link."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 2:
        latency, bandwidth = _LATENCY.fullmatch(parts[0]), _BANDWIDTH.fullmatch(parts[1])
        if latency and bandwidth and float(bandwidth[1]) > 0 and float(latency[1]) * _SECONDS[latency[2]] <= _MAX_LATENCY_S:
            return Link(float(latency[1]) * _SECONDS[latency[2]], float(bandwidth[1]) * _prefix(bandwidth[2]))
    message = f"--link {shown_text(text)}: expected a latency, at most {_MAX_LATENCY_S:g} s, and a bandwidth above 0"
    raise refuse("E717", message, help="for instance --link 10us,12GB/s: 10 microseconds, 12 * 10^9 bytes in a second")


def _prefix(text: str) -> int:
    """Return the factor of a prefix of bytes: k is 10^3, Ki is 2^10, '' is 1."""
    # The exponent is the position of the letter.
    return int((1024 if text.endswith("i") else 1000) ** " KMGT".index(text[:1].upper() or " "))
