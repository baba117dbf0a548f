"""An export is complete or does not exist."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_export import publish
from benchflow_export.exporters import write_export
from benchflow_kernel import Registry


def writer(text: str):
    def write(home: Path) -> str:
        (home / "file").write_text(text)
        return text

    return write


def test_an_export_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "job"

    def write(home: Path) -> None:
        assert not target.exists()
        assert home.parent.parent == target.parent
        (home / "file").write_text("x")

    publish(target, write)
    assert (target / "file").read_text() == "x"
    assert list(target.parent.iterdir()) == [target]


def test_an_export_is_replaced_by_a_new_one(tmp_path):
    publish(tmp_path / "job", lambda home: (home / "old").touch())
    assert publish(tmp_path / "job", writer("new")) == "new"
    assert not (tmp_path / "job" / "old").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["job"]


def test_a_failed_export_does_not_change_the_old_export(tmp_path):
    publish(tmp_path / "job", writer("old"))

    def fail(home: Path) -> None:
        (home / "file").write_text("half")
        raise OSError("disk full")

    with pytest.raises(StoreError, match="disk full"):
        publish(tmp_path / "job", fail)
    assert (tmp_path / "job" / "file").read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["job"]


def test_a_directory_that_no_export_made_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(UsageError, match="is not an export"):
            publish(tmp_path / name, writer("new"))
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years"


def test_an_empty_directory_may_be_filled(tmp_path):
    (tmp_path / "job").mkdir()
    publish(tmp_path / "job", writer("new"))
    assert (tmp_path / "job" / "file").read_text() == "new"


HALF = """
import sys
from pathlib import Path
from benchflow_export import publish
from benchflow_export.exporters import write_export
from benchflow_kernel import Registry

def write(home):
    (home / "file").write_text("half")
    print("half", flush=True)
    sys.stdin.read()

publish(Path(sys.argv[1]), write)
"""


def test_a_killed_export_does_not_appear(tmp_path):
    publish(tmp_path / "old", writer("old"))
    for name in ("old", "new"):
        export = subprocess.Popen(
            [sys.executable, "-c", HALF, str(tmp_path / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert export.stdout is not None
            assert export.stdout.readline() == b"half\n"
        finally:
            export.kill()
            export.communicate()
    assert (tmp_path / "old" / "file").read_text() == "old"
    assert not (tmp_path / "new").exists()
    publish(tmp_path / "new", writer("whole"))
    assert (tmp_path / "new" / "file").read_text() == "whole"


class _Broken:
    def export(self, job, rollouts, directory):
        return rollouts.missing


def test_a_defect_names_its_exporter(tmp_path, monkeypatch):
    monkeypatch.setattr(Registry, "resolve", lambda self, group, name: _Broken)
    with pytest.raises(StoreError, match="the exporter 'broken' failed: AttributeError"):
        write_export("broken", [], tmp_path / "out")
    assert not (tmp_path / "out").exists()
