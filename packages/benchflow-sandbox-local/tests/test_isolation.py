import os
import socket
import uuid
from pathlib import Path

import pytest
from benchflow_contracts.bundle import Bundle
from benchflow_contracts.sandbox import SandboxSpec

ATTACKS = r"""
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def call(name, *args):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
call("mount", 165 if x86 else 40, b"none", b"/tmp", b"tmpfs", 0, None)
call("unshare_user", 272 if x86 else 97, 0x10000000)
call("unshare_net", 272 if x86 else 97, 0x40000000)
call("clone_user", 56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)
call("clone3", 435, 0, 0)
call("io_uring", 425, 8, 0)
call("ptrace", 101 if x86 else 117, 0, 0, 0, 0)
call("bpf", 321 if x86 else 280, 0, 0, 0)
call("keyctl", 250 if x86 else 219, 0, -3, 0)
call("setns", 308 if x86 else 268, 0, 0)
call("pivot_root", 155 if x86 else 41, b".", b".")
call("fsopen", 430, b"tmpfs", 0)
call("open_by_handle_at", 304 if x86 else 265, 3, 0, 0)
call("mknod", 133, b"/tmp/disk", 0o60600, os.makedev(254, 0)) if x86 else print("mknod EPERM")
for family in (40, 38, 17):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print("family", family, "done")
    except OSError as error:
        print("family", family, errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("user", ["agent", "root"])
def test_calls_that_could_leave_the_box_are_refused(with_box, user):
    async def check(sandbox):
        await sandbox.exec("cat > /tmp/attack.py", stdin=ATTACKS.encode())
        result = await sandbox.exec(["/usr/bin/python3", "-I", "/tmp/attack.py"], user=user)
        lines = dict(line.rsplit(" ", 1) for line in result.stdout.splitlines())
        assert len(lines) == 17, result
        assert lines.pop("io_uring") == "ENOSYS"
        assert lines.pop("clone3") == "ENOSYS"
        assert {lines.pop(f"family {n}") for n in (40, 38, 17)} == {"EAFNOSUPPORT"}
        assert set(lines.values()) == {"EPERM"}, lines

    with_box(check)


def test_the_default_user_has_no_capability_and_can_gain_none(with_box):
    async def check(sandbox):
        status = (await sandbox.exec("cat /proc/self/status")).stdout
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split()[0] != "0"
        assert {
            fields[f"Cap{kind}"].strip("0") for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")
        } == {""}
        assert fields["NoNewPrivs"] == "1"
        assert fields["Seccomp"] == "2"

    with_box(check)


def test_root_of_a_box_has_only_the_capabilities_of_a_package_manager(with_box):
    async def check(sandbox):
        status = (
            await sandbox.exec("grep -E 'Cap(Eff|Bnd)' /proc/self/status", user="root")
        ).stdout
        allowed = sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18))
        for line in status.splitlines():
            assert int(line.split()[1], 16) & ~allowed == 0, line

    with_box(check)


def test_only_the_boxs_own_processes_are_visible(with_box):
    async def check(sandbox):
        listed = (await sandbox.exec("ls /proc | grep -E '^[0-9]+$'", user="root")).stdout.split()
        assert "1" in listed
        assert str(os.getpid()) not in listed or os.getpid() < 10
        assert len(listed) < 8
        killed = await sandbox.exec(["kill", "-9", str(os.getppid() + 100000)], user="root")
        assert not killed.ok

    with_box(check)


def test_the_network_is_a_loopback_and_nothing_else(with_box):
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    script = f"""
import socket
print(sorted(name for _, name in socket.if_nameindex()))
for address in (("127.0.0.1", {port}), ("192.0.2.1", 80), ("8.8.8.8", 53)):
    try:
        socket.create_connection(address, timeout=2)
        print("reached", address)
    except OSError as error:
        print("refused")
