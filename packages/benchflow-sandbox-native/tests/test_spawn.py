import array
import asyncio
import errno
import os
import resource
import socket
import struct
from pathlib import Path

import pytest
from benchflow_sandbox_native import InitError

STATUS_FIELDS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def field_values(text):
    pairs = (line.partition(":") for line in text.decode().splitlines())
    return {name: value.strip() for name, _, value in pairs}


def list_open(pid):
    return sorted(path.name for path in Path(f"/proc/{pid}/fd").iterdir())


def raw_send_fds(raw, data, fds):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    raw.sendmsg([data], rights)


def test_a_program_runs_and_its_exit_status_comes_back(box):
    assert asyncio.run(box.run("/bin/sh", "-c", "echo hello; exit 7")) == (7, b"hello\n")


def test_a_name_without_a_slash_is_looked_up_on_the_path_of_the_given_environment(box, tmp_path):
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)

    async def main():
        env = {"PATH": f"/etc/passwd-missing:{tmp_path}"}
        assert await box.run("greet", env=env) == (0, b"found\n")
        with pytest.raises(InitError):
            await box.run("greet", env={"PATH": "/etc/passwd-missing"})

    asyncio.run(main())


def test_an_empty_path_entry_does_not_mean_the_working_directory(box, tmp_path, expect_failure):
    program = tmp_path / "trap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with expect_failure(errno.ENOENT, "exec"):
        asyncio.run(box.run("trap", env={"PATH": ":"}, cwd=str(tmp_path)))


def test_the_environment_is_exactly_the_given_one(box):
    env = {"PATH": "/usr/bin:/bin", "EMPTY": "", "TEXT": "a=b c\n\u00fc"}
    _, output = asyncio.run(box.run("env", "-0", env=env))
    assert sorted(output.split(b"\0")[:-1]) == sorted(f"{k}={v}".encode() for k, v in env.items())


def test_the_working_directory_is_the_given_one(box, tmp_path):
    assert asyncio.run(box.run("pwd", cwd=str(tmp_path))) == (0, f"{tmp_path}\n".encode())


def test_standard_streams_are_the_given_pipes(box):
    async def main():
        pipes = [os.pipe() for _ in range(3)]
        (stdin, feed), (out, stdout), (err, stderr) = pipes
        argv = ["/bin/sh", "-c", "cat; echo problem >&2"]
        fds = (stdin, stdout, stderr)
        pid = await box.client.spawn(argv, env={}, cwd="/", uid=0, gid=0, fds=fds)
        for fd in fds:
            os.close(fd)
        os.write(feed, b"through the box")
        os.close(feed)
        assert await box.client.wait(pid) == 0
        with os.fdopen(out, "rb") as output, os.fdopen(err, "rb") as problem:
            return output.read(), problem.read()

    assert asyncio.run(main()) == (b"through the box", b"problem\n")


@pytest.mark.parametrize(
    ("program", "number"),
    [("/etc/passwd-missing", errno.ENOENT), ("missing", errno.ENOENT), ("/etc", errno.EACCES)],
)
def test_a_failed_exec_is_reported_by_spawn(box, expect_failure, program, number):
    async def main():
        with expect_failure(number, "exec"):
            await box.run(program)
        await box.all_reaped()

    asyncio.run(main())


def test_a_file_that_is_no_program_is_reported_by_spawn(box, tmp_path, expect_failure):
    program = tmp_path / "noise"
    program.write_text("no magic number\n")
    program.chmod(0o755)
    with expect_failure(errno.ENOEXEC, "exec"):
        asyncio.run(box.run(str(program)))


def test_a_missing_working_directory_is_reported_by_spawn(box, expect_failure):
    with expect_failure(errno.ENOENT, "cwd"):
        asyncio.run(box.run("true", cwd="/etc/passwd-missing"))


def test_the_working_directory_is_entered_as_the_target_user(box, tmp_path, user, expect_failure):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with expect_failure(errno.EACCES, "cwd"):
        asyncio.run(box.run("true", cwd=str(closed), **user))


def test_a_user_gets_its_ids_and_no_privilege_at_all(box, user):
    _, output = asyncio.run(box.run("cat", "/proc/self/status", groups=(5, 7), **user))
    status = field_values(output)
    assert status["Uid"].split() == ["1234"] * 4
    assert status["Gid"].split() == ["1235"] * 4
    assert status["Groups"].split() == ["5", "7"]
    assert status["NoNewPrivs"] == "1"
    assert {status[name].strip("0") for name in STATUS_FIELDS} == {""}


def test_root_gets_no_new_privileges_only_on_request(box):
    async def main():
        for wanted in (False, True):
            _, output = await box.run("cat", "/proc/self/status", no_new_privs=wanted)
            assert field_values(output)["NoNewPrivs"] == str(int(wanted))

    asyncio.run(main())


