"""Pipelines in process groups of a world of four ranks, together with other parallelism."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers_processes import run_in_own_loop_project

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return, by rank, the results of group_ranks.py."""
    project = run_in_own_loop_project("group_ranks.py", 4, tmp_path_factory.mktemp("groups"))
    return [json.loads((project / f"{rank}.json").read_text()) for rank in range(4)]


def test_pipelines_in_two_groups_at_the_same_time_have_the_gradients_of_one_process(found: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(found):
        named = f"ranks 0, 1 (global ranks {rank % 2}, {rank % 2 + 2})"
        for schedule in ("chimera", "1f1b"):
            assert of_rank["side by side"][f"{schedule} alone"] == []
            assert of_rank["side by side"][f"{schedule} with the user's sum"] == []
            assert of_rank["side by side"][f"{schedule} ranks"] == [rank // 2, named]


def test_the_example_with_a_device_mesh_trains_as_one_process(found: list[dict[str, Any]]) -> None:
    losses = found[0]["example"]["found"]
    assert len(losses) == 4 and losses == pytest.approx(found[0]["example"]["expected"], rel=1e-4)


def test_pipelines_over_the_same_ranks_do_not_disturb_each_other_and_leave_nothing(found: list[dict[str, Any]]) -> None:
    for of_rank in found:
        assert of_rank["same ranks"]["wrong"] == []
        assert of_rank["same ranks"]["added"] == 0, "the connections of all pipelines use the thread of the default group"
        first, *_, last = of_rank["same ranks"]["descriptors"]
        assert last <= first, "each closed pipeline must close its connections"
        assert len(set(of_rank["same ranks"]["threads"])) == 1


def test_a_checkpoint_of_one_group_is_loaded_in_another(found: list[dict[str, Any]]) -> None:
    assert [of_rank["checkpoints"] for of_rank in found] == [[]] * 4


def test_messages_name_ranks_by_their_numbers_in_the_group_and_in_the_world(found: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(found):
        named = f"rank 0 (global rank {rank % 2}) and rank 1 (global rank {rank % 2 + 2})"
        assert of_rank["errors"]["programs"].startswith(named)
        assert ("not a member" in of_rank["errors"]) == (rank > 0)
    assert found[1]["errors"]["not a member"].startswith("this rank is not in the process group")
    late = found[1]["errors"]["late"].splitlines()
    assert late[0].startswith("rank 0 (global rank 1), instruction ")
    assert late[0].endswith("is not complete after 2 s: late: rank 1 (global rank 3) still computes, the start-up")
    assert "the receive from rank 1 (global rank 3)" in late[0]
