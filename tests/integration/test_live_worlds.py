"""What each child of one live image has of its own, and what all of them are shown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from benchflow_contracts import Bundle, Door, Endpoint, Process, Sandbox, SandboxSpec
from benchflow_sandbox_local import LocalProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Holds a WAL database open, and asks the model at its one outside address.
SERVICE = """
import sqlite3, sys, urllib.request

conn = sqlite3.connect("/workspace/notes.db", isolation_level=None)
conn.execute("PRAGMA journal_mode = wal").fetchall()
conn.execute("CREATE TABLE note (text TEXT)")

def model():
    return urllib.request.urlopen("http://127.0.0.1:8721/models", timeout=60).read().decode()

for line in sys.stdin:
    conn.execute("INSERT INTO note VALUES (?)", (line.strip(),))
    notes = [text for text, in conn.execute("SELECT text FROM note ORDER BY rowid")]
    print(model(), open("/shown/motto").read(), *notes, flush=True)
"""


@asynccontextmanager
async def upstream(name: str) -> AsyncIterator[Endpoint]:
    """Serve a model that says its name, and knows it only by its own credential."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        said = name if f"key-{name}".encode() in head else "a stranger"
        lines = ("HTTP/1.1 200 OK", f"Content-Length: {len(said)}", "Connection: close", "", said)
        writer.write("\r\n".join(lines).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Endpoint(url=f"http://127.0.0.1:{port}", headers={"Authorization": f"key-{name}"})


async def note(service: Process, text: str) -> list[str]:
    """Let the service write a row; return the model's name, the motto and all rows."""
    await service.stdin.write(f"{text}\n".encode())
    answer = b""
    async with asyncio.timeout(120):
        while not answer.endswith(b"\n"):
            data = await service.stdout.read()
            assert data, await service.stderr.read()
            answer += data
    return answer.decode().split()


async def refuses_writes(box: Sandbox) -> bool:
    done = await box.exec("echo changed > /shown/motto", user="root")
    return not done.ok and "Read-only" in done.stderr


@pytest.mark.usefixtures("root", "criu")
def test_each_child_reaches_its_own_model_and_goes_back_to_the_rows_of_the_fork(
    tmp_path: Path,
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "motto").write_text("carried")
    # Whatever the umask: the service is another user than the one who runs this.
    shown.chmod(0o755)
    (shown / "motto").chmod(0o644)
    bundle = Bundle.of(shown, Path("/shown"))

    def spec(model: Endpoint) -> SandboxSpec:
        return SandboxSpec(network="model-only", doors=(Door.to(model),), bundles=(bundle,))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            names = ("own", "other", "third")
            own, *others = [await stack.enter_async_context(upstream(name)) for name in names]
            provider = await stack.enter_async_context(LocalProvider(store=tmp_path / "store"))
            parent = await provider.create(spec(own))
            service = await parent.spawn(["python3", "-I", "-c", SERVICE])
            assert await note(service, "before") == ["own", "carried", "before"]
            image = await parent.snapshot("live")
            assert await note(service, "later") == ["own", "carried", "before", "later"]
            boxes = [await provider.create(spec(model), image=image) for model in others]
            held = [await box.attach(service.id) for box in boxes]
            first, second = held
            assert await note(first, "mine") == ["other", "carried", "before", "mine"]
            assert await note(second, "yours") == ["third", "carried", "before", "yours"]
            assert await note(service, "last") == ["own", "carried", "before", "later", "last"]
            for box in (parent, *boxes):
                assert await refuses_writes(box)
            assert (shown / "motto").read_text() == "carried"
            for each in (service, *held):
                await each.aclose()

    asyncio.run(main())
