import pytest
from benchflow_contracts.errors import SandboxError, SandboxTimeoutError, TransferError

TRACER = """
import ctypes, os, time
libc = ctypes.CDLL(None)
print("looks", flush=True)
while True:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{name}/cmdline", "rb").read().split(bytes(1))
        except OSError:
            continue
        if words[:2] == [b"sleep", b"86394"] and libc.ptrace(0x4206, int(name), None, None) == 0:
            print("traced", flush=True)
            time.sleep(1000)
    time.sleep(0.01)
"""


async def output(box, cmd, user="root"):
    found = await box.exec(cmd, user=user, timeout=30)
    assert found.ok, found
    return found.stdout


def test_nobody_inside_gets_at_the_pipes_or_the_host(with_box):
    async def check(box):
        assert not (await box.exec("ls /.bf/io")).ok
        for attempt in (
            "touch /.bf/io/mine",
            "rm -f /.bf/io/0.0",
            "mount -o remount,rw /.bf/io",
            "mount -t tmpfs none /mnt",
            "mknod /dev/disk b 8 0",
            "echo x > /proc/sys/kernel/core_pattern",
        ):
            assert not (await box.exec(attempt, user="root")).ok, attempt
        status = await output(box, "cat /proc/self/status", user="agent")
        assert "NoNewPrivs:\t1" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "Seccomp:\t2" in status
        # `none` means that nothing but the loopback is there.
        assert (await output(box, "ls /sys/class/net")).split() == ["lo"]

    with_box(check)


def test_an_upload_as_root_is_not_led_astray_by_a_link_of_the_agent(with_box, tmp_path):
    (tmp_path / "given").write_text("given")

    async def check(box):
        await output(box, "ln -s /etc trap; ln -s /etc/passwd name", user="agent")
        for remote in ("/workspace/trap/given", "/workspace/trap/new/given", "/workspace/name"):
            with pytest.raises(TransferError):
                await box.upload(tmp_path / "given", remote)
        assert "given" not in await output(box, "ls /etc; cat /etc/passwd")
        await output(box, "mkdir -p /opt/real /srv; ln -s real /opt/link; ln -s /opt/link /srv/far")
        await box.upload(tmp_path / "given", "/srv/far/new/given")
        assert await output(box, "cat /opt/real/new/given") == "given"

    with_box(check)


def test_a_download_is_not_led_astray_and_stays_small(with_box, tmp_path):
    async def check(box):
        await output(box, "mkdir /root/own; echo secret > /root/own/file")
        await output(
            box,
            "ln -s /root/own trap; truncate -s 8G huge; mkdir twice; echo 1 > twice/a;"
            "ln twice/a twice/b; d=deep; for i in $(seq 70); do d=$d/d; done; mkdir -p $d",
            user="agent",
        )
        for path in ("trap/file", "huge", "deep"):
            with pytest.raises(TransferError):
                await box.download(f"/workspace/{path}", tmp_path / "out", max_bytes=1 << 20)
            assert list(tmp_path.glob("*out*")) == []
        # Two names of one file come out as two files.
        await box.download("/workspace/twice", tmp_path / "twice")
        assert [(tmp_path / "twice" / name).read_text() for name in "ab"] == ["1\n", "1\n"]

    with_box(check)


def test_excess_output_is_counted_and_not_stored(with_box):
    async def check(box):
        flood = await box.exec("head -c 200000000 /dev/zero; head -c 1000000 /dev/zero >&2")
        assert (len(flood.stdout), flood.stdout_dropped) == (1000, 200_000_000 - 1000)
        assert (len(flood.stderr), flood.stderr_dropped) == (1000, 1_000_000 - 1000)

    with_box(check, limits={"output_bytes": 1000})


def test_files_of_users_that_are_no_files_name_nobody(with_box):
    async def check(box):
        assert await output(box, "id -un", user="agent") == "agent\n"
        await output(box, "useradd -u 4321 -M late")
        assert await output(box, "id -u", user="late") == "4321\n"
        for made in (["mkfifo"], ["ln", "-s", "/dev/zero"], ["mkdir"]):
            # Not by a shell, which would itself wait for the pipe.
            await output(box, ["rm", "-rf", "/etc/passwd"], user="0")
            await output(box, [*made, "/etc/passwd"], user="0")
            with pytest.raises(SandboxError, match="no user 'agent'"):
                await box.exec("true", user="agent")

    with_box(check)


def test_a_sandbox_whose_first_process_is_killed_from_outside_says_so(with_box):
    async def check(box):
        process = await box.spawn(["sleep", "1000"])
        await box.container.engine.do("kill", box.container.running.container)
        assert await process.wait() == 137
        with pytest.raises(SandboxError):
            await box.exec("true")

    with_box(check)


PEEK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, 1, 0, 0))
for path in ("mem", "environ", *(f"fd/{number}" for number in range(8))):
    try:
        os.open(f"/proc/1/{path}", os.O_RDWR if path == "mem" else os.O_RDONLY | os.O_NONBLOCK)
        print(path)
    except OSError:
        pass
"""


def test_root_inside_neither_ends_nor_reads_the_first_process(with_box):
    async def check(box):
        for attempt in ("kill -9 1", "kill -STOP 1", "kill -TERM 1"):
            await box.exec(attempt, timeout=30)
            assert await output(box, "echo on") == "on\n"
        assert await output(box, ["python3", "-I", "-c", PEEK]) == "-1\n"

    with_box(check, user="root")


def test_what_root_writes_into_the_pipes_ends_its_own_box_at_most(with_box):
    async def check(box):
        # Connections that nobody made, to ports that are and are not, and answers to nobody.
        forged = "struct.pack('=QIIII', n % 3, 0, 0, n, n % 5)"
        flood = f"b''.join({forged} for n in range(20000))"
        code = f"import struct; open('/.bf/io/0.1', 'wb').write({flood})"
        assert (await box.exec(["python3", "-I", "-c", code], timeout=60)).ok
        assert await output(box, "echo on") == "on\n"
        code = "open('/.bf/io/0.0', 'wb').write(b'\\xff' * 65536)"
        with pytest.raises(SandboxError):
            await box.exec(
                ["python3", "-I", "-c", f"{code}; import time; time.sleep(50)"], timeout=60
            )

    with_box(check, user="root", network="allowlist")


def test_a_command_that_is_traced_inside_ends_in_time_all_the_same(with_box):
    async def check(box):
        tracer = await box.spawn(["python3", "-c", TRACER], user="root")
        assert await tracer.stdout.read() == b"looks\n"
        with pytest.raises(SandboxTimeoutError):
            await box.exec(["sleep", "86394"], user="root", timeout=3)
        assert await tracer.stdout.read() == b"traced\n"
        await tracer.kill()
        # Nobody keeps its end any more.
        await output(box, "while pgrep -x sleep; do :; done")

    with_box(check)
