"""Removing the services, networks and volumes of dead owners."""

import re
from collections.abc import Mapping
from typing import Any, cast

from benchflow_contracts.errors import SandboxError

from benchflow_sandbox_docker.engine import DockerEngine, GoneError
from benchflow_sandbox_docker.labels import KIND, PREFIX, ResourceLabel

from .networks import NETWORK, SERVICE, VOLUME, remove_network

_SERVICE_PART = re.compile(r"-[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_VOLUME_PART = re.compile(r"-v\d+")
_NETWORK_PART = re.compile(r"(-n\d+)?")


async def sweep_services(engine: DockerEngine) -> None:
    """Remove what belongs to the services of owners that are known to be dead.

    As with containers of sandboxes, the label and the name must both be ours.
    """
    for container in await engine.labelled("containers", [f"{KIND}={SERVICE}"]):
        names = [str(name).removeprefix("/") for name in container["Names"] or ()]
        if len(names) == 1 and _is_left(container["Labels"], names[0], _SERVICE_PART):
            await engine.remove(container["Id"])
    for network in await _listed(engine, "networks", NETWORK):
        # Somebody may have put a container of their own on it: that one is left alone.
        if _is_left(network["Labels"], network["Name"], _NETWORK_PART):
            await _unless_used(remove_network(engine, network["Id"]))
    for volume in await _listed(engine, "volumes", VOLUME):
        if _is_left(volume["Labels"], volume["Name"], _VOLUME_PART):
            await _unless_used(remove_volume(engine, volume["Name"]))


async def remove_volume(engine: DockerEngine, name: str) -> None:
    """Remove a volume. Idempotent."""
    try:
        await engine.do("remove_volume", name)
    except GoneError:
        return


async def _unless_used(removal: Any) -> None:  # noqa: ANN401 - a coroutine
    try:
        await removal
    except SandboxError:
        return


async def _listed(engine: DockerEngine, method: str, kind: str) -> list[Mapping[str, Any]]:
    found = await engine.do(method, filters={"label": [f"{KIND}={kind}"]})
    return cast(
        "list[Mapping[str, Any]]",
        (found["Volumes"] or []) if method == "volumes" else found,
    )


def _is_left(labels: Mapping[str, str] | None, name: str, part: re.Pattern[str]) -> bool:
    label = ResourceLabel.decode(labels)
    if label is None or label.owner.alive:
        return False
    rest = name.removeprefix(PREFIX + label.id)
    return rest != name and part.fullmatch(rest) is not None
