"""Each kind of state, in real boxes, while somebody writes."""

import asyncio
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
    SnapshotError,
    diff_states,
)
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_sandbox_local import LocalProvider

HEAD = """
[environment]
name = "shop"
base_image = "host"
owns_lifecycle = false
"""


@dataclass
class Shop:
    """A provisioned world in a box, and what is needed to fork it."""

    provider: LocalProvider
    box: Sandbox
    environment: ManifestEnvironment
    manifest: Path

    async def root(self, script: str) -> str:
        result = await self.box.exec(["bash", "-c", script], user="root", cwd="/", timeout=120)
        assert result.ok, result
        return result.stdout.strip()

    @asynccontextmanager
    async def fork(self) -> AsyncIterator["Shop"]:
        """A child from a checkpoint as the kernel takes it; its state is the checkpoint's."""
        async with self.environment.quiesce(), self.box.freeze():
            state = await self.environment.query()
            image = await self.box.snapshot()
        box = await self.provider.create(self.box.spec, image=image)
        environment = manifest_environment(self.manifest)()
        assert isinstance(environment, ManifestEnvironment)
        try:
            await environment.provision(ProvisionContext(box, "t", resumed=True))
            probe = await environment.readiness()
            assert probe.ready, probe
            await environment.check()
            child = Shop(self.provider, box, environment, self.manifest)
            assert diff_states(state, await environment.query()).empty
            yield child
        finally:
            await environment.teardown()
            await box.teardown()
            await self.provider.discard(image)


@asynccontextmanager
async def shop(folder: Path, text: str, files: dict[str, str]) -> AsyncIterator[Shop]:
    manifest = folder / "environment.toml"
    manifest.write_text(text)
    environment = manifest_environment(manifest)()
    assert isinstance(environment, ManifestEnvironment)
    async with LocalProvider(store=folder / "store") as provider:
        box = await provider.create(environment.prepare(SandboxSpec(), task_id="t"))
        made = Shop(provider, box, environment, manifest)
        try:
            for index, (path, content) in enumerate(files.items()):
                local = folder / f"upload-{index}"
                local.write_text(content)
                await box.upload(local, path)
            await environment.provision(ProvisionContext(box, "t"))
            probe = await environment.readiness()
            assert probe.ready, probe
            yield made
        finally:
            await environment.teardown()
            await box.teardown()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(240):
            await test()

    asyncio.run(main())


def rows(state: EnvState, database: str, table: str) -> list[tuple]:
    found = state.databases[database][table].rows
    assert found is not None
    return list(found)


# Two files that always hold the same number, one after the other, for ever.
NOTES = """
import os, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer

def put(name, text):
    with open(f"/data/notes/{name}.new", "w") as out:
        out.write(text)
    os.rename(f"/data/notes/{name}.new", f"/data/notes/{name}")

def busy():
    number = 0
    while not os.path.exists("/run/quiet"):
        number += 1
        for name in "ab":
            put(name, str(number))
    open("/run/stopped", "w").close()

os.makedirs("/data/notes", exist_ok=True)
if not os.path.exists("/data/notes/a"):
    put("a", "0"), put("b", "0")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/busy":
            threading.Thread(target=busy, daemon=True).start()
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", 9001), Handler).serve_forever()
"""
NOTES_WORLD = (
    HEAD
    + """
[[environment.services]]
name = "notes"
command = "python3 -I /opt/notes.py"
port = 9001
[[environment.state]]
kind = "files"
paths = ["/data/notes"]
"""
)
CLOSE = "a=$(cat /data/notes/a) b=$(cat /data/notes/b); echo $((a - b))"


def test_files_are_copied_from_one_instant_also_when_the_writer_never_stops(tmp_path: Path):
    async def test():
        async with shop(tmp_path, NOTES_WORLD, {"/opt/notes.py": NOTES}) as world:
            first = await world.environment.snapshot()
            await world.root("curl -sf http://127.0.0.1:9001/busy")
            snap = await world.environment.snapshot()
            a, b = [await world.root(f"cat {snap.path}/0/0/{name}") for name in "ab"]
            assert int(a) - int(b) in (0, 1)
            await world.root("touch /run/quiet; until [ -e /run/stopped ]; do sleep 0.01; done")
            await world.environment.restore(snap)
            assert await world.root("cat /data/notes/a") == a
            before = await world.environment.query()
            await world.root("chmod 640 /data/notes/a; echo more > /data/notes/c")
            async with world.fork() as child:
                await child.environment.restore(first)
                assert await child.root("cat /data/notes/*") == "00"
                found = diff_states(before, await child.environment.query()).files
                assert set(found.changed) >= {"/data/notes/a", "/data/notes/b"}
            after = await world.environment.query()
            assert diff_states(before, after).files.added == ("/data/notes/c",)
            assert await world.root("ls /data") == "notes"

    run(test)


