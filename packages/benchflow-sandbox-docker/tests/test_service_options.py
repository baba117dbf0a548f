"""What containers of a sandbox are given: options, users, commands, limits, and further starts."""

import asyncio
from contextlib import suppress

import pytest
from benchflow_contracts import ContainerOptions, ResourceLimits, SandboxError
from benchflow_sandbox_docker.services.conditions import ServiceState


def test_the_sandbox_and_its_services_have_their_options(with_box, web, tmp_path):
    (tmp_path / "conf").write_text("value")
    options = {
        "hostname": "named",
        "hosts": {"elsewhere": "192.0.2.9"},
        "files": {"/etc/conf": tmp_path / "conf"},
        "texts": {"/etc/text": "two\nlines\n"},
        "ulimits": {"nofile": (100, 200)},
        "shm_mb": 32,
    }
    checks = [
        'test "$(cat /proc/sys/kernel/hostname)" = named',
        "grep -q '192.0.2.9.elsewhere' /etc/hosts",
        'test "$(cat /etc/conf)" = value',
        "! echo x > /etc/conf",
        'test "$(cat /etc/text)" = "two\nlines"',
        "! echo x > /etc/text && ! rm /etc/text",
        "grep -q 'Max open files *100 *200' /proc/1/limits",
        "grep -q '/dev/shm .*size=32768k' /proc/mounts",
    ]
    main = ContainerOptions(**options)
    service = web(**options, read_only=True, tmpfs=["/scratch"])

    async def test(box):
        of_box = [(await box.exec(check)).exit_code for check in checks]
        of_service = [
            await box.service_exec("web", check)
            for check in [*checks, "! touch /srv/new", "touch /scratch/new"]
        ]
        return of_box, of_service

    of_box, of_service = with_box(test, services=[service], container=main, user="root")
    assert of_box == [0] * len(checks)
    assert of_service == [0] * (len(checks) + 2)


def test_the_sandbox_runs_the_command_of_its_spec(with_box):
    main = ContainerOptions(command=("sh", "-c", "echo started > /began; sleep 1000"))

    async def test(box):
        return (await box.exec("until test -s /began; do sleep 0.1; done; cat /began")).stdout

    assert with_box(test, container=main, entrypoint="image", user="root") == "started\n"


def test_the_sandboxs_entrypoint_runs_as_the_user_and_where_it_is_given(with_box):
    main = ContainerOptions(
        command=("sh", "-c", "echo $(id -u) $(pwd) > began; sleep 1000"),
        user="65534",
        workdir="/tmp",
    )

    async def test(box):
        return (
            await box.exec("until test -s /tmp/began; do sleep 0.1; done; cat /tmp/began")
        ).stdout

    told = with_box(test, container=main, entrypoint="image", user="root", workdir="/srv")
    assert told == "65534 /tmp\n"


def test_a_service_that_is_always_started_again_keeps_its_files(with_box, web):
    again = web(command=("sh", "-c", "echo x >> /starts; sleep 0.2"), restarts="always")

    async def test(box):
        async with asyncio.timeout(60):
            while True:
                with suppress(SandboxError):
                    if not await box.service_exec("web", "test $(wc -l < /starts) -ge 3"):
                        return

    with_box(test, services=[again])


@pytest.mark.parametrize(("restarts", "never"), [(9, False), (10, True)])
def test_a_service_that_never_comes_up_is_waited_for_no_longer_than_it_is_tried(restarts, never):
    told = {"State": {"Status": "restarting", "ExitCode": 3}, "RestartCount": restarts}
    state = ServiceState.of(told)
    assert state.never_fulfils("started") is never
    assert (str(state) == "ended with exit code 3") is never


def test_a_service_has_its_limits_and_its_user(with_box, web):
    service = web(
        user="65534",
        env={"NAME": "v"},
        tmpfs=["/scratch"],
        limits=ResourceLimits(memory_mb=64, pids=50, cpus=0.5),
    )
    checks = [
        'test "$(id -u)" = 65534',
        'test "$NAME" = v',
        "grep -q '/scratch tmpfs' /proc/mounts",
        "grep -q 'NoNewPrivs:.1' /proc/self/status",
    ]

    async def test(box):
        return [await box.service_exec("web", check) for check in checks]

    assert with_box(test, services=[service]) == [0] * len(checks)
