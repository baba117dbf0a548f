"""A real registry on the loopback of an engine of the test's own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from watching import until

from . import OwnEngine

_CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
_AUTH = "auth: {{htpasswd: {{realm: test, path: {root}/users}}}}\n"
_USER = "user:$2b$04$gYWan9K8ZiCHgoscze8xDeylLyqD35k3Jgs747LAAl5jXPYKbYTK.\n"
"""Whose word is `word`."""


@contextmanager
def registry(
    engine: OwnEngine, program: str, root: Path, port: int, *, users: bool = False
) -> Iterator[str]:
    """Serve the images under `root`; with `users` only to one, whose word is `word`."""
    text = _CONFIG + (_AUTH if users else "")
    config = root / f"{port}.yml"
    config.write_text(text.format(root=root, port=port))
    (root / "users").write_text(_USER)
    with beside(engine, [program, "serve", config], port):
        yield f"127.0.0.1:{port}"


@contextmanager
def beside(engine: OwnEngine, command: list[str | Path], port: int) -> Iterator[None]:
    """Run a server on the loopback of the engine; it answers at a port."""
    with (engine.home / f"{port}.log").open("wb") as log:
        process = subprocess.Popen([*engine.inside, *command], stdout=log, stderr=log)
        try:
            until("a server that answers", lambda: _listens(process.pid, port))
            yield
        finally:
            process.terminate()
            process.wait()


def _listens(pid: int, port: int) -> bool:
    table = Path(f"/proc/{pid}/net/tcp").read_text()
    return f":{port:04X} {'0' * 8}:0000 0A" in table
