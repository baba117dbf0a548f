import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchflow_sandbox_core.fifo.streams import FifoDirectory, is_written


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FifoDirectory]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    directory = FifoDirectory(fd)
    yield directory
    directory.close()


def test_looking_for_who_uses_a_pipe_takes_nothing_out_of_it(
    place: FifoDirectory, tmp_path: Path
) -> None:
    streams = place.streams()
    # The box opens its ends by their names, and writes before the host is done.
    inside_in = os.open(tmp_path / "0.0", os.O_RDONLY | os.O_NONBLOCK)
    inside_out = os.open(tmp_path / "0.1", os.O_WRONLY | os.O_NONBLOCK)
    streams.close_child()
    ours, theirs = streams.stdout.detach(), streams.stdin.detach()
    os.write(inside_out, b"CONNECT")
    os.write(theirs, b"200 OK")
    streams.close()
    # Each new stream has the directory look again.
    place.streams().close()
    assert (os.read(ours, 100), os.read(inside_in, 100)) == (b"CONNECT", b"200 OK")
    for fd in (inside_in, inside_out, ours, theirs):
        os.close(fd)
    place.streams().close()
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_while_it_holds_data_or_has_a_writer(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    assert is_written(reader)
    os.write(writer, b"x")
    os.close(writer)
    assert is_written(reader)
    assert os.read(reader, 2) == b"x"
    assert not is_written(reader)
    os.close(reader)


def test_what_is_no_pipe_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (tmp_path / "file").open() as file, pytest.raises(OSError, match="Invalid argument"):
        is_written(file.fileno())
