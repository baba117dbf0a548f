"""Making room drops what rollouts kept, and nothing that somebody points at."""

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
def test_a_link_in_a_record_leads_to_nothing_that_is_dropped(tmp_path: Path, link: str) -> None:
    jobs, mine = tmp_path / "jobs", tmp_path / "mine"
    filled(mine)
    filled(mine / "checkpoints")
    filled(mine / "a" / "checkpoints")
    (jobs / link).parent.mkdir(parents=True)
    (jobs / link).symlink_to(mine)
    assert delete_checkpoints(jobs, budget_mb=1) == []
    assert len(list(mine.rglob("key"))) == 6


def test_what_was_cut_short_goes_and_other_files_stay(tmp_path: Path) -> None:
    home = filled(tmp_path / "rollout" / "checkpoints")
    assert delete_checkpoints(tmp_path, budget_mb=1) == []
    assert [path.name for path in home.iterdir()] == [".ssh"]
