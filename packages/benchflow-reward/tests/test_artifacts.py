import errno
import os

import pytest
from benchflow_contracts import HostError
from benchflow_reward.script.artifacts import strip_start_up_files

STEERING = [
    *("conftest.py", "pytest.ini", "deep/tox.ini", "setup.cfg", "sitecustomize.py", "evil.pth"),
    *("deep/usercustomize.py", "__pycache__/json.cpython-311.pyc", "repo/.git/hooks/post-checkout"),
    "sitecustomize/__init__.py",
]
HARMLESS = ["answer.txt", "src/main.py", "repo/.git/config", "hooks/useful.sh", "deep/a/b/c.json"]


def build(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def remaining(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_steering_files_are_cut_out(tmp_path):
    build(tmp_path, STEERING + HARMLESS)
    removed = strip_start_up_files(tmp_path, "/workspace", [])
    assert remaining(tmp_path) == set(HARMLESS)
    assert "/workspace/conftest.py" in removed
    assert "/workspace/repo/.git/hooks" in removed
    assert "/workspace/__pycache__" in removed
    assert len(removed) == len(STEERING)


def test_a_declared_path_is_kept(tmp_path):
    build(tmp_path, ["setup.cfg", "deep/setup.cfg"])
    strip_start_up_files(tmp_path, "/workspace", ["/workspace", "/workspace/setup.cfg"])
    assert remaining(tmp_path) == {"setup.cfg"}


def test_modes_become_plain(tmp_path):
    build(tmp_path, ["plain", "script", "deep/x"])
    (tmp_path / "plain").chmod(0o600)
    (tmp_path / "script").chmod(0o6711)
    (tmp_path / "deep").chmod(0o700)
    strip_start_up_files(tmp_path, "/workspace", [])
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o7777 for name in ("plain", "script", "deep")
    }
    assert modes == {"plain": 0o644, "script": 0o755, "deep": 0o755}


def test_a_single_file_is_kept_and_made_readable(tmp_path):
    file = tmp_path / "0"
    file.write_text("x")
    file.chmod(0o600)
    assert strip_start_up_files(file, "/workspace/conftest.py", ["/workspace/conftest.py"]) == []
    assert file.stat().st_mode & 0o7777 == 0o644


def test_a_directory_that_the_host_cannot_open_is_not_taken_for_free_of_steering(
    tmp_path, monkeypatch
):
    def short(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    build(tmp_path, ["deep/conftest.py"])
    monkeypatch.setattr(os, "scandir", short)
    with pytest.raises(HostError, match="open files"):
        strip_start_up_files(tmp_path, "/app", [])
