"""Rows and a configuration for NeMo Gym, from our tasks.

Source of the format: nemo-gym 0.4.0, `RolloutCollectionConfig` and `ServerInstanceConfig`; and
nemo-gym 0.7.0, `MaterializedTask` and the configurations of its environment servers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from benchflow_contracts import Task, UsageError
from benchflow_tool_sessions import SessionManager, ToolSpec

from .descriptor import Topology
from .hostile_json import as_object

OUR_SERVER: Final = "benchflow"
"""The name of our servers' implementation in a configuration of NeMo Gym."""
_WAITING_PROGRAM: Final = '''\
"""Runs while a server of BenchFlow answers: NeMo Gym wants a process for each server."""

import socket
import sys
import time

HOST, PORT = {host!r}, {port}

while True:
    try:
        socket.create_connection((HOST, PORT), timeout=10).close()
    except OSError as error:
        sys.exit(f"the server of BenchFlow at {{HOST}}:{{PORT}} does not answer: {{error}}")
    time.sleep(2)
'''
AGENT: Final = "benchflow_simple_agent"
EPISODES: Final = "benchflow_episodes"
EnvironmentServer = Literal["legacy_agent", "single_agent_turn"]
"""An environment server of NeMo Gym 0.7: one that calls `/run` of an agent, or one that seeds the
session itself, lets the agent act once, verifies, and closes the session."""
_EPISODE_SEC: Final = {"default_episode_timeout_seconds": 21600, "cleanup_timeout_seconds": 180}


def make_row(task: Task, tools: Sequence[ToolSpec], *, agent: str = AGENT) -> dict[str, Any]:
    """Return the row of a task: its instruction, its tools, its id, and the agent that plays it.

    `submit` is left out, because `/verify` submits.
    """
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": task.instruction}],
            "tools": [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.input_schema),
                    "strict": False,
                }
                for tool in tools
                if tool.name != "submit"
            ],
            "parallel_tool_calls": False,
        },
        "verifier_metadata": {"task_id": task.id},
        "agent_ref": {"type": "responses_api_agents", "name": agent},
    }


def episode_row(row: Mapping[str, Any], *, taskset: str = "benchflow") -> dict[str, Any]:
    """Return a row as a task of an environment server of NeMo Gym 0.7, which routes by taskset."""
    data = row["verifier_metadata"]
    return {
        "task_id": {"taskset": taskset, "task_id": data["task_id"]},
        "task_input": {
            "responses_create_params": row["responses_create_params"],
            "task_data": {"verifier_metadata": data},
        },
    }


async def task_rows(
    manager: SessionManager,
    tasks: Iterable[Task],
    *,
    agent: str = AGENT,
    topology: Topology = "env-sandboxed",
) -> list[dict[str, Any]]:
    """Return the rows of tasks.

    If the agent acts by tools, each task is started once, because its sandbox says its tools. In
    the other topologies the rows have no tools.

    Raises:
        BenchFlowError: A task does not start.
    """
    rows: list[dict[str, Any]] = []
    for task in tasks:
        if topology != "env-sandboxed":
            rows.append(make_row(task, (), agent=agent))
            continue
        session = await manager.open(task)
        try:
            rows.append(make_row(task, await session.tools(), agent=agent))
        finally:
            await manager.close(session.id)
    return rows


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write rows as JSON lines; return their number."""
    number = 0
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows, 1):  # noqa: B007 - the last value is returned
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return number


def make_config(
    resources_url: str,
    *,
    agent_url: str | None = None,
    resources_name: str = "benchflow",
    agent: str = AGENT,
    model_server: str = "policy_model",
    max_steps: int = 100,
    environment_server: EnvironmentServer | None = None,
) -> dict[str, Any]:
    """Return a configuration of NeMo Gym with our server, which runs already.

    JSON is YAML, so `json.dumps` of it is a configuration file. `write_project` writes the file and
    the directories that NeMo Gym's commands need beside it.

    Args:
        resources_url: The URL of our resources server.
        agent_url: The URL of our agent server (default: NeMo Gym starts its `simple_agent`).
        resources_name: The name of the resources server.
        agent: The name of the agent, as in the rows.
        model_server: The name of the model server in another configuration file.
        max_steps: The most model calls of `simple_agent`.
        environment_server: The kind of environment server, which NeMo Gym 0.7 needs and 0.4 does
            not know.

    Raises:
        UsageError: A URL has no host or port.
    """
    served: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": resources_name},
        "model_server": {"type": "responses_api_models", "name": model_server},
    }
    chosen: dict[str, Any] = {
        "simple_agent": {"entrypoint": "app.py", "max_steps": max_steps, **served}
    }
    if agent_url is not None:
        chosen = {OUR_SERVER: {**_address(agent_url), **served}}
    episodes: dict[str, Any] = {}
    if environment_server is not None:
        settings: dict[str, Any] = {"agent_server": {"type": "responses_api_agents", "name": agent}}
        if environment_server == "single_agent_turn":
            settings["resources_server"] = served["resources_server"]
            settings |= {"resources_tool_transports": ["direct_http"], **_EPISODE_SEC}
        chosen_server = {"entrypoint": "app.py", **settings}
        episodes = {EPISODES: {"environment_servers": {environment_server: chosen_server}}}
    return {
        **episodes,
        resources_name: {
            "resources_servers": {
                OUR_SERVER: {**_address(resources_url), "domain": "agent", "verified": False}
            }
        },
        agent: {"responses_api_agents": chosen},
    }


def write_project(
    directory: Path, rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any]
) -> None:
    """Write `rows.jsonl`, `benchflow.yaml` and the directories of our servers.

    NeMo Gym's commands start a process for each server of a configuration, in a directory with
    the name of the server. That of our server is a program that runs while our server answers. Run
    the commands in `directory`.

    Args:
        directory: An existing directory. Files of an earlier call are replaced.
        rows: The rows.
        config: The configuration, as of `make_config`.
    """
    write_rows(rows, directory / "rows.jsonl")
    (directory / "benchflow.yaml").write_text(json.dumps(config, indent=2) + "\n")
    for kind, address in _our_servers(config):
        home = directory / kind / OUR_SERVER
        home.mkdir(parents=True, exist_ok=True)
        (home / "requirements.txt").write_text("# The program needs no package.\n")
        program = _WAITING_PROGRAM.format(host=address["host"], port=address["port"])
        (home / "app.py").write_text(program)


def _our_servers(config: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the settings of each of our servers in a configuration."""
    return [
        (kind, as_object(as_object(servers)[OUR_SERVER]))
        for instance in config.values()
        for kind, servers in as_object(instance).items()
        if OUR_SERVER in as_object(servers)
    ]


def _address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        raise UsageError(f"the URL {url!r} of a server has no host or port")
    return {"entrypoint": "app.py", "host": parts.hostname, "port": parts.port}
