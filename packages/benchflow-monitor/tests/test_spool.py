"""The directory of waiting batches: what counts against its limit."""

import os
import time
from pathlib import Path

import pytest
from benchflow_monitor.spool import Spool, default_spool


def test_a_file_of_a_killed_program_takes_no_room_for_ever(tmp_path: Path) -> None:
    for name, seconds in (("now", 0), ("old", -1_000), ("of-the-future", 1_000)):
        partial = tmp_path / f"{name}.partial"
        partial.write_bytes(bytes(9_000))
        written = time.time() + seconds
        os.utime(partial, (written, written))
    spool = Spool(tmp_path, 10_000)

    assert spool.put(bytes(900), 1)
    assert not spool.put(bytes(900), 1)
    assert [path.name for path in tmp_path.glob("*.partial")] == ["now.partial"]


def test_each_server_has_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    here, there = (
        Spool(default_spool(url), 10_000) for url in ("http://127.0.0.1:1", "http://127.0.0.1:2")
    )

    assert here.put(b"text", 1)
    assert there.oldest() is None
    assert default_spool("http://127.0.0.1:1/") == default_spool("http://127.0.0.1:1")
    assert here.oldest() is not None
