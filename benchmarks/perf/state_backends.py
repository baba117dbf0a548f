"""What copying one state and putting it back takes, by kind and size, in milliseconds.

Beside each stands `cp` of a plain file with as many bytes, in the same box and the same
run: no copy of bytes can be faster. Sizes are in MB of values that do not compress. Postgres
is measured both ways: rows (sessions stay), and files (sessions end). A fork copies no
state at all; `state_fork.py` and `live_fork.py` have its price.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchflow_contracts import ProvisionContext, ResourceLimits, Sandbox, SandboxSpec
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_sandbox_local import LocalProvider
from report import emit

SIZES, ROUNDS = (1, 10, 100), 3
MANIFEST = """
[environment]
name = "state"
base_image = "host"
owns_lifecycle = false
[environment.readiness]
timeout_sec = 120
[[environment.services]]
name = "server"
command = "sh /opt/server.sh"
port = {port}
health_path = ""
[[environment.state]]
{state}
"""
IDLE = "exec python3 -m http.server 9001 --bind 127.0.0.1 --directory /srv"
REDIS = "mkdir -p /data; exec redis-server --bind 127.0.0.1 --port 6379 --save '' --dir /data"
POSTGRES = """
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
mkdir -p /data/pg; chown postgres /data/pg; chmod 700 /data/pg
[ -e /data/pg/PG_VERSION ] ||
  runuser -u postgres -- $bin/initdb -D /data/pg -A trust -U postgres --no-sync >/dev/null
exec runuser -u postgres -- $bin/postgres -D /data/pg -p 5432 -k /tmp \
  -c listen_addresses=127.0.0.1 -c fsync=off -c dynamic_shared_memory_type=mmap
"""
FILL_SQLITE = """
sqlite3 /data/world.db "PRAGMA journal_mode = wal; CREATE TABLE t (id INTEGER PRIMARY KEY, v BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {kb})
INSERT INTO t (v) SELECT randomblob(1000) FROM n;" >/dev/null
"""
FILL_FILES = """
mkdir -p /data/tree
for i in $(seq {mb}); do head -c 1000000 /dev/urandom > /data/tree/$i; done
"""
FILL_REDIS = """
head -c {mb}000000 /dev/urandom | python3 -c '
import sys
for i in range({kb}):
    value = sys.stdin.buffer.read(1000)
    head = b"*3\\r\\n$3\\r\\nSET\\r\\n$9\\r\\n%09d\\r\\n$1000\\r\\n" % i
    sys.stdout.buffer.write(head + value + b"\\r\\n")
' | redis-cli --pipe >/dev/null
"""
FILL_POSTGRES = """
psql -Xq -h 127.0.0.1 -U postgres <<'SQL'
CREATE TABLE t (id serial PRIMARY KEY, v text);
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
INSERT INTO t (v) SELECT string_agg(md5(i || '.' || j), '')
  FROM generate_series(1, {kb}) i, generate_series(1, 31) j GROUP BY i;
SQL
"""
PLAIN = """
head -c {mb}000000 /dev/urandom > /root/plain
"""


class Kind(NamedTuple):
    """One kind of state: its manifest, its server and what fills it."""

    state: str
    port: int
    server: str
    fill: str


KINDS = {
    "sqlite": Kind('paths = ["/data/world.db"]', 9001, IDLE, FILL_SQLITE),
    "files": Kind('kind = "files"\npaths = ["/data/tree"]', 9001, IDLE, FILL_FILES),
    "redis": Kind('kind = "redis"', 6379, REDIS, FILL_REDIS),
    "postgres": Kind('kind = "postgres"', 5432, POSTGRES, FILL_POSTGRES),
    "postgres-ends": Kind(
        'kind = "postgres"\nsessions = "end"', 5432, POSTGRES, FILL_POSTGRES
    ),
}  # fmt: skip


async def root(sandbox: Sandbox, script: str) -> None:
    """Run a script as root, which has to succeed."""
    done = await sandbox.exec(["bash", "-ec", script], user="root", cwd="/", timeout=120)
    if not done.ok:
        raise RuntimeError(done.stderr)


async def measure(name: str, kind: Kind, megabytes: int) -> None:
    """Capture and restore one state of one size, and copy a plain file."""
    with tempfile.TemporaryDirectory() as store:
        manifest = Path(store) / "environment.toml"
        manifest.write_text(MANIFEST.format(port=kind.port, state=kind.state))
        (Path(store) / "server.sh").write_text(kind.server)
        environment = manifest_environment(manifest)()
        assert isinstance(environment, ManifestEnvironment)
        async with LocalProvider(store=Path(store) / "store") as provider:
            sandbox = await provider.create(
                environment.prepare(
                    SandboxSpec(limits=ResourceLimits(disk_mb=8192)), task_id="bench"
                )
            )
            await sandbox.upload(Path(store) / "server.sh", "/opt/server.sh")
            if kind.port == 9001:
                await root(sandbox, "mkdir -p /srv /data")
            await environment.provision(ProvisionContext(sandbox, "bench"))
            probe = await environment.readiness()
            if not probe.ready:
                raise RuntimeError(probe.error)
            await root(sandbox, (kind.fill + PLAIN).format(mb=megabytes, kb=megabytes * 1000))
            await rounds(name, environment, sandbox, megabytes)
            await environment.teardown()
            await sandbox.teardown()


async def rounds(
    name: str, environment: ManifestEnvironment, sandbox: Sandbox, megabytes: int
) -> None:
    """Take turns, so that one state of the machine is in all numbers."""
    capture: list[float] = []
    restore: list[float] = []
    plain: list[float] = []
    await environment.restore(await environment.snapshot())  # warm
    for _ in range(ROUNDS):
        started = time.perf_counter()
        snap = await environment.snapshot()
        captured = time.perf_counter()
        await environment.restore(snap)
        restored = time.perf_counter()
        await root(sandbox, "cp /root/plain /root/copied")
        copied = time.perf_counter()
        capture.append((captured - started) * 1000)
        restore.append((restored - captured) * 1000)
        plain.append((copied - restored) * 1000)
        await root(sandbox, f"rm -rf /root/copied {snap.path}")
    bound = emit("state_backends.cp", plain, kind=name, mb=megabytes)
    emit("state_backends.capture", capture, kind=name, mb=megabytes, bound=round(bound, 1))
    emit("state_backends.restore", restore, kind=name, mb=megabytes, bound=round(bound, 1))


async def main(kinds: list[str], sizes: list[int]) -> None:
    """Measure all kinds, or those that are named; sizes are numbers."""
    for name in kinds or KINDS:
        for megabytes in sizes or SIZES:
            await measure(name, KINDS[name], megabytes)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("state_backends: needs root")
    named = [word for word in sys.argv[1:] if not word.isdigit()]
    asyncio.run(main(named, [int(word) for word in sys.argv[1:] if word.isdigit()]))
