"""Tasks of an ORS server in our rollouts: a session is a world, its tools are tools of the agent.

Each reward of a call is an event of the step that made the call. The return is their sum, unless
the task says `last` or `max`. A fork repeats the recorded calls in a new session, because the
standard does not copy a session.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from benchflow_contracts import (
    DataTask,
    EnvironmentFactory,
    Model,
    Task,
    TaskConfig,
    TaskError,
    TaskSplit,
    UsageError,
)
from benchflow_env_outside import (
    EMPTY_SCHEMA,
    Conversation,
    WorldAnswer,
    WorldTool,
    expect_trusted,
    outside_environment,
    read_options,
    secret_for,
    world_url,
)
from benchflow_env_outside import ImageBlock as WorldImage
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from .client import OrsClient, OrsSession
from .errors import OrsError
from .wire import Block, ImageBlock, TaskPage, TerminalTool, TextBlock, ToolFailure, ToolSuccess

API_KEY: Final = "BENCHFLOW_ORS_API_KEY"
"""The operator's variable with the key of the servers."""
SECRETS: Final = "BENCHFLOW_ORS_SECRETS"
"""The operator's variable with secrets for the worlds, as JSON `{"NAME": "value"}`."""
_PROVIDER: Final = "ors"
_RANGE: Final = (-1e6, 1e6)
"""The standard does not bound a reward."""
_T = TypeVar("_T")
_SECRETS: Final = TypeAdapter(dict[str, str])


class OrsSettings(Model):
    """`[environment.options]` of a task of an ORS server."""

    url: str
    environment: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    snapshots: Literal["replay", "none"] = "replay"
    toolset: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]+$")
    """More tools for the session, by a name that the server knows, such as `cli`."""


