"""A box for tests: bf-init as PID 1 of a fresh pid namespace, and nothing else."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest
from benchflow_sandbox_native import InitClient, InitError, init_path

SOURCES = sorted((Path(__file__).parent.parent / "csrc").glob("*.c"))
NAMESPACES = ["--fork", "--pid", "--mount-proc", "--kill-child"]


@dataclasses.dataclass
class Box:
    socket_path: Path
    outer: subprocess.Popen[bytes]
    init_pid: int
    null: int

    @property
    def client(self) -> InitClient:
        return InitClient(self.socket_path)

    def open_fds(self):
        """Return what init has open, as the kernel names it."""
        found = []
        for entry in Path(f"/proc/{self.init_pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(entry.readlink()))
        return sorted(found)

    def children(self):
        """Return the host pids of init's children, zombies included."""
        text = Path(f"/proc/{self.init_pid}/task/{self.init_pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    async def all_reaped(self):
        """Return once init has no child: each ping is a turn of its loop, which reaps."""
        while self.children():
            await self.client.ping()

    async def run(self, *argv, **options):
        """Return (status, stdout) of a program that ends by itself."""
        pid, stdout = await self.start(*argv, **options)
        with stdout:
            output = await asyncio.to_thread(stdout.read)
            return await self.client.wait(pid), output

    async def start(self, *argv, **options):
        """Return (pid, stdout) of a program that lives on; end of file means all of it ended."""
        read, write = os.pipe()
        with contextlib.ExitStack() as stack:
            stdout = stack.enter_context(os.fdopen(read, "rb", buffering=0))
            try:
                fds = (self.null, write, self.null)
                pid = await self.client.spawn(argv, **(with_defaults(options) | {"fds": fds}))
            finally:
                os.close(write)
            stack.pop_all()
            return pid, stdout

    def connect(self):
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.settimeout(20)
        raw.connect(str(self.socket_path))
        return raw


def with_defaults(options):
    return {"env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "uid": 0, "gid": 0} | options


def namespace_command():
    return ["unshare", *NAMESPACES] if os.geteuid() == 0 else ["unshare", "-Ur", *NAMESPACES]


def await_init(socket_path, outer):
    """Return the host pid of a listening init: the kernel tells who called listen()."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and outer.poll() is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(socket_path))
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.005)
                continue
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return struct.unpack("iII", credentials)[0]
    return pytest.fail(
        f"{namespace_command()} could not make a pid namespace with bf-init in it "
        f"(exit status {outer.poll()!r}): these tests need root or user namespaces"
    )


@contextlib.contextmanager
def running_box(binary, directory, environment=None):
    socket_path = directory / "init.sock"
    command = [*namespace_command(), str(binary), str(socket_path)]
    # Python ignores SIGPIPE; init has to undo that for its children.
    null = os.open(os.devnull, os.O_RDWR)
    with subprocess.Popen(command, restore_signals=False, env=environment) as outer:
        try:
            yield Box(socket_path, outer, await_init(socket_path, outer), null)
        finally:
            outer.kill()
            os.close(null)


@pytest.fixture
def box(tmp_path):
    with running_box(init_path(), tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def compile_program():
    """Return a function that compiles init with this machine's compiler and given flags."""
    compiler = next(filter(shutil.which, ["cc", "gcc", "clang"]), None)
    if compiler is None:
        pytest.fail("no C compiler: install gcc and libc6-dev")

    def compile_to(output, *flags):
        command = [compiler, "-std=c11", "-D_GNU_SOURCE", *flags, "-o", output, *SOURCES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return output

    return compile_to


@pytest.fixture(scope="session")
def sanitized_binary(tmp_path_factory, compile_program):
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    return compile_program(tmp_path_factory.mktemp("sanitized") / "bf-init", *flags)


@pytest.fixture
def sanitized_box(sanitized_binary, tmp_path):
    """A box whose init dies at the first bad memory access, leaving a report."""
    report = tmp_path / "report"
    options = f"log_path={report}:detect_leaks=0"
    environment = {**os.environ, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": options}
    with running_box(sanitized_binary, tmp_path, environment) as running:
        yield running
    assert "".join(path.read_text() for path in tmp_path.glob("report*")) == ""


@pytest.fixture
def expect_failure():
    """Assert the errno and the stage of a refused request."""

    @contextlib.contextmanager
    def expecting(number, stage):
        with pytest.raises(InitError) as caught:
            yield
        assert (caught.value.errno, caught.value.stage) == (number, stage)

    return expecting


@pytest.fixture
def user():
    """Return the ids of an unprivileged user of the box."""
    if os.geteuid() != 0:
        pytest.skip("only root can map more than one uid into the box")
    return {"uid": 1234, "gid": 1235}
