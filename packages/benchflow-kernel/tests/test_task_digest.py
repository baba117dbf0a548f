"""The digest of a task that the host cannot read: no digest, and never that of fewer files."""

import errno
import os

import pytest
from benchflow_contracts import HostError
from benchflow_kernel.tasks.load import digest_of


def test_a_directory_that_the_host_cannot_open_is_not_taken_for_empty(tmp_path, monkeypatch):
    def short(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("true")
    assert digest_of(tmp_path)
    monkeypatch.setattr(os, "scandir", short)
    with pytest.raises(HostError, match="open files"):
        digest_of(tmp_path)
