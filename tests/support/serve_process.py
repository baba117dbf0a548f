"""`bench serve` as a process that a test can kill and start again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from scripted_llm import ScriptedLlm

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"
TASK = "clawsbench/archive-newsletters"
ARCHIVE = (TASKS / "archive-newsletters/solution/solve.sh").read_text()
BENCH = Path(sys.executable).with_name("bench")


@dataclass
class Server:
    """A server process of a directory, which may be killed and started again."""

    home: Path
    words: tuple[object, ...] = ()
    tasks: Path = TASKS
    fault: str | None = None
    """Code of Python that the process runs before it serves."""
    process: subprocess.Popen[str] = field(init=False)
    client: httpx.Client = field(init=False)

    def start(self) -> None:
        words = ("serve", self.tasks, "--dir", self.home, "--port", "0", "--json", *self.words)
        program = [str(BENCH)]
        if self.fault is not None:
            program = [
                sys.executable,
                "-c",
                f"{self.fault}\nfrom benchflow.cli import main; main()",
            ]
        self.process = subprocess.Popen(
            [*program, *map(str, words)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        token = Path(ready["token_file"]).read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=ready["url"], headers=headers, timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        code = self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.client.close()
        return code

    def submit(self, **fields: Any) -> str:
        given = self.client.post("/v1/rollouts", json={"task": TASK, **fields})
        assert given.status_code == 202, given.text
        ident: str = given.json()["id"]
        return ident

    def status(self, ident: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/rollouts/{ident}").json()
        return found

    def wait(self, ident: str, state: str = "ended") -> dict[str, Any]:
        until = time.monotonic() + 120
        while (found := self.status(ident))["state"] != state:
            assert time.monotonic() < until, found
            time.sleep(0.05)
        return found

    def use_policy(self, llm: ScriptedLlm, version: str, **fields: Any) -> dict[str, Any]:
        endpoint = {"url": f"{llm.url}/v1", "model": "scripted"}
        body = {"version": version, "endpoint": endpoint, **fields}
        given = self.client.put("/v1/policies/p", json=body)
        assert given.status_code == 200, given.text
        result: dict[str, Any] = given.json()
        return result


@contextmanager
def serving(
    home: Path, *words: object, tasks: Path = TASKS, fault: str | None = None
) -> Generator[Server]:
    server = Server(home, words, tasks, fault)
    server.start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.end()
