"""The digest of a Harbor task that the host cannot read."""

import errno
import os

import pytest
from benchflow_adapters_harbor.digest import task_digest
from benchflow_adapters_harbor.migrate import layout_key
from benchflow_contracts import HostError


@pytest.mark.parametrize("digest", [task_digest, layout_key])
def test_a_directory_that_the_host_cannot_open_is_not_treated_as_empty(
    digest, tmp_path, monkeypatch
):
    def short(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("true")
    assert digest(tmp_path)
    monkeypatch.setattr(os, "scandir", short)
    with pytest.raises(HostError, match="open files"):
        digest(tmp_path)
