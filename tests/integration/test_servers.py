"""Redis and Postgres: in live forks, and rolled back by their files, while somebody writes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    ProvisionContext,
    Sandbox,
    SandboxImage,
    SandboxSpec,
    SnapshotError,
)
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_sandbox_local import LocalProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REDIS = """
mkdir -p /data/redis; cd /data/redis
exec redis-server --bind 127.0.0.1 --port 6379 --save '' --dir /data/redis
"""
# Two counters that one transaction moves together, for ever.
REDIS_WRITER = """
while :; do
  printf 'MULTI\\nINCR a\\nINCR b\\nEXEC\\n'
  sleep 0.002
done | redis-cli >/dev/null
"""
POSTGRES = """
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
mkdir -p /data/pg; chown postgres /data/pg; chmod 700 /data/pg
runuser -u postgres -- $bin/initdb -D /data/pg -A trust -U postgres --no-sync >/dev/null
exec runuser -u postgres -- $bin/postgres -D /data/pg -p 5432 -k /tmp \
  -c listen_addresses=127.0.0.1 -c fsync=off -c dynamic_shared_memory_type=mmap
"""
PSQL = "psql -XqAt -v ON_ERROR_STOP=1 -h 127.0.0.1 -U postgres"
POSTGRES_WRITER = f"""
{PSQL} -c 'CREATE TABLE pair (name text PRIMARY KEY, n integer)'
{PSQL} -c "INSERT INTO pair VALUES ('a', 0), ('b', 0)"
while :; do
  echo "BEGIN; UPDATE pair SET n = n + 1 WHERE name = 'a';"
  echo "UPDATE pair SET n = n + 1 WHERE name = 'b'; COMMIT;"
  sleep 0.002
done | {PSQL}
"""
MANIFEST = """
[environment]
name = "pairs"
base_image = "host"
owns_lifecycle = false
[[environment.services]]
name = "server"
command = "bash /opt/server.sh"
port = {port}
health_path = ""
[[environment.state]]
kind = "{kind}"
name = "pairs"
data = "/data"
"""


@dataclass
class Kind:
    """A server, and how its two counters are read."""

    port: int
    server: str
    writer: str
    table: str
    column: int

    def pair(self, state: EnvState) -> list[object]:
        found = state.databases["pairs"].get(self.table)
        if found is None or found.rows is None:
            return []
        return [row[self.column] for row in found.rows if row[0] in ("a", "b")]


KINDS = {
    "redis": Kind(6379, REDIS, REDIS_WRITER, "db0", 2),
    "postgres": Kind(5432, POSTGRES, POSTGRES_WRITER, "public.pair", 1),
}


@dataclass
class Live:
    """A live checkpoint, as the kernel takes it."""

    image: SandboxImage
    carried: Mapping[str, str]
    state: EnvState


@asynccontextmanager
async def world(
    provider: LocalProvider, manifest: Path, files: dict[str, str], live: Live | None = None
) -> AsyncIterator[tuple[ManifestEnvironment, Sandbox]]:
    environment = manifest_environment(manifest)()
    assert isinstance(environment, ManifestEnvironment)
    spec = environment.prepare(SandboxSpec(), task_id="t")
    box = await provider.create(spec, image=None if live is None else live.image)
    try:
        for path, text in files.items():
            local = manifest.parent / Path(path).name
            local.write_text(text)
            await box.upload(local, path)
        context = ProvisionContext(box, "t")
        if live is not None:
            context = ProvisionContext(
                box, "t", resumed=True, live_services=live.carried, state=live.state
            )
        await environment.provision(context)
        probe = await environment.readiness()
        assert probe.ready, probe
        yield environment, box
    finally:
        await environment.teardown()
        await box.teardown()


async def seal(environment: ManifestEnvironment, box: Sandbox) -> Live:
    """Take a live checkpoint; a cause that passes is tried again."""
    while True:
        try:
            async with environment.quiesce(), box.freeze():
                state, carried = await environment.query(), await environment.live_services()
                return Live(await box.snapshot("live"), carried, state)
        except SnapshotError as error:
            if not error.retryable:
                raise


async def written(kind: Kind, environment: ManifestEnvironment, before: list[object]) -> None:
    """Wait until the writer got on; its two counters never differ."""
    while True:
        pair = kind.pair(await environment.query())
        assert len(set(pair)) < 2
        if pair and pair != before:
            return


@pytest.mark.usefixtures("root", "criu")
@pytest.mark.parametrize("name", KINDS)
def test_a_live_checkpoint_has_the_rows_of_its_servers_and_children_agree(
    tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    manifest = tmp_path / "environment.toml"
    manifest.write_text(MANIFEST.format(kind=name, port=kind.port))
    files = {"/opt/server.sh": kind.server, "/opt/writer.sh": kind.writer}

    async def main() -> None:
        async with (
            asyncio.timeout(300),
            LocalProvider(store=tmp_path / "store") as provider,
            world(provider, manifest, files) as (parent, box),
        ):
            await box.spawn(["bash", "/opt/writer.sh"], user="root", cwd="/")
            await written(kind, parent, [])
            live = await seal(parent, box)
            pair = kind.pair(live.state)
            assert len(pair) == 2
            assert pair[0] == pair[1]
            await written(kind, parent, pair)
            # `provision` proves that the held server has these rows; then it is let go.
            for _ in range(2):
                async with world(provider, manifest, {}, live) as (child, inside):
                    await written(kind, child, pair)
                    left = await inside.exec("grep -lsz PGAPPNAME=benchflow-hold /proc/*/environ")
                    assert not left.stdout
                    again = await seal(child, inside)
                    await written(kind, child, kind.pair(again.state))
                    await provider.discard(again.image)
            other = Live(live.image, live.carried, EnvState())
            with pytest.raises(
                EnvironmentError_, match="does not have the state of the live checkpoint"
            ):
                async with world(provider, manifest, {}, other):
                    pass
            await written(kind, parent, kind.pair(await parent.query()))
            await provider.discard(live.image)

    asyncio.run(main())


# As above, in sessions that may end: it connects again.
RECONNECTS = f"""
{PSQL} -c 'CREATE TABLE pair (name text PRIMARY KEY, n integer)'
{PSQL} -c "INSERT INTO pair VALUES ('a', 0), ('b', 0)"
while :; do
  echo "BEGIN; UPDATE pair SET n = n + 1 WHERE name = 'a'; UPDATE pair SET n = n + 1"
  echo "WHERE name = 'b'; COMMIT;"
  for i in 1 2 3; do
    echo "BEGIN; UPDATE pair SET n = n + 1; COMMIT; SELECT pg_sleep(0.01);"
  done
