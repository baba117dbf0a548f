"""The in-box program that copies files and directories, run on this host's files."""

import os
from pathlib import Path

import pytest
from benchflow_env_manifest.in_sandbox import trees


def make_tree(root: Path) -> None:
    (root / "sub").mkdir(parents=True)
    (root / "a").write_text("one")
    (root / "sub" / "b").write_text("two")
    (root / "a").chmod(0o640)


def content(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in files}


def test_a_copy_has_contents_and_modes_and_a_restore_brings_them_back(tmp_path: Path):
    live, lone, absent = tmp_path / "live", tmp_path / "lone", tmp_path / "absent"
    make_tree(live)
    lone.write_text("alone")
    paths = [str(live), str(lone), str(absent)]
    assert trees.capture(paths, str(tmp_path / "copy"))
    before = content(live)
    (live / "a").write_text("changed")
    (live / "sub" / "b").unlink()
    (live / "sub" / "more").mkdir()
    lone.unlink()
    absent.write_text("new")
    inode = live.stat().st_ino
    trees.restore(paths, str(tmp_path / "copy"))
    assert content(live) == before
    assert (live / "a").stat().st_mode & 0o777 == 0o640
    assert not (live / "sub" / "more").exists()
    assert (lone.read_text(), absent.exists()) == ("alone", False)
    assert live.stat().st_ino == inode, "who has the directory open sees the new entries"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "live", "lone"]


def test_a_file_becomes_a_directory_again(tmp_path: Path):
    live = tmp_path / "live"
    make_tree(live)
    assert trees.capture([str(live)], str(tmp_path / "copy"))
    (live / "sub" / "b").unlink()
    (live / "sub").rmdir()
    (live / "sub").write_text("now a file")
    trees.restore([str(live)], str(tmp_path / "copy"))
    assert content(live) == {"a": "one", "sub/b": "two"}


def test_a_failed_restore_restores_the_earlier_contents(tmp_path: Path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    make_tree(one)
    make_tree(two)
    paths = [str(one), str(two)]
    assert trees.capture(paths, str(tmp_path / "copy"))
    (one / "a").write_text("kept")
    (two / "a").write_text("kept, too")
    move = trees.move
    calls: list[str] = []

    def fails_at_the_second(source: str, target: str) -> None:
        if target == str(two) and not calls:
            calls.append(target)
            (two / "a").unlink()
            raise OSError("disk full")
        move(source, target)

    monkeypatch.setattr(trees, "move", fails_at_the_second)
    with pytest.raises(OSError, match="disk full"):
        trees.restore(paths, str(tmp_path / "copy"))
    assert (content(one)["a"], content(two)["a"]) == ("kept", "kept, too")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "one", "two"]


def test_a_copy_under_constant_writes_fails_and_leaves_no_files(tmp_path: Path, monkeypatch):
    live = tmp_path / "live"
    make_tree(live)
    copy = trees.copy

    def written_meanwhile(source: str, target: str) -> None:
        copy(source, target)
        (live / "a").write_text("one more" + (live / "a").read_text())

    monkeypatch.setattr(trees, "copy", written_meanwhile)
    assert not trees.capture([str(live)], str(tmp_path / "copy"))
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


def test_links_and_pipes_are_refused(tmp_path: Path):
    live = tmp_path / "live"
    make_tree(live)
    (live / "link").symlink_to("/etc")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        trees.capture([str(live)], str(tmp_path / "copy"))
    (live / "link").unlink()
    os.mkfifo(live / "pipe")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        trees.capture([str(live)], str(tmp_path / "copy"))
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