def test_a_files_snapshot_that_was_tampered_with_is_refused_and_nothing_changes(tmp_path: Path):
    async def test():
        async with shop(tmp_path, NOTES_WORLD, {"/opt/notes.py": NOTES}) as world:
            snap = await world.environment.snapshot()
            await world.root("echo 7 > /data/notes/a")
            await world.root(f"echo 9 > {snap.path}/0/0/a")
            with pytest.raises(EnvironmentError_, match="not what was captured"):
                await world.environment.restore(snap)
            assert await world.root("cat /data/notes/a; ls /data") == "7\nnotes"
            await world.root("ln -s /etc /data/notes/link")
            with pytest.raises(EnvironmentError_, match="neither a file nor a directory"):
                await world.environment.snapshot()

    run(test)


MIXED = (
    HEAD
    + """
[[environment.services]]
name = "notes"
command = "python3 -I /opt/notes.py"
port = 9001
[[environment.state]]
kind = "files"
paths = ["/data/notes"]
[[environment.state]]
kind = "sqlite"
paths = ["/data/shop.db"]
[[environment.state]]
kind = "command"
name = "ledger"
snapshot = "cp /data/ledger $BENCHFLOW_STATE_DIR/"
restore = "[ ! -e /run/broken ] && cp $BENCHFLOW_STATE_DIR/ledger /data/ledger"
query = "printf '{\\"table\\":\\"t\\",\\"columns\\":[\\"v\\"]}\\\\n[%s]\\\\n' $(cat /data/ledger)"
quiesce = "touch /run/held"
resume = "rm -f /run/held"
[[environment.invariants]]
name = "the shop sells"
state = "/data/shop.db"
sql = "SELECT sum(price) FROM item"
expect = 30
[[environment.invariants]]
name = "the ledger is kept"
command = "test -s /data/ledger"
[environment.fork]
reseed = ["echo $BENCHFLOW_SEED > /data/seed"]
"""
)
SEED_MIXED = """
mkdir -p /data; echo 5 > /data/ledger
sqlite3 /data/shop.db 'CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)'
sqlite3 /data/shop.db 'INSERT INTO item VALUES (1, 10), (2, 20)'
"""


def test_several_kinds_are_rolled_back_together_or_not_at_all(tmp_path: Path):
    async def test():
        files = {
            "/opt/notes.py": f"import subprocess\nsubprocess.run({SEED_MIXED!r}, shell=True)\n"
        }
        files["/opt/notes.py"] += NOTES
        async with shop(tmp_path, MIXED, files) as world:
            env = world.environment
            snap, before = await env.snapshot(), await env.query()
            assert rows(before, "ledger", "t") == [(5,)]
            await env.check()
            await env.reseed(42)
            assert await world.root("cat /data/seed; ls /run/held 2>&1 | wc -l") == "42\n1"
            change = "echo 6 > /data/ledger; echo x > /data/notes/a"
            await world.root(f"{change}; sqlite3 /data/shop.db 'UPDATE item SET price = 0'")
            with pytest.raises(EnvironmentError_, match="'the shop sells': expected 30, got '0'"):
                await env.check()
            changed = await env.query()
            found = diff_states(before, changed)
            assert len(found.databases["/data/shop.db"]["item"].changed) == 2
            assert found.files.changed == ("/data/notes/a",)
            await world.root("touch /run/broken")
            with pytest.raises(EnvironmentError_, match="restore of 'ledger'"):
                await env.restore(snap)
            assert await env.query() == changed
            await world.root("rm /run/broken")
            await env.restore(snap)
            assert await env.query() == before
            assert await world.root("ls -d /.bf-state/*/ | wc -l") == "2"

    run(test)


def test_state_in_memory_is_carried_by_no_file_and_says_so(tmp_path: Path):
    text = NOTES_WORLD + '[[environment.state]]\nkind = "process"\nservice = "notes"\n'

    async def test():
        async with shop(tmp_path, text, {"/opt/notes.py": NOTES}) as world:
            snap = await world.environment.snapshot()
            with pytest.raises(EnvironmentError_, match="only a live fork carries it"):
                await world.environment.restore(snap)
            await world.environment.reset()
            with pytest.raises(EnvironmentError_, match="only a live fork carries it"):
                async with world.fork():
                    pass

    run(test)


