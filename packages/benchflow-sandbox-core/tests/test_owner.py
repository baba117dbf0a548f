import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchflow_contracts import HostError
from benchflow_contracts.sandbox_record import HEARTBEAT_EXPIRY_SEC, Owner
from benchflow_sandbox_core import owner
from benchflow_sandbox_core.owner import HostOwner, current_owner

DIRECTORY = "import sys; from pathlib import Path; from benchflow_sandbox_core import owner\n"
DIRECTORY += "owner.state_directory = lambda: Path(sys.argv[1])\n"
RUNNER = DIRECTORY + "print(owner.current_owner().model_dump_json(), flush=True); {}; input()"
READER = DIRECTORY + "print(owner.HostOwner.model_validate_json(sys.argv[2]).alive)"
EARLIER = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "state_directory", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def runner(state):
    """Start a process that is an owner and waits. Return it and its owner."""
    started = []

    def start(then="None"):
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER.format(then), str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, HostOwner.model_validate_json(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def killed(process):
    process.kill()
    process.wait()


def changed(found, **fields):
    return HostOwner.model_validate({**found.model_dump(), **fields})


def test_an_owner_lives_until_it_is_killed(runner):
    process, found = runner()
    assert found.alive
    process.send_signal(signal.SIGSTOP)
    assert found.alive
    killed(process)
    assert found.alive is False


def test_a_dead_owner_that_nobody_has_collected_is_dead(runner):
    process, found = runner()
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert found.alive is False


def test_a_process_is_one_owner(state):
    assert current_owner() == current_owner()
    assert current_owner().alive
    assert (state / "owners").stat().st_mode & 0o777 == 0o700


def test_two_readers_at_one_time_do_not_take_each_other_for_the_owner(runner, state):
    process, found = runner()
    killed(process)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(state), found.model_dump_json()],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    assert [reader.communicate()[0] for reader in readers] == ["False\n"] * 3


def test_a_program_that_a_runner_started_does_not_keep_it_alive(runner):
    then = "import subprocess; print(subprocess.Popen(['sleep', '99'], close_fds=False).pid)"
    process, found = runner(f"{then}; sys.stdout.flush()")
    child = int(process.stdout.readline())
    try:
        killed(process)
        assert found.alive is False
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_keep_its_parent_alive_and_is_an_owner_itself(runner):
    then = "import os; os.fork() or (print(owner.current_owner().model_dump_json(), os.getpid(),"
    then += " sep='\\n', flush=True), __import__('signal').pause())"
    process, found = runner(then)
    child = HostOwner.model_validate_json(process.stdout.readline())
    pid = int(process.stdout.readline())
    try:
        assert child.id != found.id
        killed(process)
        assert found.alive is False
        assert child.alive
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_child_that_foreign_code_forks_keeps_its_parent_alive(runner):
    # Nothing of Python runs in such a child, so nothing closes its descriptors.
    then = "import ctypes; pid = ctypes.PyDLL(None).fork(); pid and print(pid, flush=True)"
    process, found = runner(f"{then}; pid or ctypes.PyDLL(None).pause()")
    pid = int(process.stdout.readline())
    fd = os.pidfd_open(pid)
    try:
        killed(process)
        assert found.alive
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        until_dead(found)
    finally:
        os.close(fd)


def until_dead(found):
    end = time.monotonic() + 20
    while found.alive:
        assert time.monotonic() < end


def test_the_id_of_a_dead_owner_never_lives_again(runner):
    process, found = runner()
    killed(process)
    _, other = runner()
    assert other.id != found.id
    assert other.alive
    assert found.alive is False


def test_an_owner_is_seen_from_another_pid_namespace(runner, state):
    if os.geteuid() != 0:
        pytest.skip("a pid namespace needs root")
    process, found = runner()
    read = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", READER]
    read += [str(state), found.model_dump_json()]
    assert subprocess.run(read, check=True, capture_output=True, text=True).stdout == "True\n"
    killed(process)
    assert subprocess.run(read, check=True, capture_output=True, text=True).stdout == "False\n"


