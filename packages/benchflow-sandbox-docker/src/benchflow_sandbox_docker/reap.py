"""Remove the resources of killed runners from the engine."""

import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_sandbox_core.owner import HostOwner

from .engine import DockerEngine
from .images import remove_image
from .labels import BUILT, IMAGE, KIND, PREFIX, SANDBOX, ResourceLabel, sandbox_label
from .services.networks import NETWORK, SERVICE, VOLUME, remove_network, remove_volume

_OWNER = "owner.json"


async def sandbox_containers(engine: DockerEngine) -> AsyncIterator[tuple[str, ResourceLabel]]:
    """Yield the engine's id and the label of every sandbox of BenchFlow."""
    for container in await engine.labelled("containers", [f"{KIND}={SANDBOX}"]):
        label = sandbox_label(container)
        if label is not None:
            yield container["Id"], label


async def reap(engine: DockerEngine, directory: Path, policy: ReapPolicy) -> list[SandboxRecord]:
    """Remove the containers that `policy` selects. Return their records.

    A container of a living or unknown owner is removed only if it is overdue and the policy says
    so. Snapshots of dead owners are selected by the labels of their container. The pipes of dead
    owners have no labels and are always removed.
    """
    removed: list[SandboxRecord] = []
    async for container, label in sandbox_containers(engine):
        record = label.record()
        if not record.wanted(policy, time.time()):
            continue
        if not policy.dry_run:
            await engine.remove(container)
        removed.append(record)
    if policy.dead_owners and not policy.dry_run:
        await sweep_services(engine)
        await _sweep_images(engine, policy)
        remove_dead_directories(directory)
    if policy.built_images and not policy.dry_run:
        await _sweep_built(engine)
    return removed


async def _sweep_built(engine: DockerEngine) -> None:
    for image in await engine.labelled("images", [f"{KIND}={BUILT}"]):
        for name in image["RepoTags"] or ():
            # Without force the engine keeps an image that a container uses. Its unused parents
            # are removed with it.
            with suppress(SandboxError):
                await engine.do("remove_image", name)


async def _sweep_images(engine: DockerEngine, policy: ReapPolicy) -> None:
    found = await engine.labelled("images", [f"{KIND}={IMAGE}"])
    # Remove the newest first, because an image must be removed after its child images.
    for image in sorted(found, key=lambda each: -each["Created"]):
        label = ResourceLabel.decode(image["Labels"])
        # An image with a tag belongs to another user, who built it on a snapshot image.
        tags = set(image["RepoTags"] or ()) - {"<none>:<none>"}
        if label is None or label.owner.alive is not False or tags:
            continue
        if policy.selects(label.record().identity):
            await remove_image(engine, image["Id"])


def create_owner_directory(directory: Path, name: str, owner: HostOwner) -> Path:
    """Create the directory of one owner's pipes."""
    path = directory / name
    path.mkdir(mode=0o700, parents=True)
    (path / _OWNER).write_text(owner.model_dump_json(), encoding="utf-8")
    return path


def remove_dead_directories(directory: Path) -> None:
    """Remove the directories of dead owners."""
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        with suppress(OSError, ValueError):
            text = (path / _OWNER).read_text(encoding="utf-8")
            if HostOwner.model_validate_json(text).alive is False:
                shutil.rmtree(path)


_SERVICE_PART = re.compile(r"-[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_VOLUME_PART = re.compile(r"-v\d+")
_NETWORK_PART = re.compile(r"(-n\d+)?")


async def sweep_services(engine: DockerEngine) -> None:
    """Remove the services, networks and volumes of owners that are dead.

    As with containers of sandboxes, both the label and the name must be of BenchFlow.
    """
    for container in await engine.labelled("containers", [f"{KIND}={SERVICE}"]):
        names = [str(name).removeprefix("/") for name in container["Names"] or ()]
        if len(names) == 1 and _is_left(container["Labels"], names[0], _SERVICE_PART):
            await engine.remove(container["Id"])
    for network in await _listed(engine, "networks", NETWORK):
        # Another user may have connected a container. The network then stays.
        if _is_left(network["Labels"], network["Name"], _NETWORK_PART):
            await _unless_used(remove_network(engine, network["Id"]))
    for volume in await _listed(engine, "volumes", VOLUME):
        if _is_left(volume["Labels"], volume["Name"], _VOLUME_PART):
            await _unless_used(remove_volume(engine, volume["Name"]))


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
    if label is None or label.owner.alive is not False:
        return False
    rest = name.removeprefix(PREFIX + label.id)
    return rest != name and part.fullmatch(rest) is not None
