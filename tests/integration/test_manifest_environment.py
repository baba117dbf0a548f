"""ManifestEnvironment in real sandboxes of the local provider."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    ProvisionContext,
    Sandbox,
    SandboxSpec,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_contracts.testing import EnvironmentCheck, check_environment, environment_checks
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_sandbox_local import LocalProvider, LocalSandbox

# A bank over SQLite in WAL mode that keeps its connection open. `/busy` starts a writer
# that moves money between two accounts for ever: the sum is always 100.
SERVICE = """
import json, os, sqlite3, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

database, port = sys.argv[1], int(sys.argv[2])

def connect():
    conn = sqlite3.connect(database, timeout=30, isolation_level=None, check_same_thread=False)
    conn.execute("PRAGMA journal_mode = wal").fetchall()
    return conn

conn, lock = connect(), threading.Lock()
conn.execute("CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, money INTEGER)")
conn.execute("INSERT OR IGNORE INTO account VALUES ('a', 60), ('b', 40)")

def busy():
    mine, amount = connect(), 1
    while True:
        mine.execute("BEGIN IMMEDIATE")
        mine.execute("UPDATE account SET money = money - ? WHERE name = 'a'", (amount,))
        mine.execute("UPDATE account SET money = money + ? WHERE name = 'b'", (amount,))
        mine.execute("COMMIT")
        amount = -amount
        time.sleep(0.001)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/env":
            return self.answer(dict(os.environ))
        with lock:
            self.answer(dict(conn.execute("SELECT name, money FROM account")))

    def do_POST(self):
        if self.path == "/busy":
            threading.Thread(target=busy, daemon=True).start()
        else:
            with lock:
                conn.execute("UPDATE account SET money = ? WHERE name = 'a'", (int(self.path[1:]),))
        self.answer({})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

ONE = """
[environment]
name = "bank"
base_image = "host"
owns_lifecycle = false

[environment.state]
paths = ["/data/bank.db"]

[environment.readiness]
timeout_sec = 20

[[environment.services]]
name = "bank"
command = "python3 -I /opt/bank.py /data/bank.db 9001"
port = 9001
"""


@dataclass
class World:
    """A provisioned environment and its box."""

    provider: LocalProvider
    box: Sandbox
    environment: ManifestEnvironment

    async def call(self, path: str, port: int = 9001, *, post: bool = False) -> dict:
        method = ["-X", "POST"] if post else []
        url = f"http://127.0.0.1:{port}{path}"
        result = await self.box.exec(["curl", "-sS", *method, url], timeout=30)
        assert result.ok, result
        return json.loads(result.stdout)

    async def root(self, script: str) -> str:
        result = await self.box.exec(script, user="root", cwd="/", timeout=30)
        assert result.ok, result
        return result.stdout

    async def agent(self, script: str) -> int:
        return (await self.box.exec(script, timeout=30)).exit_code

    async def ready(self) -> None:
        probe = await self.environment.readiness()
        assert probe.ready, probe


@asynccontextmanager
async def boxed(
    folder: Path, text: str, *, spec: SandboxSpec | None = None, files: dict[str, str] | None = None
) -> AsyncIterator[World]:
    """A box with the service's program in it; nothing is provisioned yet."""
    manifest = folder / "environment.toml"
    manifest.write_text(text)
    environment = manifest_environment(manifest)()
    assert isinstance(environment, ManifestEnvironment)
    async with LocalProvider(store=folder / "store") as provider:
        prepared = environment.prepare(spec or SandboxSpec(), task_id="pay-bob")
        box = await provider.create(prepared)
        try:
            for index, (path, content) in enumerate(
                {"/opt/bank.py": SERVICE, **(files or {})}.items()
            ):
                local = folder / f"upload-{index}"
                local.write_text(content)
                await box.upload(local, path)
            yield World(provider, box, environment)
        finally:
            await environment.teardown()
            await box.teardown()


@asynccontextmanager
async def world(folder: Path, text: str = ONE, **options) -> AsyncIterator[World]:
    async with boxed(folder, text, **options) as made:
        await made.environment.provision(ProvisionContext(made.box, "pay-bob"))
        await made.ready()
        yield made


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(50):
            await test()

    asyncio.run(main())


def accounts(state: EnvState, path: str = "/data/bank.db") -> dict:
    rows = state.databases[path]["account"].rows
    assert rows is not None
    return dict(rows)


