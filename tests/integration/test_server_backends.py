"""State that a database server holds, in real boxes, while somebody writes."""

from pathlib import Path

import pytest
from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    SnapshotError,
)
from shop import HEAD, rows, run, shop

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
            with pytest.raises(EnvironmentError_, match="match its digest"):
                await env.restore(first)
            assert await env.query() == busy
            await world.root(f"cat /run/copied > {copied}")
            await env.restore(first)
            assert await env.query() == before
            with pytest.raises(EnvironmentError_, match="cannot be read while"):
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
            with pytest.raises(EnvironmentError_, match="match its digest"):
                await env.restore(first)
            assert await env.query() == changed

    run(test)