class OrsWorld:
    """One session of an ORS server as a world of a rollout."""

    def __init__(self, settings: OrsSettings) -> None:
        self._settings = settings
        self._client: OrsClient | None = None
        self._session: OrsSession | None = None
        self._terminal: TerminalTool | None = None

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        """Create the session, and return its prompt. The standard has no seed."""
        del seed
        secrets = secrets_for(self._settings.url)
        name = self._settings.environment
        self._client = client = client_for(self._settings.url)
        self._session = session = OrsSession(
            client,
            name,
            task.get("task_spec") or {},
            secrets=secrets,
            toolset=self._settings.toolset,
        )
        await session.open()
        return WorldAnswer(_content(await session.prompt()))

    async def tools(self) -> Sequence[WorldTool]:
        """Return the tools that the model may see."""
        listed = await self._opened().tools()
        self._terminal = listed.terminal_tool
        return [
            WorldTool(tool.name, tool.description, tool.input_schema or EMPTY_SCHEMA)
            for tool in listed.tools
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        """Call a tool of the session."""
        return _answer(await self._opened().call(name, arguments))

    async def finish(self, conversation: Conversation) -> WorldAnswer | None:
        """Pass the last message to the terminal tool, if the episode has not ended."""
        session, tool = self._opened(), self._terminal
        if tool is None or session.is_finished:
            return None
        given = {} if tool.arg is None else {tool.arg: conversation.last_message}
        result = await session.call(tool.name, given)
        if isinstance(result, ToolFailure):
            raise OrsError(f"the terminal tool {tool.name!r} failed: {result.error}")
        return _answer(result)

    async def close(self) -> None:
        """Delete the session."""
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> OrsSession:
        if self._session is None:
            raise OrsError("the session is not open")
        return self._session


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a task. The entry point of `benchflow.environments`.

    Raises:
        TaskError: The options are malformed, or the address is not allowed.
    """
    del manifest
    settings = settings_of(task)
    return outside_environment(
        task, _PROVIDER, lambda: OrsWorld(settings), snapshots=settings.snapshots
    )


def settings_of(task: Task) -> OrsSettings:
    """Return the settings of a task.

    Raises:
        TaskError: The options are malformed, or the address is not allowed.
    """
    settings = read_options(
        OrsSettings, task, hint="write [environment.options] with url and environment"
    )
    return settings.model_copy(update={"url": world_url(settings.url)})


class OrsTasks:
    """The tasks of `ors://HOST:PORT/ENVIRONMENT`. With TLS: `ors://https://HOST/ENVIRONMENT`.

    `ENVIRONMENT@TOOLSET` adds a toolset of the server to each session.
    """

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the splits of the environment.

        Raises:
            TaskError: The server does not answer, or does not have the environment.
        """
        url, name = _address(address)

        async def read(client: OrsClient) -> list[TaskSplit]:
            return [
                TaskSplit(
                    name=split.name, purpose=split.type, size=await client.count(name, split.name)
                )
                for split in await client.splits(name)
            ]

        return _ask(url, read)

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return tasks of a split. Without a split, the environment must have only one.

        Raises:
            TaskError: As `splits`.
            UsageError: The split is unknown or must be named.
        """
        url, name = _address(address)

        async def read(client: OrsClient) -> tuple[str, TaskPage]:
            names = [each.name for each in await client.splits(name)]
            chosen = _chosen(split, names, address)
            return chosen, await client.tasks(name, chosen, start, start + limit)

        chosen, page = _ask(url, read)
        numbered = enumerate(page.tasks[:limit], start)
        options = {"url": url, "environment": page.env_name or name}
        if toolset := address.rpartition("/")[2].partition("@")[2]:
            options["toolset"] = toolset
        return [_task(options, chosen, *each) for each in numbered]


def _task(options: Mapping[str, str], split: str, number: int, spec: JsonValue) -> DataTask:
    name = options["environment"]
    if not isinstance(spec, dict):
        raise TaskError(f"task {number} of {name!r} is not a JSON object")
    slug = "".join(c if c.isalnum() and c.isascii() else "-" for c in f"{name}-{split}".lower())
    config = {
        "name": f"{slug.strip('-') or 'ors'}/{number}",
        "environment": {"provider": _PROVIDER, "options": options},
        "verifier": {"type": "environment", "options": {"rule": "sum"}, "reward_range": _RANGE},
    }
    return DataTask(
        config=TaskConfig.model_validate(config),
        instruction="Follow the instructions of the environment.",
        data={"task_spec": spec},
    )


def _chosen(split: str | None, names: Sequence[str], address: str) -> str:
    found = [name for name in names if split in {None, name}]
    if len(found) != 1:
        raise UsageError(
            f"ors://{address} has the splits {', '.join(names)}",
            hint="name one of them: ?split=NAME",
        )
    return found[0]


def _address(address: str) -> tuple[str, str]:
    text = address if address.startswith(("http://", "https://")) else f"http://{address}"
    base, _, name = text.rstrip("/").rpartition("/")
    if base.endswith(":/") or not name:
        raise UsageError(
            f"ors://{address} does not name an environment", hint="give ors://HOST:PORT/ENVIRONMENT"
        )
    return world_url(base, where=f"ors://{address}"), name.partition("@")[0]


def _ask(url: str, read: Callable[[OrsClient], Awaitable[_T]]) -> _T:
    async def ask() -> _T:
        async with client_for(url, start_sec=30) as client:
            return await read(client)

    try:
        # The caller may be inside of an event loop, which cannot run another one.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, ask()).result()
    except OrsError as error:
        raise TaskError(f"cannot read the tasks of {url}: {error}", hint=error.hint) from error


def client_for(url: str, start_sec: float = 600) -> OrsClient:
    """Return a client with the operator's key. The key goes only to a trusted host."""
    return OrsClient(url, api_key=secret_for(url, API_KEY), start_sec=start_sec)


def secrets_for(url: str) -> dict[str, str]:
    """Return the operator's secrets for a server, which must be a trusted host."""
    text = os.environ.get(SECRETS)
    if not text:
        return {}
    expect_trusted(url, SECRETS)
    try:
        return _SECRETS.validate_json(text)
    except ValidationError:
        raise UsageError(
            f"${SECRETS} is not JSON of names and texts", hint='give {"NAME": "value"}'
        ) from None


def _answer(result: ToolSuccess | ToolFailure) -> WorldAnswer:
    if isinstance(result, ToolFailure):
        return WorldAnswer(result.error, failed=True)
    output = result.output
    # Metadata is for the trainer: it may have the answer of the task.
    return WorldAnswer(_content(output.blocks), reward=output.reward, finished=output.finished)


def _content(blocks: Sequence[Block]) -> list[str | WorldImage]:
    return [_part(block) for block in blocks]


def _part(block: TextBlock | ImageBlock) -> str | WorldImage:
    if isinstance(block, TextBlock):
        return block.text
    return WorldImage(block.data, block.mimeType)
