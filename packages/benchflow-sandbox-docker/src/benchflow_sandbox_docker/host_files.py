"""Find the files of a container on this host."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from benchflow_contracts.cause import host_is_short, refuse_shortage
from benchflow_contracts.errors import SandboxUnsupportedError

from .engine import DockerEngine

_ENGINE_LAYER = "-init/diff"
_HINT = "run as root on the engine's host"


@dataclass(frozen=True, slots=True)
class Overlay:
    """The directories of a container's root, each list from the topmost down."""

    upper: str
    """The directory of the files that the container wrote."""
    engine_layers: tuple[str, ...]
    """The engine's empty files for its mount points."""
    layers: tuple[str, ...]
    """The layers of the image."""
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The host's directories of named volumes, by their paths in the container."""
    packed: bool = False
    """Whether the engine also stores a packed copy of each layer."""


async def overlay_of(engine: DockerEngine, container: str) -> Overlay:
    """Return the directories of a running container.

    The storage driver `overlay2` reports them. With the image store of containerd, they are in the
    mount table of the container's first process; processes inside cannot mount another root. A
    rootless engine is refused. It marks removed files in another way, so that removed files would
    look like existing files.

    Raises:
        SandboxUnsupportedError: The engine stores the files in another way, or hides them.
        HostError: The host ran out of a resource.
    """
    if await engine.rootless():
        raise SandboxUnsupportedError(
            "the engine is rootless: files of its containers cannot be compared",
            hint="use an engine that root runs",
        )
    inspected = cast("dict[str, Any]", await engine.do("inspect_container", container))
    mounts = [each for each in inspected["Mounts"] if each["Type"] == "volume"]
    volumes = {str(each["Destination"]): str(each["Source"]) for each in mounts}
    return replace(_root_overlay(inspected), volumes=volumes)


def _root_overlay(inspected: Mapping[str, Any]) -> Overlay:
    driver = cast("dict[str, Any]", inspected.get("GraphDriver") or {})
    data = cast("dict[str, str]", driver.get("Data") or {})
    if driver.get("Name") == "overlay2" and "UpperDir" in data:
        lowers = data["LowerDir"].split(":")
        own = tuple(each for each in lowers if each.endswith(_ENGINE_LAYER))
        return Overlay(data["UpperDir"], own, tuple(each for each in lowers if each not in own))
    if driver.get("Name") == "overlayfs":
        overlay = _process_overlay(int(inspected["State"]["Pid"]), str(inspected["Id"]))
        return replace(overlay, packed=True)
    raise SandboxUnsupportedError(
        f"the engine stores files with {driver.get('Name')!r}, which cannot be compared",
        hint="use the storage driver overlay2, or the image store of containerd",
    )


def _process_overlay(pid: int, container: str) -> Overlay:
    process = Path("/proc", str(pid))
    try:
        # The process may have ended since, and the kernel may have reused its number.
        if container not in (process / "cgroup").read_text():
            raise _unknown_layers(f"process {pid} is not the container's")
        return read_mounts((process / "mountinfo").read_text())
    except OSError as error:
        refuse_shortage("find the files of a container", error)
        raise _unknown_layers(f"{error}") from error


def read_mounts(mounts: str) -> Overlay:
    """Return the root mount of a `mountinfo` file, as proc(5) describes it.

    Raises:
        SandboxUnsupportedError: The root is not an overlay, or its directories are incomplete.
    """
    fields = (line.partition(" - ") for line in mounts.splitlines())
    roots = [after.split() for before, _, after in fields if before.split()[4:5] == ["/"]]
    if not roots or roots[-1][0] != "overlay" or len(roots[-1]) != 3:
        raise _unknown_layers("its root is not an overlay")
    options = [each.partition("=") for each in roots[-1][2].split(",")]
    lowers = [value for name, _, value in options if name == "lowerdir+"]
    lowers += [each for n, _, value in options if n == "lowerdir" for each in value.split(":")]
    uppers = [value for name, _, value in options if name == "upperdir"]
    paths = [*uppers, *lowers]
    if len(uppers) != 1 or not all(p.startswith("/") and "\\" not in p for p in paths):
        raise _unknown_layers("the kernel does not name all of its directories")
    # The topmost lower directory is the engine's own for this container.
    return Overlay(uppers[0], tuple(lowers[:1]), tuple(lowers[1:]))


def _unknown_layers(why: str) -> SandboxUnsupportedError:
    return SandboxUnsupportedError(
        f"this host cannot find the files of a container: {why}", hint=_HINT
    )


@asynccontextmanager
async def container_root(engine: DockerEngine, container: str) -> AsyncGenerator[int]:
    """Open the root directory of a running container inside the block.

    Raises:
        SandboxUnsupportedError: The engine is on another host, or this process may not read
            the root directories of its containers.
        HostError: The host ran out of a resource.
    """
    inspected = cast("dict[str, Any]", await engine.do("inspect_container", container))
    root = _open_root(int(inspected["State"]["Pid"]), str(inspected["Id"]))
    try:
        yield root
    finally:
        os.close(root)


def _open_root(pid: int, container: str) -> int:
    process, root = Path("/proc", str(pid)), -1
    try:
        root = os.open(process / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # The process may have ended since, and the kernel may have reused its number.
        if container in (process / "cgroup").read_text():
            return root
        why = f"process {pid} is not the container's"
    except OSError as error:
        if root >= 0 and host_is_short(error):
            os.close(root)
        refuse_shortage("open the root of a container", error)
        why = str(error)
    if root >= 0:
        os.close(root)
    raise SandboxUnsupportedError(
        f"the files that a container opens cannot be observed from this host: {why}", hint=_HINT
    )
