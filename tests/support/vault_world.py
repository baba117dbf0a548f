"""A foreign environment for tests: a vault behind HTTP, with a client and a task source.

One session is one vault. `try` compares a number with the secret one, and the right number ends
the episode with a reward of 1. A wrong one costs 0.1.
"""

import asyncio
import json
import os
import random
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    DataTask,
    EnvironmentFactory,
    Task,
    TaskConfig,
    TaskSplit,
    WorldSnapshots,
)
from benchflow_env_outside import WorldAnswer, WorldTool, outside_environment

_SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


@dataclass
class Vault:
    """The server: its address, and what happened in it."""

    url: str = ""
    drifts: bool = False
    """Whether no session repeats what another one said."""
    open: set[str] = field(default_factory=set[str])
    tries: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    started: int = 0
    secrets: dict[str, int] = field(default_factory=dict[str, int])

    def begin(self, body: dict[str, Any]) -> dict[str, Any]:
        session = f"s{self.started}"
        self.started += 1
        self.open.add(session)
        self.secrets[session] = body["task"]["secret"]
        prompt = f"Open vault {body['task']['vault']}. Call try with a number of 0 to 99."
        return {"session": session, "prompt": prompt}

    def attempt(self, body: dict[str, Any]) -> dict[str, Any]:
        session, number = body["session"], body["number"]
        self.tries.append((session, number))
        secret = self.secrets[session]
        if number == secret:
            return {"text": "open", "reward": 1.0, "finished": True}
        text = "too low" if number < secret else "too high"
        if self.drifts:
            text += f" at {random.random()}"
        return {"text": text, "reward": -0.1, "finished": False}

    def end(self, body: dict[str, Any]) -> dict[str, Any]:
        self.open.discard(body["session"])
        return {}


@contextmanager
def vault_server() -> Iterator[Vault]:
    """Serve vaults on loopback."""
    vault = Vault()
    methods = {"/begin": vault.begin, "/try": vault.attempt, "/end": vault.end}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = json.dumps(methods[self.path](body)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    vault.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield vault
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class VaultClient:
    """The adapter's part: about what a third party writes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = ""

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        answer = await self._post("/begin", {"task": dict(task), "seed": seed})
        self._session = answer["session"]
        return WorldAnswer(answer["prompt"])

    async def tools(self) -> Sequence[WorldTool]:
        return [WorldTool("try", "Compare a number with the secret one.", _SCHEMA)]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        number = arguments.get("number")
        if not isinstance(number, int):
            return WorldAnswer("number must be an integer", failed=True)
        answer = await self._post("/try", {"session": self._session, "number": number})
        return WorldAnswer(answer["text"], reward=answer["reward"], finished=answer["finished"])

    async def close(self) -> None:
        if self._session:
            await self._post("/end", {"session": self._session})

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(_post, self._url + path, body)


def _post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as response:
        found: dict[str, Any] = json.load(response)
        return found


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a task; what an entry point of `benchflow.environments` names."""
    del manifest
    options = task.config.environment.options
    snapshots: WorldSnapshots = options.get("snapshots", "replay")
    url = os.environ.get("VAULT_URL") or options["url"]
    return outside_environment(task, "vault", lambda: VaultClient(url), snapshots=snapshots)


class VaultTasks:
    """One split that ends, and one without end."""

    def splits(self, address: str) -> Sequence[TaskSplit]:
        del address
        return [TaskSplit(name="test", purpose="test", size=3), TaskSplit(name="endless")]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        end = start + limit if split == "endless" else min(start + limit, 3)
        return [vault_task(number, f"http://{address}") for number in range(start, end)]


def vault_task(number: int, url: str, **options: Any) -> DataTask:
    """Return one task. Its secret is the number of the vault times 7."""
    config = {
        "name": f"vault/{number}",
        "environment": {"provider": "vault", "options": {"url": url, **options}},
        "verifier": {"type": "environment", "reward_range": [-10.0, 1.0]},
    }
    return DataTask(
        config=TaskConfig.model_validate(config),
        instruction="Open the vault.",
        data={"vault": number, "secret": number * 7 % 100},
    )