def test_no_signal_is_blocked_or_ignored(box):
    _, output = asyncio.run(box.run("cat", "/proc/self/status"))
    status = field_values(output)
    assert {status[name].strip("0") for name in ("SigBlk", "SigIgn", "SigCgt")} == {""}


def test_resource_limits_and_umask_are_applied(box):
    infinity = resource.RLIM_INFINITY
    limits = {resource.RLIMIT_NOFILE: (77, 88), resource.RLIMIT_CORE: (0, 0)}
    limits[resource.RLIMIT_CPU] = (infinity, infinity)
    script = "ulimit -Sn; ulimit -Hn; ulimit -c; ulimit -t; umask"
    _, output = asyncio.run(box.run("/bin/sh", "-c", script, rlimits=limits, umask=0o27))
    assert output.split() == [b"77", b"88", b"0", b"unlimited", b"0027"]


def test_an_unknown_resource_is_reported_by_spawn(box, expect_failure):
    with expect_failure(errno.EINVAL, "rlimit"):
        asyncio.run(box.run("true", rlimits={999: (1, 1)}))


def test_each_process_leads_its_own_session_and_group(box):
    async def main():
        pid, stdout = await box.start(
            "/bin/sh", "-c", "cat /proc/self/stat; exec cat /proc/$$/stat"
        )
        await box.client.wait(pid)
        for line in stdout.readall().splitlines():
            group, session = line.rpartition(b")")[2].split()[2:4]
            assert int(group) == int(session) == pid
        stdout.close()

    asyncio.run(main())


def test_a_process_has_no_other_open_file(box):
    async def main():
        _, stdout = await box.start("/bin/sh", "-c", "echo runs; exec sleep 1000")
        with stdout:
            # Spawn returns in the middle of exec, which closes one file after the other.
            assert await asyncio.to_thread(stdout.readline) == b"runs\n"
            (child,) = box.children()
            assert list_open(child) == ["0", "1", "2"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ([], {}),
        ([""], {}),
        (["a\0b"], {}),
        (["true"], {"env": {"A=B": ""}}),
        (["true"], {"env": {"": ""}}),
        (["true"], {"uid": -1}),
        (["true"], {"uid": 2**32 - 1}),
        (["true"], {"gid": 2**32 - 1}),
        (["true"], {"umask": -1}),
    ],
)
def test_what_the_kernel_cannot_express_is_refused_before_it_is_sent(box, argv, options):
    with pytest.raises(ValueError, match=r"."):
        asyncio.run(box.run(*argv, **options))


def test_a_request_above_the_cap_is_refused(box, expect_failure):
    with expect_failure(errno.E2BIG, "request"):
        asyncio.run(box.run("true", "x" * (1 << 20)))


def test_a_request_just_below_the_cap_arrives_whole(box):
    arguments = ["x" * 100_000 for _ in range(10)]
    status, output = asyncio.run(box.run("/bin/sh", "-c", "cat /proc/$$/cmdline", "-", *arguments))
    assert (status, output.split(b"\0")[4:-1]) == (0, [text.encode() for text in arguments])


def test_a_spawn_whose_caller_vanishes_before_it_knows_the_pid_is_killed(box):
    async def main():
        read, write = os.pipe()
        body = struct.pack("=IIIIIIII", 0, 0, 0o22, 0, 0, 0, 2, 0) + b"/\0/bin/sleep\x001000\0"
        with box.connect() as raw:
            raw_send_fds(raw, struct.pack("=II", 2, len(body)) + body, [write] * 3)
            os.close(write)
            reply = struct.unpack("=IIII", raw.recv(64))
        assert reply[0] == 0
        with os.fdopen(read, "rb") as stdout:
            assert await asyncio.to_thread(stdout.read) == b""  # its only writer is dead
        await box.all_reaped()

    asyncio.run(main())


def test_a_cancelled_spawn_leaves_no_process(box):
    async def one(turns):
        started = []

        async def start():
            started.append(await box.start("sleep", "1000"))

        async with asyncio.TaskGroup() as group:
            task = group.create_task(start())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        for pid, stdout in started:
            await box.client.kill(pid, 9)
            await box.client.wait(pid)
            stdout.close()

    async def main():
        for turns in range(12):
            await one(turns)
        await box.all_reaped()

    asyncio.run(main())


def test_a_long_socket_path_is_no_obstacle(box, tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    os.link(box.socket_path, deep / "init.sock")
    box.socket_path = deep / "init.sock"
    assert asyncio.run(box.run("echo", "deep")) == (0, b"deep\n")


def test_a_symbolic_link_instead_of_the_socket_is_refused(box, tmp_path, expect_failure):
    link = tmp_path / "link"
    link.symlink_to(box.socket_path)
    box.socket_path = link
    with expect_failure(errno.ECONNREFUSED, "connection"):
        asyncio.run(box.client.ping())


def test_an_absent_init_is_a_connection_failure(box, tmp_path, expect_failure):
    box.socket_path = tmp_path / "nobody"
    with expect_failure(errno.ENOENT, "connection"):
        asyncio.run(box.client.ping())
