"""The directory of waiting batches: what counts against its limit."""

import os
import time
from pathlib import Path

from benchflow_monitor.spool import Spool


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
