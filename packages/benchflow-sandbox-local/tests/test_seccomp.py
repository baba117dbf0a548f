import struct

import pytest
from benchflow_sandbox_local.launcher_process.start import privileges

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(arch, number, args=(0,), audit=None):
    """Run the program as the kernel does."""
    data = struct.pack("=iIQ", number, audit or ARCH[arch], 0)
    data += b"".join(struct.pack("=Q", arg) for arg in (*args, 0, 0, 0, 0, 0)[:6])
    code = privileges.program(arch)
    at = accumulator = 0
    while True:
        op, true, false, value = struct.unpack_from("=HBBI", code, at * 8)
        at += 1
        if op == 0x06:
            return value
        if op == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        else:
            taken = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[op]
            at += true if taken else false


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_each_denied_call_is_refused_and_every_other_passes(arch):
    column = list(ARCH).index(arch)
    denied = {numbers[column] for numbers in privileges._DENIED.values()} - {None}
    denied |= set(privileges._DENIED_EVERYWHERE.values())
    absent = set(privileges._ABSENT.values())
    for number in range(500):
        found = decide(arch, number)
        if number in absent:
            assert found == ERRNO | 38
        elif number in denied:
            assert found == ERRNO | 1
        elif number == {"x86_64": 41, "aarch64": 198}[arch]:
            assert found == ERRNO | 97
        else:
            assert found == ALLOW, number


@pytest.mark.parametrize(("arch", "prctl"), [("x86_64", 157), ("aarch64", 167)])
def test_an_option_of_prctl_that_a_live_child_would_lose_is_unknown(arch, prctl):
    unknown = {number for number in range(100) if decide(arch, prctl, (number,)) == ERRNO | 22}
    assert unknown == {26, 33, 59, 65, 67}
    assert {decide(arch, prctl, (number,)) for number in set(range(100)) - unknown} == {ALLOW}


@pytest.mark.parametrize(("arch", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_clone_makes_threads_and_children_but_no_namespace(arch, clone):
    for flags in (17, 0x003D0F00, 0x01200011):
        assert decide(arch, clone, (flags,)) == ALLOW
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert decide(arch, clone, (1 << bit | 17,)) == ERRNO | 1


@pytest.mark.parametrize(("arch", "call"), [("x86_64", 41), ("aarch64", 198)])
def test_only_local_and_internet_sockets_can_be_made(arch, call):
    allowed = {n for n in range(60) if decide(arch, call, (n,)) == ALLOW}
    assert allowed == {1, 2, 10, 16}


@pytest.mark.parametrize(("arch", "fcntl"), [("x86_64", 72), ("aarch64", 25)])
def test_a_directory_cannot_be_watched_by_fcntl(arch, fcntl):
    for command in (*range(40), 1024, 1025, 1030, 1033):
        assert decide(arch, fcntl, (3, command)) == ALLOW
    assert decide(arch, fcntl, (3, 1026)) == ERRNO | 22


def test_another_architecture_is_killed_and_x32_refused():
    assert decide("x86_64", 0, audit=0x40000003) == KILL
    assert decide("aarch64", 0, audit=ARCH["x86_64"]) == KILL
    assert decide("x86_64", 0x40000000 + 165) == ERRNO | 38
    with pytest.raises(KeyError):
        privileges.program("riscv64")
