"""Removing what a killed runner left behind, and nothing of anybody else."""

import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_sandbox_core.owner import ProcessIdentity

from .engine import DockerEngine
from .images import remove_image
from .labels import BUILT, IMAGE, KIND, SANDBOX, ResourceLabel, sandbox_label
from .services import sweep_services

_OWNER = "owner.json"


async def sandbox_containers(engine: DockerEngine) -> AsyncIterator[tuple[str, ResourceLabel]]:
    """Yield every container of ours, by the engine's own id."""
    for container in await engine.labelled("containers", [f"{KIND}={SANDBOX}"]):
        label = sandbox_label(container)
        if label is not None:
            yield container["Id"], label


async def reap(engine: DockerEngine, directory: Path, policy: ReapPolicy) -> list[SandboxRecord]:
    """Remove the containers that `policy` wants removed; return their records.

    One whose owner lives, or cannot be judged, is only touched when it is overdue and the policy
    says so. Snapshots of dead owners have the labels of the container that they were taken from.
    The pipes of dead owners have none and go with any of them.
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
            # Without force the engine keeps one that a container uses; what it was made from
            # goes with it.
            with suppress(SandboxError):
                await engine.do("remove_image", name)


async def _sweep_images(engine: DockerEngine, policy: ReapPolicy) -> None:
    found = await engine.labelled("images", [f"{KIND}={IMAGE}"])
    # The latest first: an image cannot go before those that were made from it.
    for image in sorted(found, key=lambda each: -each["Created"]):
        label = ResourceLabel.decode(image["Labels"])
        # One with a tag is somebody's own, made from one of ours.
        tags = set(image["RepoTags"] or ()) - {"<none>:<none>"}
        if label is None or label.owner.alive or tags:
            continue
        if policy.labels.items() <= label.labels.items():
            await remove_image(engine, image["Id"])


def create_owner_directory(directory: Path, name: str, owner: ProcessIdentity) -> Path:
    """Make the directory of one owner's pipes."""
    place = directory / name
    place.mkdir(mode=0o700, parents=True)
    (place / _OWNER).write_text(json.dumps(owner.to_json()), encoding="utf-8")
    return place


def remove_dead_directories(directory: Path) -> None:
    """Remove the directories of dead owners."""
    if not directory.is_dir():
        return
    for place in directory.iterdir():
        with suppress(OSError, TypeError, ValueError):
            text = (place / _OWNER).read_text(encoding="utf-8")
            if not ProcessIdentity(**json.loads(text)).alive:
                shutil.rmtree(place)