"""

    async def check(sandbox):
        result = await sandbox.exec(["/usr/bin/python3", "-I", "-c", script])
        assert result.stdout.splitlines() == ["['lo']", "refused", "refused", "refused"], result

    with server:
        with_box(check)


def test_no_file_of_the_host_outside_of_its_programs_can_be_seen(with_box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    planted = Path("/etc") / f"benchflow-test-{uuid.uuid4().hex}"
    planted.write_text("canary")
    planted.chmod(0o600)
    try:

        async def check(sandbox):
            for path in (secret, planted, Path(__file__), Path("/var/run/docker.sock")):
                assert not (await sandbox.exec(["test", "-e", str(path)], user="root")).ok, path
            top = set((await sandbox.exec(["ls", "-A", "/"], user="root")).stdout.split())
            allowed = {
                ".bf",
                ".bf-identity.so",
                "bin",
                "boot",
                "dev",
                "etc",
                "home",
                "lib",
                "lib32",
                "lib64",
                "libx32",
                "media",
                "mnt",
                "nix",
                "gnu",
                "opt",
                "proc",
                "root",
                "run",
                "sbin",
                "srv",
                "sys",
                "tmp",
                "usr",
                "var",
                "workspace",
            }
            assert top <= allowed
            for name in ("root", "srv", "mnt", "opt", "run", "tmp", "media", "boot", "sys"):
                assert (await sandbox.exec(["ls", "-A", f"/{name}"], user="root")).stdout == ""
            assert (await sandbox.exec(["ls", "-A", "/home"])).stdout == "agent\n"
            assert not (await sandbox.exec(["test", "-e", "/etc/shadow"], user="root")).ok

        with_box(check)
    finally:
        planted.unlink()


def test_variables_of_the_runner_are_not_visible_inside(with_box, monkeypatch):
    monkeypatch.setenv("BENCHFLOW_TEST_KEY", "canary")

    async def check(sandbox):
        everything = await sandbox.exec("cat /proc/*/environ; env", user="root")
        assert "canary" not in everything.stdout

    with_box(check)


def test_the_kernels_switches_are_read_only_or_hidden(with_box):
    async def check(sandbox):
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches"):
            assert not (await sandbox.exec(f"echo x > {path}", user="root")).ok, path
        for path in ("/proc/kcore", "/proc/keys", "/proc/kallsyms", "/proc/kmsg"):
            found = await sandbox.exec(f"head -c 10 {path} 2>/dev/null", user="root")
            assert found.stdout == "", path
        assert (await sandbox.exec("ls -A /sys", user="root")).stdout == ""

    with_box(check)


def test_the_usual_devices_work_and_no_other_is_there(with_box):
    async def check(sandbox):
        names = set((await sandbox.exec(["ls", "/dev"])).stdout.split())
        assert names == {
            "fd",
            "full",
            "null",
            "ptmx",
            "pts",
            "random",
            "shm",
            "stderr",
            "stdin",
            "stdout",
            "tty",
            "urandom",
            "zero",
        }
        script = "echo x > /dev/null && head -c 4 /dev/urandom | wc -c && touch /dev/shm/a"
        result = await sandbox.exec(f"{script} && python3 -c 'import pty; pty.openpty()'")
        assert result.stdout == "4\n", result

    with_box(check)


def test_a_set_user_id_program_gives_nothing(with_box):
    async def check(sandbox):
        await sandbox.exec(
            "cp /usr/bin/id /usr/local/bin/sid && chmod 4755 /usr/local/bin/sid", user="root"
        )
        assert (await sandbox.exec(["/usr/local/bin/sid", "-u"])).stdout.strip() != "0"

    with_box(check)


def test_the_init_cannot_be_reached_or_killed_by_the_default_user(with_box):
    async def check(sandbox):
        assert not (await sandbox.exec("ls /.bf")).ok
        await sandbox.exec("kill -9 1", user="root")
        assert (await sandbox.exec("true")).ok

    with_box(check)


def test_a_mount_is_shown_read_only_at_its_target(with_provider, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("shown")

    async def check(provider):
        mount = Bundle(source=str(tmp_path / "data"), target="/opt/data/deep", key="k")
        sandbox = await provider.create(SandboxSpec(bundles=(mount,)))
        assert (await sandbox.exec(["cat", "/opt/data/deep/file"])).stdout == "shown"
        for command in ("echo x > /opt/data/deep/file", "touch /opt/data/deep/new"):
            assert not (await sandbox.exec(command, user="root")).ok
        assert (tmp_path / "data" / "file").read_text() == "shown"

    with_provider(check)


def test_two_boxes_do_not_see_each_other(with_provider):
    async def check(provider):
        one = await provider.create(SandboxSpec())
        two = await provider.create(SandboxSpec())
        await one.exec("echo mine > /tmp/mine; echo mine > /dev/shm/mine")
        assert not (await two.exec("cat /tmp/mine /dev/shm/mine")).ok
        assert one.id != two.id

    with_provider(check)
