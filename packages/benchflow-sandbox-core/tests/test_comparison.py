"""Directories that an overlay shows from elsewhere than their own path."""

import os
import shutil
from contextlib import ExitStack, contextmanager

import pytest
from benchflow_contracts.errors import SandboxLimitError
from benchflow_sandbox_core import comparison
from benchflow_sandbox_core.comparison import Comparison

OPAQUE = "user.overlay.opaque"


@pytest.mark.parametrize(
    ("mark", "changed"), [(OPAQUE, True), ("user.overlay.redirect", True), ("user.x", False)]
)
def test_a_directory_that_took_the_place_of_another_has_changed(tmp_path, mark, changed):
    upper, base = tmp_path / "upper", tmp_path / "base"
    for layer in (upper, base):
        (layer / "lib").mkdir(parents=True)
    os.setxattr(upper / "lib", mark, b"/elsewhere")
    with compared(upper, base) as files:
        assert files.since({}).changed == (("/lib",) if changed else ())


@contextmanager
def compared(upper, base):
    with ExitStack() as stack:
        fds = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in (upper, base)]
        for fd in fds:
            stack.callback(os.close, fd)
        yield Comparison(fds[:1], fds[1:], OPAQUE)


@pytest.mark.timeout(60)
def test_files_that_are_mostly_holes_are_compared_by_their_data(tmp_path):
    upper, base = tmp_path / "upper", tmp_path / "base"
    for layer in (upper, base):
        layer.mkdir()
        for name in ("same", "other"):
            with (layer / name).open("wb") as file:
                file.truncate(8 << 40)
                for at in range(0, 1 << 33, 1 << 26):
                    os.pwrite(file.fileno(), b"x", at + 12345)
    with (upper / "other").open("r+b") as file:
        os.pwrite(file.fileno(), b"x", (7 << 40) + 1)
    with compared(upper, base) as files:
        assert files.since({}).changed == ("/other",)


def test_zeros_that_were_written_are_compared_as_a_hole(tmp_path):
    upper, base = tmp_path / "upper", tmp_path / "base"
    for layer in (upper, base):
        layer.mkdir()
    (upper / "file").write_bytes(b"a" + bytes(1 << 20) + b"b")
    with (base / "file").open("wb") as file:
        os.pwrite(file.fileno(), b"a", 0)
        os.pwrite(file.fileno(), b"b", 1 + (1 << 20))
    shutil.copystat(base / "file", upper / "file")
    with compared(upper, base) as files:
        assert files.since({}).changed == ()


@pytest.mark.timeout(60)
def test_files_without_number_are_a_limit_that_what_ran_inside_hit(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "_MAX_ENTRIES", 3)
    upper, base = tmp_path / "upper", tmp_path / "base"
    (upper / "d").mkdir(parents=True)
    base.mkdir()
    for name in "ab":
        (upper / "d" / name).touch()
    with compared(upper, base) as found:
        assert len(found.since({}).added) == 3
        assert len(found.since({}).added) == 3
        (upper / "c").touch()
        with pytest.raises(SandboxLimitError, match="more than 3 files") as failed:
            found.since({})
    assert failed.value.caused_by == "inside"
