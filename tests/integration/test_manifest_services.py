"""What a manifest's services are told, when they are ready, and how they end."""

from pathlib import Path

import pytest
from bank import ONE, SERVICE, World, boxed, run, world
from benchflow_contracts import (
    EnvironmentError_,
    ProvisionContext,
    Sandbox,
)


def test_an_image_that_starts_itself_is_gated_on_http_and_tcp(tmp_path: Path):
    image = tmp_path / "images" / "bank"
    (image / "rootfs" / "opt").mkdir(parents=True)
    (image / "rootfs" / "opt" / "bank.py").write_text(SERVICE)
    (image / "rootfs" / "data").mkdir(mode=0o755)
    (image / "entrypoint").write_text(
        '["/bin/sh", "-c", "exec python3 -I /opt/bank.py /data/bank.db 9001"]'
    )
    text = """
[environment]
name = "bank"
image = "example/bank:latest"
ports = [9001]
[environment.task_selection]
key = "BANK_TASK"
[environment.readiness]
http = ["http://localhost:9001/"]
tcp = [9001]
timeout_sec = 20
[environment.state]
paths = ["/data/bank.db"]
"""

    async def test():
        async with world(tmp_path, text) as bank:
            probe = await bank.environment.readiness()
            assert probe.checked == {"http://localhost:9001/": True, "tcp:9001": True}
            assert (await bank.call("/env"))["BANK_TASK"] == "pay-bob"
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            await bank.environment.reset()
            assert await bank.call("/") == {"a": 1, "b": 40}
            await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}

    run(test)


async def answers(bank: World):
    """Wait for the service itself, so that a short time is over for what nobody serves alone."""
    await bank.root("until curl -s http://127.0.0.1:9001/ > /dev/null; do sleep 0.05; done")


def test_a_port_that_nobody_listens_on_is_named_when_the_time_is_over(tmp_path: Path):
    text = ONE.replace("timeout_sec = 20", "timeout_sec = 1\ntcp = [9999]")

    async def test():
        async with boxed(tmp_path, text) as bank:
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await answers(bank)
            probe = await bank.environment.readiness()
            assert not probe.ready
            assert probe.checked == {"http://localhost:9001/health": True, "tcp:9999": False}
            assert probe.error is not None
            assert "tcp:9999: " in probe.error

    run(test)


class Undialled:
    """A sandbox that the host cannot dial into: everything is asked inside."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    def __getattr__(self, name: str) -> object:
        if name == "connect_tcp":
            raise AttributeError(name)
        return getattr(self._box, name)


@pytest.mark.parametrize("absent", ["", "python3", "python3 curl"])
def test_readiness_asks_with_what_the_box_has(tmp_path: Path, absent: str):
    text = ONE.replace("timeout_sec = 20", "timeout_sec = 20\ntcp = [9001]")
    closed = ONE.replace("timeout_sec = 20", "timeout_sec = 1\ntcp = [9999]")

    async def test(text: str, ready: bool):
        async with boxed(tmp_path, text) as bank:
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await (bank.ready() if ready else answers(bank))
            box = bank.environment._world.shell
            box._tools = await box.tools() - set(absent.split())
            box.sandbox = Undialled(bank.box)
            probe = await bank.environment.readiness()
            assert probe.ready is ready, probe
            assert probe.checked["http://localhost:9001/health"]

    run(lambda: test(text, True))
    run(lambda: test(closed, False))


def test_a_service_that_dies_is_reported_at_once_with_its_last_lines(tmp_path: Path):
    text = ONE.replace("/opt/bank.py /data", "/opt/broken.py /data").replace("= 20", "= 3600")

    async def test():
        broken = "import sys\nprint('seeding')\nsys.exit('no seed \\x1b[31mfile')\n"
        async with boxed(tmp_path, text, files={"/opt/broken.py": broken}) as bank:
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            probe = await bank.environment.readiness()
            assert not probe.ready
            assert probe.error is not None
            assert "service 'bank' ended with exit code 1" in probe.error
            assert "seeding" in probe.error
            assert "no seed" in probe.error
            assert "\x1b" not in probe.error

    run(test)


def test_services_that_are_not_installed_are_skipped_with_their_probes(tmp_path: Path):
    text = ONE + (
        '[[environment.services]]\nname = "ghost"\ncommand = "claw-ghost serve"\nport = 9005\n'
        '[[environment.services]]\nname = "module"\ncommand = "python3 -m no_such"\nport = 9006\n'
    )

    async def test():
        async with boxed(tmp_path, text) as bank:
            handle = await bank.environment.provision(ProvisionContext(bank.box, "x"))
            assert handle.services == ("bank",)
            assert handle.endpoints["bank"].url == "http://127.0.0.1:9001"
            probe = await bank.environment.readiness()
            assert probe.ready
            assert list(probe.checked) == ["http://localhost:9001/health"]

    run(test)


def test_when_no_service_is_installed_provision_fails(tmp_path: Path):
    async def test():
        async with boxed(tmp_path, ONE.replace("/opt/bank.py", "/opt/absent.py")) as bank:
            with pytest.raises(EnvironmentError_, match="no service of 'bank' is installed"):
                await bank.environment.provision(ProvisionContext(bank.box, "x"))

    run(test)


def test_teardown_ends_its_own_service_and_no_other_of_the_same_name(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            other = await bank.box.spawn(
                "exec python3 -I /opt/bank.py /tmp/mine.db 9100", cwd="/", user="agent"
            )
            command = ["curl", "-sS", "--retry", "20", "--retry-connrefused", "--retry-delay", "1"]
            up = await bank.box.exec([*command, "http://127.0.0.1:9100/"], timeout=30)
            assert up.ok
            await bank.environment.teardown()
            assert await bank.agent("curl -s http://127.0.0.1:9001/") == 7
            assert await bank.call("/", 9100) == {"a": 60, "b": 40}
            await bank.environment.teardown()
            await other.aclose()

    run(test)


def test_forwarded_variables_reach_the_services_and_not_the_agent(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("BANK_TOKEN", "t0ken")
    text = ONE + (
        '[environment.forward_env]\nkeys = ["BANK_TOKEN"]\n'
        '[environment.task_selection]\ninject_into = "exec"\nkey = "BANK_TASK"\n'
    )

    async def test():
        async with world(tmp_path, text) as bank:
            env = await bank.call("/env")
            assert env["BANK_TOKEN"] == "t0ken"
            assert env["BANK_TASK"] == "pay-bob"
            seen = (
                await bank.box.exec("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
            ).stdout
            assert "BANK_TOKEN" not in seen
            assert "BANK_TASK" not in seen

    run(test)
