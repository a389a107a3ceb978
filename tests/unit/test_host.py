"""What a process may use of its host: cgroups and quotas as files of a made-up host."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimerac.chimera_ir import host


def test_cgroups_are_found_up_to_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    monkeypatch.setattr(Path, "read_text", lambda _: "4:memory:/x\n3:cpu,cpuacct:/y\n0::/a/b\n")
    # Each folder with its version of cgroups.
    of_version_2 = [(tmp_path / "a" / "b", 2), (tmp_path / "a", 2), (tmp_path, 2)]
    assert host.cgroups("memory") == [(tmp_path / "memory" / "x", 1), (tmp_path / "memory", 1), *of_version_2]
    assert host.cgroups("cpu") == [(tmp_path / "cpu" / "y", 1), (tmp_path / "cpu", 1), *of_version_2]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"a/cpu.max": "max 100000"}, 8),
        ({"a/cpu.max": "250000 100000", "cpu.max": "1200000 100000"}, 2),
        ({"a/cpu.max": "600000 100000", "cpu.max": "300000 100000"}, 3),  # the quota of the parent is the smaller one
        ({"a/cpu.max": "50000 100000"}, 1),  # half a processor
        ({"cpu.max": "1200000 100000"}, 8),  # more than the affinity allows
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000"}, 8),  # the file of the period is missing
    ],
)
def test_processors_are_limited_by_the_affinity_and_by_every_quota(
    files: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: range(8), raising=False)
    # Each folder with its version of cgroups. cpu.max is a file of version 2, cpu.cfs_quota_us one of version 1.
    monkeypatch.setattr(host, "cgroups", lambda _: [(tmp_path / "a", 2), (tmp_path, 2), (tmp_path / "cpu", 1)])
    assert host.processors() == expected
