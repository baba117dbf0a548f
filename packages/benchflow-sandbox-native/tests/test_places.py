"""What bf-engine.so takes for SQLite's, in memory of every kind."""

import ctypes
import errno
import struct

import pytest
from benchflow_sandbox_native import engine_library
from hypothesis import given
from hypothesis import strategies as st

RECORD = struct.Struct("<IIQQQ")
PAGE, HEAP = 4096, 0x7F0000000000
DEVICE, INODE, DESCRIPTOR = 53, 1234, 7
POINTER = 0x600000
NEW = "<QQQiiBB6xQi4xQQQ"
OLD = "<QQiBB2xi4xQi4xQQQ"


def find(*spans, files=((DESCRIPTOR, DEVICE, INODE),), room=8):
    """Search spans of memory (address, bytes); return the places, or the error."""
    known = sorted((7, fd, 0, device, inode) for fd, device, inode in files)
    known.sort(key=lambda record: record[3:])
    out = ctypes.create_string_buffer(RECORD.size * room)
    search = ctypes.CDLL(str(engine_library())).bf_places
    search.restype = ctypes.c_long
    count = search(
        b"".join(content for _, content in spans),
        b"".join(struct.pack("<QQ", address, len(content)) for address, content in spans),
        ctypes.c_long(len(spans)),
        b"".join(RECORD.pack(*record) for record in known),
        ctypes.c_long(len(known)),
        out,
        ctypes.c_long(room),
    )
    if count < 0:
        return errno.errorcode[-count]
    return [record[1:3] for record in RECORD.iter_unpack(out.raw[: count * RECORD.size])]


def info(layout=NEW, *, device=DEVICE, inode=INODE, references=1, following=0, previous=0):
    """Return a unixInodeInfo with a mutex, when its layout has one, and two shared locks."""
    if layout == NEW:
        fields = (POINTER, 2, 2, 1, 0, 0, references, POINTER, following, previous)
    else:
        fields = (2, 1, 0, references, POINTER, 2, 0, following, previous)
    return struct.pack(layout, device, inode, *fields)


def file(address, descriptor=DESCRIPTOR):
    """Return a unixFile that refers to the unixInodeInfo at an address."""
    return struct.pack("<QQQiB3x", POINTER, POINTER, address, descriptor, 1)


def page(**parts):
    """Return a page with `parts`, each at the offset in its name."""
    content = bytearray(PAGE)
    for place, part in parts.items():
        content[int(place[1:]) : int(place[1:]) + len(part)] = part
    return bytes(content)


@pytest.mark.parametrize("layout", [NEW, OLD])
def test_a_database_is_found_in_the_layout_of_each_version(layout):
    memory = page(_64=info(layout), _512=file(HEAP + 64))
    assert find((HEAP, memory)) == [(DESCRIPTOR, HEAP + 64)]


@pytest.mark.parametrize("layout", [NEW, OLD])
def test_each_of_a_list_is_found_wherever_it_lies(layout):
    far = HEAP + (1 << 30)
    first = page(_64=info(layout, following=far + 128), _512=file(far + 128, 9))
    second = page(_128=info(layout, inode=99, previous=HEAP + 64), _512=file(HEAP + 64))
    files = [(DESCRIPTOR, DEVICE, INODE), (9, DEVICE, 99), (10, DEVICE, 98)]
    found = find((HEAP, first), (far, second), files=files)
    assert found == [(DESCRIPTOR, HEAP + 64), (9, far + 128)]


def test_files_of_several_devices_are_found():
    memory = page(_64=info(device=1), _256=info(device=2), _512=file(HEAP + 64, 3))
    memory += page(_512=file(HEAP + 256, 4))
    found = find((HEAP, memory), files=[(3, 1, INODE), (4, 2, INODE)])
    assert found == [(3, HEAP + 64), (4, HEAP + 256)]


def test_numbers_alone_are_nobodys():
    pair = struct.pack("<QQ", DEVICE, INODE)
    stat = pair + struct.pack("<QIIIxxxxQqqq", 1, 0o100644, 0, 0, 0, 4096, 4096, 8)
    assert find((HEAP, page(_64=pair * 20, _1024=stat))) == []


def test_a_database_that_was_closed_is_nobodys():
    assert find((HEAP, page(_64=info(references=0), _512=file(HEAP + 64)))) == []


def test_another_file_is_nobodys():
    assert find((HEAP, page(_64=info(inode=77), _512=file(HEAP + 64)))) == []


def test_what_lacks_a_connection_is_half_made():
    assert find((HEAP, page(_64=info(references=2), _512=file(HEAP + 64)))) == "EAGAIN"
    assert find((HEAP, page(_64=info()))) == "EAGAIN"
    assert find((HEAP, page(_64=info(), _512=file(HEAP + 64, 8)))) == "EAGAIN"


@pytest.mark.parametrize("neighbour", [HEAP + 256, HEAP + PAGE, HEAP - 64, (1 << 55) + 8])
def test_what_a_neighbour_does_not_know_is_half_made(neighbour):
    memory = page(_64=info(following=neighbour), _512=file(HEAP + 64))
    assert find((HEAP, memory)) == "EAGAIN"


def test_more_than_can_be_explained_is_refused():
    memory = page(_64=info(), _256=info(), _512=file(HEAP + 64), _768=file(HEAP + 256))
    assert len(find((HEAP, memory))) == 2
    assert find((HEAP, memory), room=1) == "E2BIG"
    assert find((HEAP, page(_0=info() * (PAGE // 80)) * 8)) == "E2BIG"


def test_what_ends_with_the_memory_is_not_read_further():
    whole = page(_3000=b"", _4016=info(), _512=file(HEAP + 4016))
    cut = page(_4024=info()[:72], _512=file(HEAP + 4024))
    assert find((HEAP, whole)) == [(DESCRIPTOR, HEAP + 4016)]
    assert find((HEAP, cut)) == []
    assert find() == []


WORDS = st.sampled_from([0, 1, 2, 8, DEVICE, INODE, DESCRIPTOR, POINTER, HEAP, HEAP + 64, HEAP + 8])


@given(st.lists(WORDS, max_size=60))
def test_any_memory_is_read_to_its_end(words):
    found = find((HEAP, page(_64=struct.pack(f"<{len(words)}Q", *words))))
    assert isinstance(found, str) or all(HEAP <= place < HEAP + PAGE for _, place in found)