def test_a_wal_service_is_really_rolled_back_as_its_own_api_shows(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            assert await bank.call("/") == {"a": 1, "b": 40}
            await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}
            assert accounts(await bank.environment.query()) == {"a": 60, "b": 40}
            await bank.call("/7", post=True)
            assert await bank.call("/") == {"a": 7, "b": 40}
            await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}

    run(test)


def test_copying_the_snapshot_s_file_over_the_database_rolls_nothing_back(tmp_path: Path):
    """Why `restore` does not do this: the service's log wins over the file."""

    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            await bank.root(f"cp {snap.path}/0/0.db /data/bank.db")
            assert await bank.call("/") == {"a": 1, "b": 40}

    run(test)


def test_without_python_the_sqlite3_program_does_the_same(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            # The service goes on: its interpreter is loaded. New ones are not found.
            await bank.root("mv $(readlink -f $(command -v python3)) /opt/hidden-python")
            environment = manifest_environment(tmp_path / "environment.toml")()
            await environment.provision(ProvisionContext(bank.box, "x"))

    with pytest.raises(EnvironmentError_, match="no service of 'bank' is installed"):
        run(test)

    async def with_cli():
        async with world(tmp_path) as bank:
            environment = bank.environment
            await bank.root("mv $(readlink -f $(command -v python3)) /opt/hidden-python")
            environment._world.box._tools = None
            snap = await environment.snapshot()
            await bank.call("/1", post=True)
            await environment.restore(snap)
            assert await bank.call("/") == {"a": 60, "b": 40}
            assert (await environment.readiness()).ready
            await bank.root(f"sqlite3 {snap.path}/0/0.db 'UPDATE account SET money = 9'")
            with pytest.raises(EnvironmentError_, match="not what was captured"):
                await environment.restore(snap)
            assert await bank.root("ls -d /.bf-state/*/ | wc -l") == "2\n"

    run(with_cli)


def test_two_databases_with_one_basename_keep_apart(tmp_path: Path):
    second = ONE.replace('"/data/bank.db"', '"/data/one/bank.db", "/data/two/bank.db"').replace(
        "/data/bank.db", "/data/one/bank.db"
    ) + (
        '[[environment.services]]\nname = "other"\nport = 9002\n'
        'command = "python3 -I /opt/bank.py /data/two/bank.db 9002"\n'
    )

    async def test():
        async with world(tmp_path, second) as bank:
            await bank.call("/5", 9002, post=True)
            snap = await bank.environment.snapshot()
            await bank.call("/1", 9001, post=True)
            await bank.call("/2", 9002, post=True)
            await bank.environment.restore(snap)
            assert (await bank.call("/", 9001))["a"] == 60
            assert (await bank.call("/", 9002))["a"] == 5
            state = await bank.environment.query()
            assert accounts(state, "/data/one/bank.db")["a"] == 60
            assert accounts(state, "/data/two/bank.db")["a"] == 5

    run(test)


def test_query_and_snapshot_hold_the_invariant_under_a_busy_writer(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            for _ in range(50):
                assert sum(accounts(await bank.environment.query()).values()) == 100
            snap = await bank.environment.snapshot()
            await bank.environment.restore(snap)
            assert sum((await bank.call("/")).values()) == 100

    run(test)


def test_query_works_while_the_caller_holds_the_sandbox_still(tmp_path: Path):
    """A checkpoint reads the state and seals the files inside one freeze."""

    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            async with bank.box.freeze():
                first = await bank.environment.query()
                assert sum(accounts(first).values()) == 100
                assert await bank.environment.query() == first
                image = await bank.box.snapshot()
            fork = await bank.provider.create(bank.box.spec, image=image)
            environment = manifest_environment(tmp_path / "environment.toml")()
            try:
                await environment.provision(ProvisionContext(fork, "x", resumed=True))
                assert (await environment.readiness()).ready
                assert await environment.query() == first
            finally:
                await environment.teardown()
                await fork.teardown()

    run(test)


def test_without_freeze_query_asks_sqlite_for_a_copy(tmp_path: Path, monkeypatch):
    def no_freeze(self):
        raise SandboxUnsupportedError("no freezer")

    monkeypatch.setattr(LocalSandbox, "freeze", no_freeze)

    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            before = await bank.root("ls /.bf-state")
            for _ in range(5):
                assert sum(accounts(await bank.environment.query()).values()) == 100
            assert await bank.root("ls /.bf-state") == before

    run(test)


def test_reset_returns_to_the_baseline_with_fresh_services(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            await bank.call("/busy", post=True)
            await bank.call("/1", post=True)
            await bank.environment.reset()
            assert await bank.call("/") == {"a": 60, "b": 40}
            # The busy thread went with its service.
            first = await bank.environment.query()
            assert await bank.environment.query() == first

    run(test)


def test_a_fork_s_environment_goes_on_from_the_files_and_restores_the_parent_s_snapshot(
    tmp_path: Path,
):
    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            image = await bank.box.snapshot()
            fork = await bank.provider.create(bank.box.spec, image=image)
            environment = manifest_environment(tmp_path / "environment.toml")()
            try:
                await environment.provision(ProvisionContext(fork, "pay-bob", resumed=True))
                child = World(bank.provider, fork, environment)
                await child.ready()
                assert await child.call("/") == {"a": 1, "b": 40}
                await environment.restore(snap)
                assert await child.call("/") == {"a": 60, "b": 40}
                assert await bank.call("/") == {"a": 1, "b": 40}
            finally:
                await environment.teardown()
                await fork.teardown()

    run(test)


@pytest.mark.parametrize("known", [True, False])
def test_a_fork_is_proven_as_it_runs_when_its_databases_have_known_bytes(
    tmp_path: Path, monkeypatch, known: bool
):
    holds: list[LocalSandbox] = []
    freeze = LocalSandbox.freeze

    def counted(self: LocalSandbox):
        holds.append(self)
        return freeze(self)

    async def test():
        async with world(tmp_path) as bank:
            async with bank.box.freeze():
                expected = await bank.environment.query()
                image = await bank.box.snapshot()
            fork = await bank.provider.create(bank.box.spec, image=image)
            environment = manifest_environment(tmp_path / "environment.toml")()
            try:
                await environment.provision(ProvisionContext(fork, "x", resumed=True))
                child = World(bank.provider, fork, environment)
                await child.ready()
                monkeypatch.setattr(LocalSandbox, "freeze", counted)
                if not known:  # the same rows in other bytes
                    await child.call("/1", post=True)
                    await child.call("/60", post=True)
                await environment.check(expected)
                assert bool(holds) is not known
                await child.call("/1", post=True)
                with pytest.raises(SnapshotError, match="state of its checkpoint"):
                    await environment.check(expected)
            finally:
                await environment.teardown()
                await fork.teardown()

    run(test)


def test_a_tampered_or_foreign_snapshot_is_refused_and_the_world_stays(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            snap = await bank.environment.snapshot()
            await bank.call("/1", post=True)
            with pytest.raises(EnvironmentError_, match="not made by this environment"):
                await bank.environment.restore(snap.model_copy(update={"path": "/workspace"}))
            await bank.root(f"sqlite3 {snap.path}/0/0.db 'UPDATE account SET money = 9'")
            with pytest.raises(EnvironmentError_, match="not what was captured"):
                await bank.environment.restore(snap)
            await bank.root(f"rm -r {snap.path}")
            with pytest.raises(EnvironmentError_, match="not in this sandbox"):
                await bank.environment.restore(snap)
            assert await bank.call("/") == {"a": 1, "b": 40}

    run(test)


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


def test_a_port_that_nobody_listens_on_is_named_when_the_time_is_over(tmp_path: Path):
    text = ONE.replace("timeout_sec = 20", "timeout_sec = 1\ntcp = [9999]")

    async def test():
        async with boxed(tmp_path, text) as bank:
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
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
        if name == "dial":
            raise AttributeError(name)
        return getattr(self._box, name)


@pytest.mark.parametrize("absent", ["", "python3", "python3 curl"])
def test_readiness_asks_with_what_the_box_has(tmp_path: Path, absent: str):
    text = ONE.replace("timeout_sec = 20", "timeout_sec = 20\ntcp = [9001]")
    closed = ONE.replace("timeout_sec = 20", "timeout_sec = 1\ntcp = [9999]")

    async def test(text: str, ready: bool):
        async with boxed(tmp_path, text) as bank:
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await bank.ready() if ready else None
            box = bank.environment._world.box
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


def test_the_agent_can_neither_read_nor_write_the_state(tmp_path: Path):
    async def test():
        # The directory came with the task's files: readable by all.
        async with boxed(tmp_path, ONE) as bank:
            await bank.root("mkdir -m 755 /data")
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await bank.ready()
            snap = await bank.environment.snapshot()
            for path in ("/data/bank.db", "/data/bank.db-wal", f"{snap.path}/0/0.db"):
                assert await bank.agent(f"cat {path}") != 0
                assert await bank.agent(f"echo x >> {path}") != 0
                assert await bank.agent(f"rm -f {path}") != 0
            assert await bank.agent("touch /data/new") != 0
            assert await bank.agent("ls /.bf-state") != 0

    run(test)


def test_state_within_the_agent_s_reach_is_refused(tmp_path: Path):
    async def test(path: str):
        async with boxed(tmp_path, ONE.replace("/data/bank.db", path)) as bank:
            with pytest.raises(EnvironmentError_, match=r"replaced by the agent.*"):
                await bank.environment.provision(ProvisionContext(bank.box, "x"))

    run(lambda: test("/workspace/bank.db"))
    run(lambda: test("/tmp/bank.db"))


def test_a_state_file_swapped_for_a_link_or_another_file_is_refused(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            environment = bank.environment
            await bank.root("mv /data/bank.db /data/x && ln -s /data/x /data/bank.db")
            for call in (environment.query, environment.snapshot):
                with pytest.raises(EnvironmentError_, match="not a regular file"):
                    await call()
            await bank.root("rm /data/bank.db && ln /data/x /data/bank.db")
            with pytest.raises(EnvironmentError_, match="second hard link"):
                await environment.query()
            await bank.root("rm /data/x && chown agent /data/bank.db")
            with pytest.raises(EnvironmentError_, match="replaced by the agent"):
                await environment.query()
            await bank.root("rm /data/* && echo 'not rows' > /data/bank.db")
            with pytest.raises(EnvironmentError_, match="not a SQLite database"):
                await environment.query()

    run(test)


def test_hidden_files_are_unreadable_for_the_agent(tmp_path: Path):
    text = (
        ONE
        + '[verifier]\nhidden_from_agent = ["expectations.json", "tasks/*/fixtures", "/srv/k*"]\n'
    )

    async def test():
        async with boxed(tmp_path, text) as bank:
            await bank.root(
                "cd /workspace && mkdir -p tasks/1/fixtures && echo 1 > expectations.json"
                " && echo 2 > tasks/1/fixtures/a && echo 3 > tasks/1/open && echo 4 > /srv/key"
                " && chown -R agent: . && chmod -R a+rwX ."
            )
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await bank.ready()
            for path in ("expectations.json", "tasks/1/fixtures/a", "/srv/key"):
                assert await bank.agent(f"cat {path}") != 0
            assert await bank.agent("cat tasks/1/open") == 0

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


def test_a_world_without_state_cannot_be_rolled_back(tmp_path: Path):
    text = ONE.replace('[environment.state]\npaths = ["/data/bank.db"]\n', "").replace(
        "/data/bank.db", "/opt/bank.db"
    )

    async def test():
        async with world(tmp_path, text) as bank:
            assert await bank.environment.query() == EnvState()
            with pytest.raises(RuntimeError, match="stateless"):
                await bank.environment.snapshot()
            await bank.environment.reset()
            assert await bank.call("/") == {"a": 60, "b": 40}

    run(test)


@pytest.mark.parametrize("check", environment_checks(), ids=str)
def test_it_keeps_the_promises_of_an_environment(tmp_path: Path, check: EnvironmentCheck):
    # In a test of the kit, the service's program comes with the image.
    image = tmp_path / "images" / "bank" / "rootfs" / "opt"
    image.mkdir(parents=True)
    (image / "bank.py").write_text(SERVICE)
    manifest = tmp_path / "environment.toml"
    manifest.write_text(ONE.replace('"host"', '"bank"'))
    amounts = iter(range(1, 50))

    async def mutate(box: Sandbox) -> None:
        url = f"http://127.0.0.1:9001/{next(amounts)}"
        assert (await box.exec(["curl", "-sS", "-X", "POST", url], timeout=30)).ok

    async def test():
        async with LocalProvider(store=tmp_path / "store") as provider:
            make = manifest_environment(manifest)
            (result,) = await check_environment(make, provider, mutate, only=[str(check)])
            result.raise_if_failed()
            # What the machine cannot do is said by the provider's own tests.
            assert result.status == "passed" or "live" in str(check)

    run(test)
