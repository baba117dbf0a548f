"""Deleting checkpoints deletes saved checkpoints only, and never the target of a link."""

from pathlib import Path

import pytest
from benchflow_store import delete_checkpoints


def filled(directory: Path) -> Path:
    """Make what looks like a home of checkpoints, with a half-written one."""
    for name in (".ssh", ".n1.part"):
        (directory / name).mkdir(parents=True)
        (directory / name / "key").write_text("mine")
    return directory


@pytest.mark.parametrize("link", ["a/checkpoints", "job/a/checkpoints", "a", "job"])
def test_the_target_of_a_link_is_not_deleted(tmp_path: Path, link: str) -> None:
    jobs, mine = tmp_path / "jobs", tmp_path / "mine"
    filled(mine)
    filled(mine / "checkpoints")
    filled(mine / "a" / "checkpoints")
    (jobs / link).parent.mkdir(parents=True)
    (jobs / link).symlink_to(mine)
    assert delete_checkpoints(jobs, budget_mb=1) == []
    assert len(list(mine.rglob("key"))) == 6


def test_incomplete_checkpoints_are_deleted_and_other_files_stay(tmp_path: Path) -> None:
    home = filled(tmp_path / "rollout" / "checkpoints")
    assert delete_checkpoints(tmp_path, budget_mb=1) == []
    assert [path.name for path in home.iterdir()] == [".ssh"]
