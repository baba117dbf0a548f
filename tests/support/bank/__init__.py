"""A bank over SQLite that a manifest describes, in a real sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import EnvState, ProvisionContext, Sandbox, SandboxSpec
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_sandbox_local import LocalProvider

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
