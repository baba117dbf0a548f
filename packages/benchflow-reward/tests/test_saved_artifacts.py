import json
import subprocess
import tarfile

import pytest
from benchflow_contracts import Artifact
from benchflow_reward.collect import Collected
from benchflow_reward.script.saved_artifacts import remove_excluded, write_artifacts


def tree(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def files(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "pattern", ["*.tmp", "c", "a/c", "a/*.py", "b.p", "?.py", "[ab].py", "./a", "*/d.py", ".py"]
)
def test_exclusions_are_those_of_tar(tmp_path, pattern):
    root = tree(tmp_path / "tree", "a/b.py", "a/c/d.py", "a/x.tmp", "b.py")
    packed = ["tar", "-C", root, f"--exclude={pattern}", "-cf", tmp_path / "packed.tar", "."]
    subprocess.run(packed, check=True)
    with tarfile.open(tmp_path / "packed.tar") as archive:
        wanted = sorted(m.name.removeprefix("./") for m in archive.getmembers() if m.isreg())
    remove_excluded(Artifact(source="/tree", exclude=(pattern,)), root)
    assert files(root) == wanted


def test_exclusions_do_not_concern_a_file(tmp_path):
    (tmp_path / "x").write_text("x")
    remove_excluded(Artifact(source="/x", exclude=("*",)), tmp_path / "x")
    assert (tmp_path / "x").exists()


def test_the_record_mirrors_the_box_and_says_how_each_fared(tmp_path):
    folder = tree(tmp_path / "0", "sub/file")
    (tmp_path / "1").mkdir()
    (tmp_path / "2").write_text("two")
    declared = [
        (Artifact(source="/srv/out", exclude=("*.tmp",)), Collected("/srv/out", "copied", folder)),
        (Artifact(source="/logs/artifacts"), Collected("/x", "copied", tmp_path / "1")),
        (
            Artifact(source="/a", destination="given/name"),
            Collected("/a", "copied", tmp_path / "2"),
        ),
        (Artifact(source="/srv/none"), Collected("/srv/none", "absent")),
        (Artifact(source="/srv/out/sub"), Collected("/srv/out/sub", "copied", folder)),
        (Artifact(source="/manifest.json"), Collected("/m", "copied", tmp_path / "2")),
        (Artifact(source="/srv/bare"), Collected("/srv/bare", "copied", tmp_path / "1")),
    ]
    record = tmp_path / "artifacts"
    write_artifacts([a for a, _ in declared], [c for _, c in declared], record)
    assert files(record) == ["given/name", "manifest.json", "srv/out/sub/file"]
    entries = json.loads((record / "manifest.json").read_text())
    assert [(e["destination"], e["type"], e["status"]) for e in entries] == [
        ("artifacts/srv/out", "directory", "ok"),
        ("artifacts/logs/artifacts", "directory", "empty"),
        ("artifacts/given/name", "file", "ok"),
        ("artifacts/srv/none", "file", "failed"),
        ("artifacts/srv/out/sub", "directory", "skipped"),
        ("artifacts/manifest.json", "file", "skipped"),
        ("artifacts/srv/bare", "directory", "ok"),
    ]
    assert entries[0]["exclude"] == ["*.tmp"]


def test_nothing_is_written_without_a_record_or_artifacts(tmp_path):
    write_artifacts([], [], tmp_path / "none")
    write_artifacts([Artifact(source="/x")], [Collected("/x", "absent")], None)
    assert list(tmp_path.iterdir()) == []