def test_a_clock_step_does_not_kill_an_owner_of_this_machine(runner, monkeypatch):
    _, found = runner()
    monkeypatch.setattr(time, "time", lambda: 2e10)
    assert found.alive
    assert changed(found, machine="", boot=EARLIER).alive is None


def test_an_owner_whose_lock_is_not_visible_is_unknown(state):
    found = current_owner()
    assert changed(found, directory="1:1").alive is None
    assert changed(found, boot=EARLIER, machine="another").alive is None


@pytest.mark.parametrize(("age", "alive"), [(-10, None), (10, False)])
def test_an_owner_elsewhere_is_dead_once_its_heartbeat_has_expired(state, age, alive):
    renewed_at = time.time() - HEARTBEAT_EXPIRY_SEC - age
    found = current_owner()
    record = changed(found, id="0" * 32, directory="1:1", renewed_at=renewed_at)
    assert record.alive is alive
    assert Owner(renewed_at=renewed_at).is_expired(time.time()) is (alive is False)
    # On machines that share the directory, the file's time is the heartbeat.
    os.utime(state / "owners" / found.id, (renewed_at, renewed_at))
    assert changed(found, boot=EARLIER, machine="another").alive is alive
    assert found.alive


def test_an_owner_renews_its_heartbeat(state, monkeypatch):
    monkeypatch.setattr(owner, "HEARTBEAT_SEC", 0.01)
    path = state / "owners" / current_owner().id
    os.utime(path, (0, 0))
    end = time.monotonic() + 20
    while path.stat().st_mtime == 0:
        assert time.monotonic() < end


def test_an_earlier_boot_of_this_machine_has_certainly_ended(state, monkeypatch):
    monkeypatch.setattr(owner, "_machine", lambda: "this")
    before = changed(current_owner(), boot=EARLIER)
    assert before.alive is False
    assert changed(before, machine="another").alive is None
    monkeypatch.setattr(owner, "_machine", lambda: "")
    assert changed(before, machine="").alive is None


@pytest.mark.parametrize("text", ["uninitialized\n", "\n", "not an id"])
def test_machines_without_an_id_of_their_own_do_not_judge_each_other(
    state, monkeypatch, tmp_path, text
):
    path = tmp_path / "machine-id"
    path.write_text(text)
    monkeypatch.setattr(owner, "_MACHINE_ID", path)
    of_another = changed(current_owner(), boot=EARLIER)
    assert of_another.alive is None
    assert changed(of_another, machine=text.strip()).alive is None


def test_files_of_dead_owners_are_removed_and_of_living_ones_are_not(runner, state):
    process, dead = runner()
    _, living = runner()
    process_elsewhere = "0" * 32
    locks = state / "owners"
    (locks / process_elsewhere).touch()
    for each in (dead, living):
        os.utime(locks / each.id, (0, 0))
    killed(process)
    mine = current_owner()
    assert {path.name for path in locks.iterdir()} == {living.id, mine.id, process_elsewhere}
    assert dead.alive is False
    assert living.alive


def test_a_directory_that_others_can_change_is_refused(state, monkeypatch):
    (state / "owners").mkdir(mode=0o777)
    (state / "owners").chmod(0o777)
    monkeypatch.setattr(owner, "_lock_directories", lambda: [state / "owners"])
    with pytest.raises(HostError, match="owners"):
        current_owner()


def test_a_user_without_a_home_directory_has_locks_of_its_own(monkeypatch):
    def lacking():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(owner, "state_directory", lacking)
    assert owner._lock_directories() == [Path(f"/tmp/benchflow-owners-{os.geteuid()}")]


def test_an_owner_without_a_state_directory_has_a_lock_elsewhere(state, monkeypatch):
    (state / "file").touch()
    places = state / "file" / "owners", state / "elsewhere"
    monkeypatch.setattr(owner, "_lock_directories", lambda: places)
    found = current_owner()
    assert found.alive
    assert changed(found, id="0" * 32).alive is False
    assert (state / "elsewhere" / found.id).exists()


def test_a_record_cannot_name_a_file_elsewhere():
    with pytest.raises(ValueError, match="pattern"):
        HostOwner(id="../seal", machine="", boot="", directory="")
