"""What cancel and swap cost in a real `bench serve`, with policy agents in local sandboxes.

- call_cut: from `DELETE` to the moment when the model server sees the end of the call's connection.
- sandboxes_gone: from `DELETE` to the answer, when the service has no sandbox any more.
- swap: `PUT` of new weights while rollouts run. `lost` counts rollouts without a score and calls
  that the record does not have; `mixed` counts calls whose answer is not of the recorded version.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from report import emit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from scripted_llm import ModelReply, ModelRequest, Policy, ScriptedLlm, ToolUse
from serve_process import TASK, Server, serving

CALLS = 5
"""Calls of each rollout of `swap`."""
THINK_SEC = 0.4


class HangingModel:
    """A model server that never answers, and notes when the connection of a call ends."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.cut = threading.Event()
        self.cut_at = 0.0
        self._ready = threading.Event()
        self.url = ""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(size)
        self.asked.set()
        with suppress(ConnectionError):
            await reader.read(1)
        self.cut_at = time.monotonic()
        self.cut.set()
        writer.close()

    async def _serve(self, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        async with server:
            await stop.wait()

    @contextmanager
    def running(self) -> Generator["HangingModel"]:
        """Serve in a thread."""
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=(self._serve(stop),))
        thread.start()
        self._ready.wait()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


def cancel(home: Path, count: int) -> None:
    cuts: list[float] = []
    gone: list[float] = []
    model = HangingModel()
    with model.running(), serving(home, "--agent", "policy") as server:
        body = {"version": "v1", "endpoint": {"url": f"{model.url}/v1", "model": "m"}}
        server.client.put("/v1/policies/p", json=body).raise_for_status()
        for _ in range(count):
            model.asked.clear()
            model.cut.clear()
            ident = server.submit(policy="p")
            assert model.asked.wait(120)
            began = time.monotonic()
            server.client.delete(f"/v1/rollouts/{ident}").raise_for_status()
            gone.append(time.monotonic() - began)
            assert model.cut.wait(60)
            cuts.append(model.cut_at - began)
            assert server.client.get("/v1/capacity").json()["sandboxes"] == 0
    emit("serve_call_cut", [each * 1e3 for each in cuts], limit=500, worst=max(cuts) * 1e3)
    emit("serve_sandboxes_gone", [each * 1e3 for each in gone], limit=2000, worst=max(gone) * 1e3)


def weights(version: str) -> Policy:
    """Return a model that works for some calls, and says its version in each answer."""

    def answer(request: ModelRequest) -> ModelReply:
        time.sleep(THINK_SEC)
        if len(request.tool_results) < CALLS - 1:
            return ModelReply(text=f"by {version}", tools=(ToolUse("shell", {"command": "true"}),))
        return ModelReply(text=f"by {version}")

    return cast("Policy", answer)


def swap(home: Path, count: int) -> None:
    with (
        ScriptedLlm(weights("v1")) as old,
        ScriptedLlm(weights("v2")) as new,
        serving(home, "--agent", "policy", "--slots", count) as server,
    ):
        server.use_policy(old, "v1")
        rollout = {"task": TASK, "policy": "p", "render": "turns"}
        rollout["training"] = {"require_tokens": False}
        body = {"id": "swap", "size": count, "rollout": rollout}
        server.client.post("/v1/groups", json=body).raise_for_status()
        while len(old.requests) < count:  # Each rollout has asked once, on average.
            time.sleep(0.02)
        began = time.monotonic()
        status = server.use_policy(new, "v2", in_flight="swap")
        seconds = time.monotonic() - began
        members = wait_for_group(server)
        facts = count_calls(server, members)
        asked = len(old.requests) + len(new.requests)
        emit(
            "serve_swap",
            [seconds * 1e3],
            rollouts=count,
            swapped=status["swapped"],
            calls=facts["calls"],
            calls_v1=facts["v1"],
            calls_v2=facts["v2"],
            lost=facts["lost"] + asked - facts["calls"],
            mixed=facts["mixed"],
        )


def wait_for_group(server: Server) -> list[dict[str, Any]]:
    while True:
        group = server.client.get("/v1/groups/swap", params={"wait": 30}).json()
        if group["is_ended"]:
            members: list[dict[str, Any]] = group["members"]
            return members


def count_calls(server: Server, members: list[dict[str, Any]]) -> Counter[str]:
    facts: Counter[str] = Counter(calls=0, lost=0, mixed=0, v1=0, v2=0)
    for member in members:
        facts["lost"] += member["outcome"] != "scored"
        rows = server.client.get(f"/v1/rollouts/{member['id']}/result").json()["samples"]
        for row in rows:
            version = row["policy_version"]
            facts["calls"] += 1
            facts[version] += 1
            facts["mixed"] += f"by {version}" not in json.dumps(row["message"])
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancels", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        cancel(home / "cancel", given.cancels)
        swap(home / "swap", given.rollouts)


if __name__ == "__main__":
    main()