REDIS_WORLD = (
    HEAD
    + """
[[environment.services]]
name = "cache"
command = "redis-server /opt/redis.conf"
port = 6379
health_path = ""
[[environment.state]]
kind = "redis"
name = "cache"
data = "/data/redis"
"""
)
REDIS_CONF = """
bind 127.0.0.1
port 6379
dir /data/redis
save ""
appendonly {aof}
appendfsync no
"""
FILL = """redis-cli -n 3 eval "for i = 1, ARGV[1] do redis.call('set', 'm' .. i, i) end" 0"""
# Two counters that one transaction moves together; the list grows with them.
REDIS_WRITER = """
import socket
conn = socket.create_connection(("127.0.0.1", 6379))
answers = conn.makefile("rb")
number = 0
while True:
    number += 1
    conn.sendall(b"MULTI\\r\\nINCR a\\r\\nINCR b\\r\\nRPUSH log %d\\r\\nEXEC\\r\\n" % number)
    for _ in range(8):
        answers.readline()
    if number == 1:
        open("/run/writing", "w").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("aof", "more"), [("yes", 3000), ("no", 3000), ("yes", 1)])
def test_redis_is_forked_and_rolled_back_while_it_is_written(tmp_path: Path, aof: str, more: int):
    files = {"/opt/redis.conf": REDIS_CONF.format(aof=aof), "/opt/writer.py": REDIS_WRITER}
    files["/data/redis/.keep"] = ""

    def pair(state: EnvState) -> list[str]:
        held = {row[0]: row[2] for row in rows(state, "cache", "db0")}
        return [held["a"], held["b"]]

    async def test():
        async with shop(tmp_path, REDIS_WORLD, files) as world:
            env = world.environment
            await world.root("redis-cli mset a 0 b 0; redis-cli -n 3 hset h f v g w")
            await world.root("redis-cli set gone x px 99999999; redis-cli zadd z 1 one 2 two")
            await world.root(f"{FILL} {more}")
            first, before = await env.snapshot(), await env.query()
            assert rows(before, "cache", "db3")[0] == ("h", "hash", '{"f": "v", "g": "w"}', None)
            writer = await world.box.spawn(["python3", "/opt/writer.py"], user="root", cwd="/")
            await world.root("until [ -e /run/writing ]; do sleep 0.01; done")
            for _ in range(3):
                a, b = pair(await env.query())
                assert a == b
            async with world.fork() as child, world.fork() as sibling:
                a, b = pair(await child.environment.query())
                assert a == b != '"0"'
                await child.root("redis-cli set only child")
                assert await sibling.root("redis-cli exists only") == "0"
                assert await world.root("redis-cli exists only") == "0"
            await env.restore(first)
            while (found := pair(await env.query()))[0] == '"0"':
                pass  # the writer's connection is as it was
            assert found[0] == found[1]
            await writer.aclose()
            busy = await env.query()
            copied = await world.root(f"ls {first.path}/0/*")
            assert copied.endswith("/keys" if more == 1 else "/dump.rdb")
            await world.root(f"cp {copied} /run/copied; echo >> {copied}")
            with pytest.raises(EnvironmentError_, match="not what was captured"):
                await env.restore(first)
            assert await env.query() == busy
            await world.root(f"cat /run/copied > {copied}")
            await env.restore(first)
            assert await env.query() == before
            with pytest.raises(EnvironmentError_, match="cannot be asked while"):
                async with world.box.freeze():
                    await env.query()

    run(test)


@pytest.mark.slow
def test_a_redis_key_whose_time_is_over_is_no_other_state(tmp_path: Path):
    files = {"/opt/redis.conf": REDIS_CONF.format(aof="no"), "/data/redis/.keep": ""}

    async def test():
        async with shop(tmp_path, REDIS_WORLD, files) as world:
            await world.root("redis-cli set stays x px 99999999; redis-cli set a 1")
            await world.root("redis-cli set brief x px 3000; redis-cli -n 3 set alone x px 3000")
            before = await world.environment.query()
            assert len(rows(before, "cache", "db0")) == 3
            await world.root("while redis-cli exists brief | grep -q 1; do sleep 0.05; done")
            await world.root("while redis-cli -n 3 exists alone | grep -q 1; do sleep 0.05; done")
            await world.environment.check(before)
            await world.root("redis-cli del stays")
            with pytest.raises(SnapshotError, match="does not have the state"):
                await world.environment.check(before)

    run(test)


POSTGRES = """
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
if [ ! -e /data/pg/PG_VERSION ]; then
  mkdir -p /data/pg; chown postgres /data/pg; chmod 700 /data/pg
  runuser -u postgres -- $bin/initdb -D /data/pg -A trust -U postgres --no-sync >/dev/null
fi
exec runuser -u postgres -- $bin/postgres -D /data/pg -p 5432 -k /tmp \
  -c listen_addresses=127.0.0.1 -c fsync=off -c dynamic_shared_memory_type=mmap
"""
POSTGRES_WORLD = (
    HEAD
    + """
