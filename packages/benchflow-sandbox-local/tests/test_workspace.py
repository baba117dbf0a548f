"""The launcher's mounts, where the kernel says no."""

import errno
import os

import pytest
from benchflow_sandbox_local.launcher_process import syscalls
from benchflow_sandbox_local.launcher_process.layers import workspace
from benchflow_sandbox_local.launcher_process.layers.workspace import Workspace


@pytest.fixture
def space(tmp_path, monkeypatch):
    """Return a workspace with one pool, whose waits are counted and not waited for."""
    (tmp_path / "f").mkdir()
    (tmp_path / "f/trash").mkdir()
    monkeypatch.setattr(workspace.time, "sleep", lambda _: None)
    return Workspace(str(tmp_path), rooted=True)


def refusing(times, tried):
    """Return a `mount` that says EBUSY so often."""

    def mount(_source, _target, _kind, _flags, data=""):
        tried.append(data)
        if len(tried) <= times:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    return mount


def test_a_lower_that_is_still_an_upper_is_waited_for(space, monkeypatch):
    tried = []
    monkeypatch.setattr(syscalls, "mount", refusing(3, tried))
    assert space.mount_root("f", "b1", [f"{space.root}/f/l1"]).endswith("/f/m-b1")
    assert len(tried) == 4
    # Nothing was given up for it: live forks need every option.
    assert len(set(tried)) == 1
    assert "nfs_export=on" in tried[0]


def test_a_lower_that_stays_an_upper_is_an_error_and_leaves_nothing(space, monkeypatch):
    tried = []
    monkeypatch.setattr(syscalls, "mount", refusing(10**6, tried))
    with pytest.raises(OSError, match="busy"):
        space.mount_root("f", "b1", [f"{space.root}/f/l1"])
    assert len(set(tried)) == 1
    assert sorted(os.listdir(f"{space.root}/f")) == ["trash"]  # noqa: PTH208
