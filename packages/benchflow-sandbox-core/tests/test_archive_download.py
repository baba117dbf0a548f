"""Archives that a hostile sandbox wrote: nothing leaves the target, and nothing grows."""

import contextlib
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from benchflow_contracts.errors import HostError, TransferError
from benchflow_sandbox_core.archive_download import ArchiveDownload
from benchflow_sandbox_core.thread import StopFlag
from hypothesis import given
from hypothesis import strategies as st

LIMIT = 1 << 20


class Sent:
    """An archive of bytes."""

    def __init__(self, data):
        self.data = data

    def is_link(self, path):
        del path
        return False

    @contextlib.contextmanager
    def tar(self, path):
        del path
        file = io.BytesIO(self.data)
        yield iter(lambda: file.read(1 << 16), b"")


def download(data, directory):
    target = directory / "got"
    ArchiveDownload(Sent(data), LIMIT, StopFlag()).run("/box/top", target)
    return target


def member(name, kind=tarfile.REGTYPE, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(*members, form=tarfile.GNU_FORMAT):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def header(kind, size):
    """Return a header alone, with a size that its bytes do not have."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


TOP = member("top", tarfile.DIRTYPE)
HOSTILE = {
    "a parent": archive(TOP, member("top/../../escaped", content=b"x")),
    "an absolute name": archive(TOP, member("/etc/escaped", content=b"x")),
    "a symlink": archive(TOP, member("top/a", tarfile.SYMTYPE, linkname="/etc")),
    "a device": archive(TOP, member("top/a", tarfile.CHRTYPE)),
    "a pipe": archive(TOP, member("top/a", tarfile.FIFOTYPE)),
    "a hard link outside": archive(TOP, member("top/a", tarfile.LNKTYPE, linkname="top/../b")),
    "a hard link to nothing": archive(TOP, member("top/a", tarfile.LNKTYPE, linkname="top/b")),
    "a name twice": archive(TOP, member("top/a", content=b"x"), member("top/a", content=b"y")),
    "a NUL in a name": archive(
        TOP, member("top/x", pax_headers={"path": "top/a\0b"}), form=tarfile.PAX_FORMAT
    ),
    "a file of holes": archive(
        TOP,
        member("top/x", pax_headers={"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,0"}),
        form=tarfile.PAX_FORMAT,
    ),
    "wrong numbers of holes": archive(
        TOP,
        member("top/x", pax_headers={"GNU.sparse.size": "x", "GNU.sparse.map": "y"}),
        form=tarfile.PAX_FORMAT,
    ),
    "too many bytes": archive(TOP, member("top/a", content=bytes(LIMIT + 1))),
    "attributes of a GiB": header(tarfile.XHDTYPE, 1 << 30) + bytes(1 << 21),
    "a name of a GiB": header(tarfile.GNUTYPE_LONGNAME, 1 << 30) + bytes(1 << 21),
    "attributes of attributes": header(tarfile.XHDTYPE, 0) * 3000,
    "no archive": b"x" * 4096,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(data, tmp_path):
    with pytest.raises(TransferError):
        download(data, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_plain_tree_arrives(tmp_path):
    long = "n" * 200
    tree = [TOP, member(f"top/{long}", content=b"x", mode=0o755), member("top/ä", content=b"y")]
    for number, form in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        (place := tmp_path / str(number)).mkdir()
        got = download(archive(*tree, form=form), place)
        assert {each.name: each.read_bytes() for each in got.iterdir()} == {long: b"x", "ä": b"y"}
        assert (got / long).stat().st_mode & 0o777 == 0o755


PLAIN = archive(TOP, member("top/a", content=b"abc"), member("top/" + "n" * 150, content=b"x"))
CHANGES = st.lists(st.tuples(st.integers(0, 6 * 512), st.integers(0, 255)), max_size=12)


def changed(changes):
    """Return an archive with some other bytes, and with headers whose sums are right again."""
    data = bytearray(PLAIN)
    for at, value in changes:
        data[at % len(data)] = value
    for at in range(0, len(data), 512):
        block = data[at : at + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(data)


@given(CHANGES)
def test_no_changed_byte_of_an_archive_is_more_than_a_refusal(changes):
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "place"
        place.mkdir()
        with contextlib.suppress(TransferError, HostError):
            download(changed(changes), place)
        assert {each.name for each in place.iterdir()} <= {"got"}
        assert [each.name for each in Path(directory).iterdir()] == ["place"]
