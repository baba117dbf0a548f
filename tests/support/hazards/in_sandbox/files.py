"""Open files and directories, and what the kernel knows of a file."""

import ctypes
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import HELD, Helper, Lost, Section, call, expect, libc

a = Section("Files and directories")
MANY = 3000


@a("open file: position")
def position(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(b"0123456789")
    fd = os.open(room / "file", os.O_RDWR)
    os.lseek(fd, 4, os.SEEK_SET)
    yield
    expect(os.read(fd, 2), b"45", "the bytes at its position")
    os.pwrite(fd, b"new", 0)
    expect((room / "file").read_bytes(), b"new3456789", "its bytes by name")


@a("open file: append, synchronous and other flags")
def flags(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    wanted = os.O_WRONLY | os.O_APPEND | os.O_DSYNC | os.O_NOATIME | os.O_NONBLOCK
    fd = os.open(room / "file", wanted)
    before = fcntl.fcntl(fd, fcntl.F_GETFL)
    yield
    expect(fcntl.fcntl(fd, fcntl.F_GETFL), before, "its flags")
    os.write(fd, b"!")
    expect((room / "file").read_bytes(), HELD + b"!", "its bytes")


@a("open file shared by two processes: one position")
def shared_position(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(b"0123456789")
    fd = os.open(room / "file", os.O_RDONLY)
    helper = Helper(lambda: os.read(fd, 3))
    yield
    expect(helper.result(), repr(b"012"), "what the other process reads")
    expect(os.read(fd, 3), b"345", "the bytes at the shared position")


@a("open file: high number, inherited by programs")
def high_number(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    fd = os.open(room / "file", os.O_RDONLY)
    os.dup2(fd, 900, inheritable=True)
    yield
    expect((os.get_inheritable(fd), os.get_inheritable(900)), (False, True), "inheritable")
    expect(os.read(900, 100), HELD, "its bytes")
    expect(os.read(fd, 100), b"", "its bytes at the shared position")


@a("open file, deleted")
def deleted(room: Path) -> Iterator[None]:
    fd = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, HELD)
    os.unlink(room / "file")
    yield
    expect((os.pread(fd, 100, 0), os.fstat(fd).st_nlink), (HELD, 0), "its bytes and links")
    expect((room / "file").exists(), False, "its name")


@a("open file, deleted, with another name")
def deleted_link(room: Path) -> Iterator[None]:
    fd = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    os.link(room / "file", room / "other")
    os.unlink(room / "file")
    yield
    os.write(fd, HELD)
    expect((room / "other").read_bytes(), HELD, "its bytes by the other name")
    expect(sorted(os.listdir(room)), ["other"], "the names in its directory")


@a("open file, its name taken by another file")
def replaced(room: Path) -> Iterator[None]:
    fd = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, HELD)
    (room / "new").write_bytes(b"new")
    os.rename(room / "new", room / "file")
    yield
    expect(os.pread(fd, 100, 0), HELD, "the bytes of the open file")
    expect((room / "file").read_bytes(), b"new", "the bytes by name")


@a("open file, renamed")
def renamed(room: Path) -> Iterator[None]:
    fd = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    os.rename(room / "file", room / "other")
    yield
    os.write(fd, HELD)
    expect((room / "other").read_bytes(), HELD, "its bytes by name")


@a("open file without a name (O_TMPFILE)")
def nameless(room: Path) -> Iterator[None]:
    fd = os.open(room, os.O_RDWR | os.O_TMPFILE)
    os.write(fd, HELD)
    yield
    expect(os.pread(fd, 100, 0), HELD, "its bytes")
    expect(os.listdir(room), [], "the names in its directory")


@a("open file without a name (O_TMPFILE) that is given one after the fork")
def nameless_named(room: Path) -> Iterator[None]:
    fd = os.open(room, os.O_RDWR | os.O_TMPFILE)
    os.write(fd, HELD)
    yield
    source = f"/proc/self/fd/{fd}".encode()
    call(libc.linkat(-100, source, -100, bytes(room / "named"), 0x400), "linkat")
    expect((room / "named").read_bytes(), HELD, "its bytes by name")


@a("open file without rights to its bytes (O_PATH)")
def path_only(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    fd = os.open(room / "file", os.O_PATH)
    yield
    expect(Path(f"/proc/self/fd/{fd}").read_bytes(), HELD, "its bytes")
    expect(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH), True, "its flag")


@a("open link (O_PATH)")
def path_of_link(room: Path) -> Iterator[None]:
    os.symlink("nowhere", room / "link")
    fd = os.open(room / "link", os.O_PATH | os.O_NOFOLLOW)
    yield
    expect(os.readlink("", dir_fd=fd), "nowhere", "where it leads")


@a("open file of the image, not changed")
def of_the_image(room: Path) -> Iterator[None]:
    fd = os.open("/etc/hostname", os.O_RDONLY)
    before = os.fstat(fd)
    yield
    after = os.fstat(fd)
    expect((after.st_dev, after.st_ino), (before.st_dev, before.st_ino), "its identity")
    expect(os.path.sameopenfile(fd, os.open("/etc/hostname", os.O_RDONLY)), True, "it is the same")


@a("open device (/dev/null, /dev/urandom)")
def device(room: Path) -> Iterator[None]:
    null, random = os.open("/dev/null", os.O_RDWR), os.open("/dev/urandom", os.O_RDONLY)
    yield
    expect((os.read(null, 10), len(os.read(random, 10))), (b"", 10), "what is read")


@a("open file of /proc, half read")
def of_proc(room: Path) -> Iterator[None]:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    before = os.read(fd, 6)
    yield
    expect(before + os.read(fd, 8), b"Name:\tpython3\n"[: len(before) + 8], "its bytes")


@a("open file of /proc of a child process")
def of_childs_proc(room: Path) -> Iterator[None]:
    helper = Helper(lambda: None)
    fd = os.open(f"/proc/{helper.pid}/stat", os.O_RDONLY)
    yield
    expect(os.read(fd, 100).split()[0].decode(), str(helper.pid), "the process in it")


@a("open directory")
def directory(room: Path) -> Iterator[None]:
    (room / "inner").mkdir()
    (room / "inner" / "file").write_bytes(HELD)
    fd = os.open(room / "inner", os.O_RDONLY | os.O_DIRECTORY)
    yield
    expect(os.listdir(fd), ["file"], "its names")
    with open(os.open("file", os.O_RDONLY, dir_fd=fd), "rb") as file:
        expect(file.read(), HELD, "a file in it")


@a("open directory, deleted")
def deleted_directory(room: Path) -> Iterator[None]:
    (room / "inner").mkdir()
    fd = os.open(room / "inner", os.O_RDONLY | os.O_DIRECTORY)
    (room / "inner").rmdir()
    yield
    expect((os.listdir(fd), (room / "inner").exists()), ([], False), "its names, its own name")


def half_read(directory: Path) -> Iterator[None]:
    """Read half of a directory, and the rest after the fork."""
    entries = os.scandir(directory)
    names = [next(entries).name for _ in range(MANY // 2)]
    yield
    names += [entry.name for entry in entries]
    missing, twice = MANY - len(set(names)), len(names) - len(set(names))
    expect((missing, twice), (0, 0), "names that are missing, and that came twice")


@a("directory that was read half-way")
def half_read_directory(room: Path) -> Iterator[None]:
    (room / "many").mkdir()
    for number in range(MANY):
        (room / "many" / f"{number * 7919 % MANY:x}").touch()
    yield from half_read(room / "many")


@a("directory of the image that has new files and was read half-way")
def half_read_merged(room: Path) -> Iterator[None]:
    place = Path("/etc")
    for number in range(MANY):
        (place / f"hazard-{number * 7919 % MANY:x}").touch()
    entries = os.scandir(place)
    names = [next(entries).name for _ in range(MANY // 2)]
    yield
    names += [entry.name for entry in entries]
    missing = set(os.listdir(place)) - set(names)
    expect(
        (len(missing), len(names) - len(set(names))), (0, 0), "names that are missing, and twice"
    )


@a("working directory, deleted")
def deleted_cwd(room: Path) -> Iterator[None]:
    (room / "inner").mkdir()
    os.chdir(room / "inner")
    (room / "inner").rmdir()
    yield
    try:
        where = os.getcwd()
    except FileNotFoundError:
        where = "nowhere"
    expect(where, "nowhere", "the working directory")
    expect((room / "inner").exists(), False, "its name")


@a("working directory")
def cwd(room: Path) -> Iterator[None]:
    (room / "inner").mkdir()
    os.chdir(room / "inner")
    yield
    expect(Path.cwd(), room / "inner", "the working directory")


@a("root directory of a process (chroot)")
def changed_root(room: Path) -> Iterator[None]:
    (room / "inner").mkdir()
    (room / "inner" / "file").write_bytes(HELD)
    os.chroot(room / "inner")
    os.chdir("/")
    yield
    expect((Path("/file").read_bytes(), os.listdir("/")), (HELD, ["file"]), "what its root has")


@a("file creation mask")
def mask(room: Path) -> Iterator[None]:
    os.umask(0o137)
    yield
    expect(os.umask(0o137), 0o137, "the mask")


@a("identity of a file: device and inode number")
def identity(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    os.link(room / "file", room / "other")
    fd = os.open(room / "file", os.O_RDONLY)
    before = [number(os.stat(room / "file")), number(os.fstat(fd))]
    yield
    expect([number(os.stat(room / "file")), number(os.fstat(fd))], before, "device and inode")
    expect(os.path.samefile(room / "file", room / "other"), True, "both names are one file")


def number(info: os.stat_result) -> tuple[int, int]:
    """Return what a file is known by."""
    return info.st_dev, info.st_ino


@a("identity of a file that nobody has open")
def closed_identity(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    before = number(os.stat(room / "file"))
    yield
    expect(number(os.stat(room / "file")), before, "device and inode number")


@a("identity of a directory")
def directory_identity(room: Path) -> Iterator[None]:
    (room / "inner").mkdir()
    before = number(os.stat(room / "inner"))
    yield
    expect(number(os.stat(room / "inner")), before, "device and inode number")


@a("identity of a link, a named pipe and a socket")
def special_identity(room: Path) -> Iterator[None]:
    os.symlink("nowhere", room / "link")
    os.mkfifo(room / "fifo")
    names = [room / "link", room / "fifo"]
    before = [number(os.lstat(name)) for name in names]
    yield
    expect([number(os.lstat(name)) for name in names], before, "device and inode number")


@a("identity of a deleted file that is open")
def deleted_identity(room: Path) -> Iterator[None]:
    fd = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    os.unlink(room / "file")
    before = number(os.fstat(fd))
    yield
    expect(number(os.fstat(fd)), before, "device and inode number")


@a("inode numbers in a listing of a directory")
def listed_number(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    before = [entry.inode() for entry in os.scandir(room)]
    yield
    expect([entry.inode() for entry in os.scandir(room)], before, "inode numbers")


@a("inode numbers of pipes and sockets")
def pipe_number(room: Path) -> Iterator[None]:
    fd, _ = os.pipe()
    before = os.fstat(fd).st_ino
    yield
    expect(os.fstat(fd).st_ino, before, "inode number")


@a("owner, mode, links, attributes and size of a file")
def properties(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    os.truncate(room / "file", 1 << 30)
    os.chmod(room / "file", 0o4751)
    os.chown(room / "file", 7, 8)
    os.chmod(room / "file", 0o4751)
    os.setxattr(room / "file", "user.note", HELD)
    before = described(room / "file")
    yield
    expect(described(room / "file"), before, "what stat says")


def described(path: Path) -> tuple[object, ...]:
    """Return what is known of a file besides its times."""
    info = os.stat(path)
    note = os.getxattr(path, "user.note")
    kept = info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_size, info.st_blocks
    return *kept, note


@a("time of the last change of a file's bytes, and of its last reading")
def times(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    os.utime(room / "file", ns=(123456789012345678, 123456789012345679))
    yield
    info = os.stat(room / "file")
    found = info.st_atime_ns, info.st_mtime_ns
    expect(found, (123456789012345678, 123456789012345679), "its times")


@a("time of the last change of a file's attributes (ctime)")
def change_time(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    before = os.stat(room / "file").st_ctime_ns
    yield
    expect(os.stat(room / "file").st_ctime_ns, before, "its time")


@a("holes of a sparse file")
def sparse(room: Path) -> Iterator[None]:
    fd = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, HELD, 1 << 30)
    yield
    expect(os.stat(room / "file").st_blocks < 100, True, "it takes little room")
    expect(os.pread(fd, 100, 1 << 30), HELD, "its bytes")


@a("file in /dev/shm")
def shared_memory_file(room: Path) -> Iterator[None]:
    path = Path("/dev/shm/hazard")
    path.write_bytes(HELD)
    yield
    expect((path.read_bytes(), stat.S_ISREG(os.stat(path).st_mode)), (HELD, True), "its bytes")


@a("handle of a file (name_to_handle_at)")
def handle(room: Path) -> Iterator[None]:
    room_for = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136)
    mount = ctypes.c_int()
    found = libc.name_to_handle_at(-100, b"/etc/hostname", room_for, ctypes.byref(mount), 0)
    call(found, "name_to_handle_at")
    yield
    raise Lost("a box must not have them")
