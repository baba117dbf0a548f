# pyright: basic, reportMissingImports=false
# mypy: ignore-errors
"""The requests of the host: JSON lines on the standard input, answers on the standard output."""

import asyncio
import importlib.util
import json
import math
import os
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

from .exchange import OVER, STOP, Exchange, Turn, UnsupportedError, Verdict, text_of

SAY = {
    "name": "say",
    "description": "Say your next message to the environment. The result is its answer.",
    "parameters": {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
}
"""The tool by which an agent takes part in a conversation of several turns."""


@dataclass
class Session:
    """One episode of an agent."""

    exchange: Exchange = field(default_factory=Exchange)
    said: bool = False


class EpisodeError(Exception):
    """An episode has no reward."""


class Host:
    """The environment of this process, and its sessions."""

    def __init__(self, ident: str, arguments: dict[str, Any]) -> None:
        self._worlds = _load(ident, arguments)
        self._sessions: dict[str, Session] = {}

    async def describe(self) -> dict[str, Any]:
        """Return the splits, the range of rewards, and whether only groups have rewards."""
        splits = await asyncio.to_thread(self._worlds.splits)
        return {
            "splits": splits,
            "reward_range": self._worlds.reward_range(),
            "scores_groups": self._worlds.scores_groups,
        }

    async def tasks(self, split: str | None, start: int, limit: int) -> list[dict[str, Any]]:
        """Return tasks as data."""
        return await asyncio.to_thread(self._worlds.tasks, split, start, limit)

    async def open(self, session: str, data: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode; return the prompt and the tools."""
        found = self._sessions[session] = Session()
        exchange = found.exchange
        first = await exchange.begin(self._worlds.run(data, exchange, session))
        if isinstance(first, Verdict):
            raise EpisodeError(first.error or "the episode ended before its first model call")
        tools = list(exchange.tools)
        if self._worlds.speaks:
            if any(tool["name"] == SAY["name"] for tool in tools):
                raise UnsupportedError("the environment has a tool 'say' of its own", "tools")
            tools.append(SAY)
        prompt = text_of([each for each in first.messages if each.get("role") != "assistant"])
        return {"prompt": prompt, "tools": tools}

    async def call(self, session: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Answer the model call that waits by a tool call; return what the environment says."""
        found = self._sessions[session]
        action = {"tool": name, "arguments": arguments}
        if self._worlds.speaks and name == SAY["name"]:
            message = arguments.get("message")
            if not isinstance(message, str):
                return {"text": "message must be a string", "failed": True}
            action, found.said = {"content": message}, True
        then = await found.exchange.act(action)
        if isinstance(then, Turn):
            return {"text": text_of(then.messages)}
        if then.error is not None:
            raise EpisodeError(then.error)
        return {"text": text_of(then.tail) or OVER, "finished": True}

    async def finish(self, session: str, message: str) -> dict[str, Any]:
        """End an episode with the last message of the agent; return the verdict."""
        found = self._sessions[session]
        then: Turn | Verdict | None = found.exchange.verdict
        if then is None and not found.said:
            then = await found.exchange.act({"content": message})
        if not isinstance(then, Verdict):
            then = await found.exchange.act(STOP)
        if not isinstance(then, Verdict):
            raise EpisodeError("the environment goes on after its agent has ended")
        if self._worlds.scores_groups and then.error is None:
            return {"reward": None, "parts": {}}
        return _reward_of(then)

    async def score(
        self, data: dict[str, Any] | None, digest: str | None, messages: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Score the messages of a trace that ended elsewhere; return the verdict."""
        return _reward_of(await self._worlds.score(data, digest, messages))

    async def score_group(
        self, data: dict[str, Any], candidates: list[list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Score episodes of one task together by their messages; return the verdicts."""
        verdicts = await self._worlds.score_group(data, candidates)
        return [_reward_of(verdict) for verdict in verdicts]

    async def close(self, session: str) -> None:
        """End a session. A session that is unknown has ended."""
        found = self._sessions.pop(session, None)
        if found is not None:
            await found.exchange.close()


def _reward_of(verdict: Verdict) -> dict[str, Any]:
    if verdict.error is not None or verdict.reward is None or not math.isfinite(verdict.reward):
        raise EpisodeError(verdict.error or f"the reward is {verdict.reward}")
    parts = {name: value for name, value in verdict.parts.items() if math.isfinite(value)}
    return {"reward": verdict.reward, "parts": parts}


def _load(ident: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - one of two classes
    """Return the worlds of a taskset, or of an environment of an older version."""
    if importlib.util.find_spec("verifiers.legacy") is not None:
        from .legacy import LegacyWorlds  # noqa: PLC0415 - only one version is installed

        return LegacyWorlds(ident, arguments)
    from .v1 import V1Worlds  # noqa: PLC0415

    return V1Worlds(ident, arguments)


def _failure(error: Exception) -> dict[str, str]:
    if isinstance(error, UnsupportedError):
        return {"error": str(error)[:4000], "field": error.field}
    return {"error": f"{type(error).__name__}: {error}"[-4000:]}


async def _serve(host: Host, answers: int) -> None:
    reader = asyncio.StreamReader(limit=64 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    names = ("describe", "tasks", "open", "call", "finish", "score", "score_group", "close")
    methods = {name: getattr(host, name) for name in names}

    async def answer(request: dict[str, Any]) -> None:
        message: dict[str, Any] = {"id": request["id"]}
        try:
            message["result"] = await methods[request["method"]](**request["params"])
            line = json.dumps(message, allow_nan=False)
        except Exception as error:  # noqa: BLE001 - a failure of any environment is an answer
            line = json.dumps({"id": request["id"], **_failure(error)})
        os.write(answers, line.encode() + b"\n")

    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = loop.create_task(answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()
    await host._worlds.aclose()  # noqa: SLF001 - the process ends


def main(ident: str, arguments: str) -> None:
    """Serve one environment until the standard input ends."""
    # Environments print. Only this descriptor still leads to the caller.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        host = Host(ident, json.loads(arguments))
    except Exception as error:
        os.write(answers, json.dumps({"id": 0, **_failure(error)}).encode() + b"\n")
        raise SystemExit(1) from error
    os.write(answers, b'{"id": 0, "result": null}\n')
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_serve(host, answers))
    except BaseException:  # noqa: BLE001 - also the end of the process
        # Code of an environment may end the process. Waiting for its other tasks may take for ever.
        traceback.print_exc()
        os._exit(1)
