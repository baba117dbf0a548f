"""Lower `[environment]`, the environment of a verifier, and their variables."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypedDict

from benchflow_contracts import (
    Healthcheck,
    ImageRecipe,
    McpServer,
    SetupCommand,
    TaskEnvironment,
)

from benchflow_adapters_harbor.config import (
    HarborEnvironment,
    NetworkPolicy,
)
from benchflow_adapters_harbor.config import (
    Healthcheck as HarborHealthcheck,
)
from benchflow_adapters_harbor.config.environment import HarborMcpServer

Network = Literal["none", "allowlist", "public"]

NETWORKS: Final[dict[str, Network]] = {
    "no-network": "none",
    "allowlist": "allowlist",
    "public": "public",
}
_LOGS = "/logs/agent /logs/verifier /logs/artifacts"
_MAKE_LOGS = SetupCommand(command=f"mkdir -p {_LOGS} && chmod 777 {_LOGS}", timeout_sec=60, cwd="/")
"""Create the directories that Harbor mounts into each container."""
_SHORTEST_SEC = 0.01


def lower_environment(environment: HarborEnvironment, network: NetworkPolicy) -> TaskEnvironment:
    """Convert `environment` with the network `network`.

    The user is the image's own. An amount of 0 sets no limit. A healthcheck runs at least once.
    """
    check = environment.healthcheck
    return TaskEnvironment(
        image=environment.docker_image or None,
        workdir=environment.workdir or "",
        user="",
        **variables(environment.env),
        keep_entrypoint=True,
        network=NETWORKS[network.network_mode],
        allowed_hosts=network.allowed_hosts,
        mcp_servers=tuple(map(_server, environment.mcp_servers)),
        skills_dir=environment.skills_dir or None,
        image_timeout_sec=environment.build_timeout_sec,
        healthcheck=None if check is None else lower_healthcheck(check),
        setup_commands=(_MAKE_LOGS,),
        memory_mb=environment.memory_mb or None,
        cpus=environment.cpus or None,
        storage_mb=environment.storage_mb or None,
        uncapped=True,
    )


def recipe(environment: HarborEnvironment, context: Path) -> ImageRecipe | None:
    """Return the recipe of the image, or None if `environment` names an image."""
    if environment.docker_image:
        return None
    return ImageRecipe(context=context, timeout_sec=environment.build_timeout_sec)


def user_name(user: str | int | None) -> str:
    """Return the user as text. The empty text is the image's own user."""
    return "" if user is None else str(user)


def lower_healthcheck(check: HarborHealthcheck) -> Healthcheck:
    """Convert a healthcheck. It runs at least once, and every pause is at least 0.01 s."""
    return Healthcheck(
        command=check.command,
        interval_sec=max(check.interval_sec, _SHORTEST_SEC),
        timeout_sec=max(check.timeout_sec, _SHORTEST_SEC),
        start_period_sec=check.start_period_sec,
        start_interval_sec=max(check.start_interval_sec, _SHORTEST_SEC),
        retries=max(check.retries, 1),
    )


def _server(server: HarborMcpServer) -> McpServer:
    remote = "http" if server.transport == "streamable-http" else server.transport
    return McpServer(
        name=server.name,
        transport=remote,
        command=server.command,
        args=server.args,
        url=server.url,
    )


_HOST_VARIABLE = re.compile(r"\$\{[^}:]+(?::-.*)?\}")


class Variables(TypedDict):
    """The two fields for variables in the tables of BenchFlow's tasks."""

    env: dict[str, str]
    host_env: dict[str, str]


def variables(written: Mapping[str, str]) -> Variables:
    """Separate literal values from `${NAME}` and `${NAME:-default}`.

    The form must be the whole value. Any other text with a `$` is literal, as in Harbor 0.24
    (`resolve_env_vars`).
    """
    of_host = {name: text for name, text in written.items() if _HOST_VARIABLE.fullmatch(text)}
    literal = {name: text for name, text in written.items() if name not in of_host}
    return Variables(env=literal, host_env=of_host)