[[environment.services]]
name = "orders"
command = "bash /opt/postgres.sh"
port = 5432
health_path = ""
[[environment.state]]
kind = "postgres"
name = "orders"
data = "/data/pg"
[[environment.invariants]]
name = "money is kept"
state = "orders"
sql = "SELECT sum(money) FROM account"
expect = 100
"""
)
PSQL = "psql -XqAt -v ON_ERROR_STOP=1 -h 127.0.0.1 -U postgres"
BANK = """
CREATE TABLE account (name text PRIMARY KEY, money integer NOT NULL);
INSERT INTO account VALUES ('a', 60), ('b', 40);
CREATE SCHEMA odd;
CREATE TABLE odd."the log" (id serial, at timestamptz DEFAULT now(), noise bytea, ok boolean);
INSERT INTO odd."the log" (noise, ok) VALUES ('\\\\x00ff', true), (NULL, NULL);
"""
BUSY = """
UPDATE account SET money = money - 1 WHERE name = 'a';
UPDATE account SET money = money + 1 WHERE name = 'b';
"""


@pytest.mark.slow
def test_postgres_is_forked_and_rolled_back_while_it_is_written(tmp_path: Path):
    files = {"/opt/postgres.sh": POSTGRES, "/opt/bank.sql": BANK}
    files["/opt/busy.sh"] = f'while :; do echo "BEGIN;{BUSY}COMMIT;"; done | {PSQL}\n'

    async def test():
        async with shop(tmp_path, POSTGRES_WORLD, files) as world:
            env = world.environment
            await world.root(f"{PSQL} -f /opt/bank.sql")
            first, before = await env.snapshot(), await env.query()
            assert rows(before, "orders", "public.account") == [("a", 60), ("b", 40)]
            log = before.databases["orders"]["odd.the log"]
            assert log.rows is not None
            assert log.rows[0][2].startswith("sha256:")
            assert [row[3] for row in log.rows] == [True, None]
            writer = await world.box.spawn(["bash", "/opt/busy.sh"], user="root", cwd="/")
            try:
                for _ in range(3):
                    held = await env.query()
                    assert sum(row[1] for row in rows(held, "orders", "public.account")) == 100
                async with world.fork() as child, world.fork() as sibling:
                    await child.root(f"{PSQL} -c 'CREATE TABLE mine (x int)'")
                    state = await child.environment.query()
                    assert "public.mine" in state.databases["orders"]
                    state = await sibling.environment.query()
                    assert "public.mine" not in state.databases["orders"]
                await world.root(
                    f"{PSQL} -c 'ALTER TABLE account ADD extra text; DROP SCHEMA odd CASCADE'"
                )
                await env.restore(first)
                await env.check()
            finally:
                await writer.aclose()
            await env.restore(first)
            assert await env.query() == before
            await world.root(f'{PSQL} -c "INSERT INTO odd.\\"the log\\" (ok) VALUES (false)"')
            changed = await env.query()
            assert rows(changed, "orders", "odd.the log")[2][0] == 3
            await world.root(f"sed -i 's/^COPY/BROKEN/' {first.path}/0/dump.sql")
            with pytest.raises(EnvironmentError_, match="not what was captured"):
                await env.restore(first)
            assert await env.query() == changed

    run(test)


OWNED = """
[environment]
name = "notes"
image = "notes"
[environment.readiness]
http = ["http://localhost:9001/"]
timeout_sec = 60
[[environment.state]]
kind = "files"
paths = ["/data/notes"]
[[environment.invariants]]
name = "both notes agree"
command = "cmp /data/notes/a /data/notes/b"
"""


def test_an_image_that_starts_itself_is_forked_by_its_entrypoint_on_forked_state(tmp_path: Path):
    root = tmp_path / "images" / "notes"
    (root / "rootfs" / "opt").mkdir(parents=True)
    (root / "rootfs" / "opt" / "notes.py").write_text(NOTES)
    (root / "entrypoint").write_text('["/bin/sh", "-c", "exec python3 -I /opt/notes.py"]')
    write = "echo {0} > /data/notes/a; echo {0} > /data/notes/b"

    async def test():
        async with shop(tmp_path, OWNED, {}) as world:
            await world.root(write.format(7))
            async with world.fork() as child:
                assert await child.root("cat /data/notes/a") == "7"
                await child.root("curl -sf http://localhost:9001/")
                await child.root(write.format(8))
                await child.environment.check()
                await child.root("echo 9 > /data/notes/a")
                with pytest.raises(EnvironmentError_, match="both notes agree"):
                    await child.environment.check()
            assert await world.root("cat /data/notes/a /data/notes/b") == "7\n7"
            await world.root("curl -sf http://localhost:9001/")

    run(test)
