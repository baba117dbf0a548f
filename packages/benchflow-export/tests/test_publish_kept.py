"""An export deletes nothing that another program wrote into the directory of an earlier one."""

from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_export import publish


def write(home: Path) -> None:
    (home / "file").write_text("of the export")


def test_a_file_that_came_into_an_export_is_never_deleted(tmp_path: Path) -> None:
    publish(tmp_path / "logs", write)
    other = tmp_path / "logs" / "of-another-program"
    other.write_text("kept")
    with pytest.raises(UsageError, match="has 'of-another-program', which the export did not"):
        publish(tmp_path / "logs", write)
    assert other.read_text() == "kept"
    other.unlink()
    publish(tmp_path / "logs", write)


def test_an_export_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    publish(tmp_path / "job", write)
    (tmp_path / "job" / ".benchflow-export").write_bytes(b"")
    publish(tmp_path / "job", write)
    assert (tmp_path / "job" / ".benchflow-export").read_bytes() == b"file"
