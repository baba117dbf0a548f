"""Environments of verifiers as worlds of BenchFlow's rollouts."""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

from benchflow_contracts import (
    DataTask,
    EnvironmentError_,
    EnvironmentFactory,
    Task,
    TaskConfig,
    TaskError,
    TaskSplit,
    UsageError,
)
from benchflow_env_outside import (
    Conversation,
    WorldAnswer,
    WorldLimits,
    WorldTool,
    outside_environment,
)

from .host_process import HostProcess, as_object, host_process

ARGUMENTS_VARIABLE: Final = "BENCHFLOW_VERIFIERS_ARGS"
"""The operator's variable with the arguments of the environment, as a JSON object."""
_LIMITS: Final = WorldLimits(open_sec=600)
"""The first episode of a process waits until the environment is imported and loaded."""
_IDENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,79})?")


class VerifiersClient:
    """One episode of an environment of verifiers. Each model call of its rollout is the agent's.

    A tool call of the agent is one answer of the model with one tool call. The last message of the
    agent is the last answer.
    """

    def __init__(self, ident: str, arguments: Mapping[str, Any]) -> None:
        self._ident, self._arguments = ident, arguments
        self._session = uuid4().hex
        self._host: HostProcess | None = None
        self._tools: Sequence[WorldTool] = ()

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        """Begin the episode. Environments of verifiers do not have seeds."""
        del seed
        self._host = await asyncio.to_thread(host_process, self._ident, self._arguments)
        found = as_object(await self._host.ask("open", session=self._session, data=task["data"]))
        self._tools = [_tool(each) for each in found["tools"]]
        return WorldAnswer(found["prompt"])

    async def tools(self) -> Sequence[WorldTool]:
        """Return the tools of the environment; `say` if it converses in several turns."""
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        """Let the environment answer a tool call."""
        answer = await self._ask("call", name=name, arguments=dict(arguments))
        return WorldAnswer(
            answer["text"],
            finished=answer.get("finished", False),
            failed=answer.get("failed", False),
        )

    async def finish(self, conversation: Conversation) -> WorldAnswer:
        """Return the reward that verifiers gives to the episode."""
        answer = await self._ask("finish", message=conversation.last_message)
        return WorldAnswer(reward=answer["reward"], parts=answer["parts"], finished=True)

    async def close(self) -> None:
        """Cancel the rollout if it still runs."""
        if self._host is not None and self._host.is_alive:
            await self._host.ask("close", session=self._session)

    async def _ask(self, method: str, **params: object) -> dict[str, Any]:
        if self._host is None:
            raise EnvironmentError_(f"{self._ident!r} of verifiers has no open episode")
        return as_object(await self._host.ask(method, session=self._session, **params))


def _tool(found: Mapping[str, Any]) -> WorldTool:
    schema = cast("Mapping[str, Any]", found.get("parameters") or {})
    return WorldTool(
        name=found["name"],
        description=found.get("description") or "",
        input_schema={"type": "object", "properties": {}, **schema},
    )


def environment_of(task: Task) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of the environment of verifiers that a task names.

    They are options of its environment, or of a verifier of the type `verifiers`.

    Raises:
        TaskError: The options of the task do not name an environment.
    """
    verifier, table = task.config.verifier, "environment"
    options = task.config.environment.options
    if verifier.type == "verifiers" and "env" in verifier.options:
        options, table = verifier.options, "verifier"
    ident, arguments = options.get("env"), options.get("args", {})
    if not isinstance(ident, str) or not _IDENT.fullmatch(ident) or not isinstance(arguments, dict):
        raise TaskError(
            f"task {task.id!r} names the environment {ident!r} of verifiers",
            where=f"task.toml:{table}.options.env",
            hint="name an installed environment, as verifiers' eval command does",
        )
    return ident, cast("dict[str, Any]", arguments)


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a task: the entry point `verifiers` of `benchflow.environments`.

    Raises:
        TaskError: The options of the task do not name an environment.
    """
    del manifest
    found, given = environment_of(task)
    snapshots = task.config.environment.options.get("snapshots", "replay")
    if snapshots not in {"replay", "none"}:
        raise TaskError(
            f"an environment of verifiers cannot have snapshots {snapshots!r}",
            where="task.toml:environment.options.snapshots",
            hint="set 'replay' or 'none'",
        )
    return outside_environment(
        task,
        "verifiers",
        lambda: VerifiersClient(found, given),
        snapshots=snapshots,
        limits=_LIMITS,
    )


class VerifiersTasks:
    """The tasks of `verifiers://ENV`: the entry point `verifiers` of `benchflow.task_sources`."""

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return `train` and `eval` of an environment, or `all` of a taskset."""
        found = self._describe(address)
        purposes = {"train": "train", "eval": "validation"}
        return [
            TaskSplit.model_validate({"name": name, "size": size, "purpose": purposes.get(name)})
            if name in purposes
            else TaskSplit(name=name, size=size)
            for name, size in found["splits"].items()
        ]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return rows of the dataset, or tasks of the taskset, as tasks.

        Raises:
            TaskError: The environment cannot be loaded, or its data is not JSON.
            UsageError: The split is unknown.
        """
        host, arguments = self._host(address)
        described = self._describe(address)
        if split is not None and split not in described["splits"]:
            names = ", ".join(described["splits"])
            raise UsageError(f"{address!r} has no split {split!r}", hint=f"it has {names}")
        low, high = described["reward_range"]
        rule = "none" if described["scores_groups"] else "last"
        rows = _result(address, host, "tasks", split=split, start=start, limit=limit)
        name = re.sub(r"[^a-z0-9._-]", "-", address.rsplit("/", 1)[-1].lower())
        return [
            DataTask(
                config=TaskConfig.model_validate(
                    {
                        "name": f"{name}/{split or 'all'}-{start + at}",
                        "environment": {
                            "provider": "verifiers",
                            "options": {"env": address, "args": arguments},
                        },
                        "verifier": {
                            "type": "environment",
                            "options": {"rule": rule},
                            "reward_range": [low, high],
                        },
                    }
                ),
                instruction=row["prompt"] or "Follow the environment.",
                data={"data": row["data"]},
            )
            for at, row in enumerate(rows)
        ]

    def _describe(self, address: str) -> dict[str, Any]:
        host, _ = self._host(address)
        return as_object(_result(address, host, "describe"))

    def _host(self, address: str) -> tuple[HostProcess, dict[str, Any]]:
        if not _IDENT.fullmatch(address):
            raise UsageError(
                f"{address!r:.100} is not the id of an environment of verifiers",
                hint="verifiers://gsm8k?split=train",
            )
        text = os.environ.get(ARGUMENTS_VARIABLE) or "{}"
        arguments = _arguments(text)
        try:
            return host_process(address, arguments), arguments
        except EnvironmentError_ as error:
            raise TaskError(str(error), hint="try it with verifiers' own command first") from error


def _arguments(text: str) -> dict[str, Any]:
    try:
        return as_object(json.loads(text))
    except (ValueError, EnvironmentError_) as error:
        raise UsageError(
            f"${ARGUMENTS_VARIABLE} is not a JSON object", hint='such as {"num_examples": 100}'
        ) from error


def _result(address: str, host: HostProcess, method: str, **params: object) -> Any:  # noqa: ANN401 - JSON
    try:
        return host.request(method, **params).result()
    except EnvironmentError_ as error:
        raise TaskError(
            f"verifiers://{address} cannot be read: {error}",
            hint="try it with verifiers' own command first",
        ) from error