done | (while :; do {PSQL} >/dev/null 2>&1; done)
"""
# Many bytes, no rows: what is small is dumped.
BIG = """
CREATE TABLE big WITH (autovacuum_enabled = false) AS
  SELECT repeat(md5(i::text), 30) FROM generate_series(1, 40000) i; DELETE FROM big;
"""
ENDING = 'sessions = "end"\n[[environment.state]]\nkind = "files"\npaths = ["/data/notes"]\n'


def test_a_database_whose_sessions_may_end_is_rolled_back_by_a_copy_of_its_files(
    tmp_path: Path,
) -> None:
    kind = KINDS["postgres"]
    manifest = tmp_path / "environment.toml"
    manifest.write_text(MANIFEST.format(kind="postgres", port=kind.port) + ENDING)
    manifest.write_text(manifest.read_text().replace('"/data"', '"/data/pg"'))
    files = {"/opt/server.sh": POSTGRES, "/opt/writer.sh": RECONNECTS, "/data/notes/a": "1"}

    async def main() -> None:
        async with (
            asyncio.timeout(300),
            LocalProvider(store=tmp_path / "store") as provider,
            world(provider, manifest, files) as (environment, box),
        ):

            async def sql(text: str, database: str = "postgres") -> str:
                command = [*PSQL.split(), "-d", database, "-c", text]
                done = await box.exec(command, user="root", timeout=120)
                assert done.ok, done
                return done.stdout.strip()

            writer = await box.spawn(["bash", "/opt/writer.sh"], user="root", cwd="/")
            await written(kind, environment, [])
            await sql(BIG)
            snap = await environment.snapshot()
            await written(kind, environment, kind.pair(await environment.query()))
            await environment.restore(snap)
            await written(kind, environment, kind.pair(await environment.query()))
            await writer.aclose()
            await environment.restore(snap)
            first = await environment.query()
            assert len(set(kind.pair(first))) == 1
            await sql("CREATE TABLE mine (x integer)")
            await sql("UPDATE pair SET n = -1")
            changed = await environment.query()
            kept = "SELECT datname FROM pg_database WHERE datname LIKE 'benchflow%' ORDER BY oid"
            copy = await sql(kept)
            await sql(f"ALTER DATABASE {copy} ALLOW_CONNECTIONS true")
            await sql("DELETE FROM pair", copy)
            with pytest.raises(EnvironmentError_, match="match its digest"):
                await environment.restore(snap)
            assert await environment.query() == changed
            await environment.reset()
            assert await environment.query() != changed
            assert await sql(kept) == copy

    asyncio.run(main())
