"""Memory: kinds of mappings, and what the kernel was told about them."""

import ctypes
import fcntl
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import HELD, Helper, Lost, Section, call, expect, libc, syscall

a = Section("Memory")
PAGE = mmap.PAGESIZE
PRIVATE, SHARED, ANONYMOUS = mmap.MAP_PRIVATE, mmap.MAP_SHARED, mmap.MAP_ANONYMOUS
RW = mmap.PROT_READ | mmap.PROT_WRITE

libc.mmap.restype = ctypes.c_void_p
libc.mremap.restype = ctypes.c_void_p


def mapped(size: int, protection: int = RW, flags: int = PRIVATE | ANONYMOUS, fd: int = -1) -> int:
    """Map memory that Python knows nothing of; return its address."""
    address = libc.mmap(None, ctypes.c_size_t(size), protection, flags, fd, ctypes.c_long(0))
    if address is None or address == 2**64 - 1:
        call(-1, "mmap")
    return int(address)


def read(address: int, size: int) -> bytes:
    """Return what is there."""
    return ctypes.string_at(address, size)


def write(address: int, data: bytes) -> None:
    """Write there."""
    ctypes.memmove(address, data, len(data))


def advise(address: int, size: int, advice: int) -> None:
    """Tell the kernel something."""
    call(libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice), "madvise")


def flags_of(address: int) -> set[str]:
    """Return the flags of a mapping."""
    text = Path("/proc/self/smaps").read_text()
    start = f"{address:x}-"
    inside = False
    for line in text.splitlines():
        if "-" in line.split(" ")[0] and not line.split(" ")[0].endswith(":"):
            inside = line.startswith(start)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise Lost(f"there is no mapping at {address:x}")


@a("anonymous, private")
def private(room: Path) -> Iterator[None]:
    address = mapped(64 * PAGE)
    write(address, HELD)
    write(address + 63 * PAGE, HELD)
    yield
    expect((read(address, 18), read(address + 63 * PAGE, 18)), (HELD, HELD), "its bytes")
    expect(read(address + PAGE, 18), b"\0" * 18, "a page that was never written")


@a("anonymous, shared by two processes")
def shared(room: Path) -> Iterator[None]:
    address = mapped(PAGE, RW, SHARED | ANONYMOUS)
    helper = Helper(lambda: write(address, HELD))
    yield
    helper.result()
    expect(read(address, len(HELD)), HELD, "what the other process has written")


