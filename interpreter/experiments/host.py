"""The host and the versions of a run, and the utilization of its GPUs."""

from __future__ import annotations

import platform
import shutil
import subprocess
import threading
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from chimerac.chimera_ir.host import processors

PACKAGES = ("chimerac", "torch", "numpy")
INTERVAL_S = 1.0  # between two readings of the GPUs
QUERY_S = 10.0  # how long nvidia-smi may take


def this_host() -> dict[str, object]:
    """Return what identifies this host: its name, system, processors, memory and GPUs."""
    found: dict[str, object] = {
        "name": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "processors": processors(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
    }
    if gpus := [line for line in _query("name") if line]:
        found["gpus"] = gpus
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide how fast a run is."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _query(field: str) -> list[str]:
    """Return a field of every GPU, as nvidia-smi prints it; an empty list if nvidia-smi is not there or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        arguments = [command, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
        completed = subprocess.run(arguments, capture_output=True, text=True, timeout=QUERY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in completed.stdout.splitlines()]


class GpuUtilization:
    """Reads the utilization of this host's GPUs about once a second, from the moment when a run's log has `lines` lines.

    So the start of the run is not counted. It is a context manager: the readings end with its block, or when one of them fails.
    """

    def __init__(self, log: Path, lines: int) -> None:
        self.log, self.lines = log, lines
        self._readings = list[list[float]]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="GPU utilization", daemon=True)

    def __enter__(self) -> Self:
        if shutil.which("nvidia-smi"):
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(QUERY_S)

    def shares(self) -> list[float]:
        """Return the mean utilization of each GPU, from 0 to 1; an empty list if nothing was read."""
        complete = [reading for reading in self._readings if len(reading) == len(self._readings[0])]
        return [round(sum(values) / len(values) / 100, 4) for values in zip(*complete, strict=True)]

    def _read(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            if not self._has_begun():
                continue
            try:
                reading = [float(text) for text in _query("utilization.gpu")]
            except ValueError:  # "[N/A]": this GPU has no such figure
                return
            if not reading or self._ended.is_set():
                return
            self._readings.append(reading)

    def _has_begun(self) -> bool:
        try:
            with self.log.open("rb") as file:
                return sum(1 for _ in file) >= self.lines
        except OSError:
            return False
