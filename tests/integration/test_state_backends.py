"""Each kind of state, in real boxes, while somebody writes."""

from pathlib import Path

import pytest
from benchflow_contracts import EnvironmentError_
from benchflow_kernel import diff_states
from shop import HEAD, rows, run, shop

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
            with pytest.raises(EnvironmentError_, match="match its digest"):
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
            with pytest.raises(EnvironmentError_, match="only a live fork copies it"):
                await world.environment.restore(snap)
            await world.environment.reset()
            with pytest.raises(EnvironmentError_, match="only a live fork copies it"):
                async with world.fork():
                    pass

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