@a("file, private, changed")
def file_private(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(b"." * 2 * PAGE)
    address = mapped(2 * PAGE, RW, PRIVATE, os.open(room / "file", os.O_RDWR))
    write(address, HELD)
    yield
    expect((read(address, 18), read(address + PAGE, 2)), (HELD, b".."), "its bytes")
    expect((room / "file").read_bytes()[:18], b"." * 18, "the file's bytes")


@a("file, shared by two processes")
def file_shared(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(b"." * PAGE)
    address = mapped(PAGE, RW, SHARED, os.open(room / "file", os.O_RDWR))
    helper = Helper(lambda: write(address, HELD))
    yield
    helper.result()
    expect(read(address, 18), HELD, "what the other process has written")
    expect((room / "file").read_bytes()[:18], HELD, "the file's bytes")


@a("file, shared, deleted")
def file_deleted(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(b"." * PAGE)
    fd = os.open(room / "file", os.O_RDWR)
    address = mapped(PAGE, RW, SHARED, fd)
    os.close(fd)
    os.unlink(room / "file")
    write(address, HELD)
    yield
    expect(read(address, 18), HELD, "its bytes")


@a("file, beyond its end")
def beyond_end(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    fd = os.open(room / "file", os.O_RDWR)
    address = mapped(4 * PAGE, RW, SHARED, fd)
    yield
    os.truncate(room / "file", 4 * PAGE)
    os.pwrite(fd, HELD, 3 * PAGE)
    expect(read(address + 3 * PAGE, 18), HELD, "bytes of the file that has grown")


@a("file of the image, executable")
def program(room: Path) -> Iterator[None]:
    before = mapped_files(), os.readlink("/proc/self/exe")
    yield
    expect((mapped_files(), os.readlink("/proc/self/exe")), before, "mapped files and program")


def mapped_files() -> list[str]:
    """Return the names of all files that are mapped."""
    names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(name for name in names if name.startswith("/"))


@a("memfd, and a mapping of it")
def memfd(room: Path) -> Iterator[None]:
    fd = os.memfd_create("held")
    os.write(fd, HELD)
    address = mapped(PAGE, RW, SHARED, fd)
    yield
    expect((os.pread(fd, 100, 0), read(address, 18)), (HELD, HELD), "its bytes")
    write(address, b"new")
    expect(os.pread(fd, 3, 0), b"new", "what is written through the mapping")


@a("memfd, sealed")
def memfd_sealed(room: Path) -> Iterator[None]:
    fd = os.memfd_create("held", os.MFD_ALLOW_SEALING)
    os.write(fd, HELD)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    yield
    expect(fcntl.fcntl(fd, fcntl.F_GET_SEALS), seals, "its seals")
    expect(os.pread(fd, 100, 0), HELD, "its bytes")


@a("memfd that must not be executed (MFD_NOEXEC_SEAL)")
def memfd_noexec(room: Path) -> Iterator[None]:
    fd = os.memfd_create("held", 0x8)
    before = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd).st_mode
    yield
    expect((fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd).st_mode), before, "seals and mode")


@a("huge pages (MAP_HUGETLB)")
def huge(room: Path) -> Iterator[None]:
    address = mapped(2 << 20, RW, PRIVATE | ANONYMOUS | 0x40000)
    yield
    write(address, HELD)
    expect("ht" in flags_of(address), True, "its flag")


@a("secret memory (memfd_secret)")
def secret(room: Path) -> Iterator[None]:
    fd = syscall("memfd_secret", 447, 447, 0)
    os.truncate(fd, PAGE)
    address = mapped(PAGE, RW, SHARED, fd)
    write(address, HELD)
    yield
    expect(read(address, 18), HELD, "its bytes")


@a("locked (mlock)")
def locked(room: Path) -> Iterator[None]:
    address = mapped(4 * PAGE)
    call(libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(4 * PAGE)), "mlock")
    yield
    expect("lo" in flags_of(address), True, "its flag")


ADVICE = {
    "MADV_DONTFORK": (10, "dc"),
    "MADV_WIPEONFORK": (18, "wf"),
    "MADV_DONTDUMP": (16, "dd"),
    "MADV_SEQUENTIAL": (2, "sr"),
    "MADV_RANDOM": (1, "rr"),
    "MADV_HUGEPAGE": (14, "hg"),
    "MADV_NOHUGEPAGE": (15, "nh"),
    "MADV_MERGEABLE": (12, "mg"),
}


def advised(advice: int, flag: str):
    """Return a builder."""

    def build(room: Path) -> Iterator[None]:
        address = mapped(8 * PAGE)
        write(address, HELD)
        advise(address, 8 * PAGE, advice)
        expect(flag in flags_of(address), True, "its flag")
        yield
        expect(flag in flags_of(address), True, "its flag")
        expect(read(address, 18), HELD, "its bytes")

    return build


for name, (number, letters) in ADVICE.items():
    a(name)(advised(number, letters))


@a("guard pages (MADV_GUARD_INSTALL)")
def guards(room: Path) -> Iterator[None]:
    address = mapped(4 * PAGE)
    write(address, HELD)
    advise(address + PAGE, PAGE, 102)
    yield
    expect(read(address, 18), HELD, "its bytes")
    expect(dies_of(lambda: read(address + PAGE, 1)), signal.SIGSEGV, "the end of a reader")


def dies_of(work) -> int:
    """Run `work` in a child process; return the signal that ended it, or 0."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1] & 0x7F


@a("unreadable and read-only pages")
def protected(room: Path) -> Iterator[None]:
    address = mapped(2 * PAGE)
    write(address, HELD * 2)
    write(address + PAGE, HELD)
    for place, protection in ((address, 0), (address + PAGE, mmap.PROT_READ)):
        call(libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(PAGE), protection), "mprotect")
    yield
    expect(dies_of(lambda: read(address, 1)), signal.SIGSEGV, "the end of a reader")
    expect(dies_of(lambda: write(address + PAGE, b"!")), signal.SIGSEGV, "the end of a writer")
    libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), mmap.PROT_READ)
    expect((read(address, 36), read(address + PAGE, 18)), (HELD * 2, HELD), "the bytes")


@a("written code (JIT)")
def jit(room: Path) -> Iterator[None]:
    code = {"x86_64": b"\xb8\x2a\0\0\0\xc3", "aarch64": b"\x40\x05\x80\x52\xc0\x03\x5f\xd6"}
    address = mapped(PAGE, RW | mmap.PROT_EXEC)
    write(address, code[os.uname().machine])
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    yield
    expect(function(), 42, "what the code returns")


@a("stack that grows (MAP_GROWSDOWN)")
def grows(room: Path) -> Iterator[None]:
    address = mapped(8 * PAGE, RW, PRIVATE | ANONYMOUS | 0x100)
    write(address, HELD)
    yield
    expect("gd" in flags_of(address), True, "its flag")
    expect(read(address, 18), HELD, "its bytes")


@a("protection key")
def protection_key(room: Path) -> Iterator[None]:
    key = call(libc.pkey_alloc(0, 0), "pkey_alloc")
    address = mapped(PAGE)
    size = ctypes.c_size_t(PAGE)
    call(libc.pkey_mprotect(ctypes.c_void_p(address), size, RW, key), "pkey_mprotect")
    call(libc.pkey_set(key, 1), "pkey_set")
    yield
    expect(libc.pkey_get(key), 1, "its right")
    expect(dies_of(lambda: read(address, 1)), signal.SIGSEGV, "the end of a reader")


@a("memory that may be dropped (MAP_DROPPABLE)")
def droppable(room: Path) -> Iterator[None]:
    address = mapped(PAGE, RW, 0x8 | ANONYMOUS)
    write(address, HELD)
    yield
    expect(read(address, 18) in (HELD, b"\0" * 18), True, "its bytes, or nothing")
    expect("dp" in flags_of(address), True, "its flag")


@a("sealed mapping (mseal)")
def sealed(room: Path) -> Iterator[None]:
    address = mapped(PAGE)
    write(address, HELD)
    syscall("mseal", 462, 462, ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0)
    yield
    expect(read(address, 18), HELD, "its bytes")
    expect(libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(PAGE)), -1, "unmapping it")


@a("name of anonymous memory")
def named(room: Path) -> Iterator[None]:
    address = mapped(PAGE)
    write(address, HELD)
    call(libc.prctl(0x53564D41, 0, ctypes.c_ulong(address), PAGE, b"hazard"), "prctl")
    yield
    expect("[anon:hazard]" in Path("/proc/self/maps").read_text(), True, "its name")


@a("NUMA policy")
def numa(room: Path) -> Iterator[None]:
    mask = struct.pack("Q", 1)
    syscall("set_mempolicy", 238, 237, 2, mask, ctypes.c_ulong(64))
    yield
    mode = ctypes.c_int()
    syscall("get_mempolicy", 239, 236, ctypes.byref(mode), None, 0, None, 0)
    expect(mode.value, 2, "the policy")


@a("heap (brk)")
def heap(room: Path) -> Iterator[None]:
    libc.sbrk.restype = ctypes.c_void_p
    before = libc.sbrk(ctypes.c_long(16 * PAGE))
    write(before, HELD)
    yield
    expect(read(before, 18), HELD, "its bytes")
    expect(libc.sbrk(ctypes.c_long(0)), before + 16 * PAGE, "its end")


@a("mapping that was moved (mremap)")
def moved(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(b"." * PAGE + HELD + b"." * PAGE)
    whole = mapped(2 * PAGE, mmap.PROT_READ, PRIVATE, os.open(room / "file", os.O_RDONLY))
    place = mapped(4 * PAGE)
    arguments = ctypes.c_void_p(whole + PAGE), PAGE, PAGE, 3, ctypes.c_void_p(place + PAGE)
    moved_to = libc.mremap(*arguments)
    expect(moved_to, place + PAGE, "where it is")
    yield
    expect(read(place + PAGE, 18), HELD, "its bytes")


@a("threads and processes that share a process's memory (fork chain of copies)")
def copies(room: Path) -> Iterator[None]:
    address = mapped(256 * PAGE)
    write(address, HELD)
    helper = Helper(lambda: read(address, 18), prepare=lambda: write(address + PAGE, HELD))
    yield
    expect(helper.result(), repr(HELD), "the bytes of the other process")
    expect(read(address + PAGE, 18), b"\0" * 18, "what the other has written in its copy")
