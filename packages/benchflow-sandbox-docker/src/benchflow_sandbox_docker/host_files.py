"""Where an engine keeps the files of a container on this host."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from benchflow_contracts.cause import host_is_short, refuse_shortage
from benchflow_contracts.errors import SandboxUnsupportedError

from .engine import DockerEngine

_OF_THE_ENGINE = "-init/diff"


@dataclass(frozen=True, slots=True)
class Overlay:
    """The directories that a container's root is made of, each list from the topmost down."""

    upper: str
    """What the container wrote."""
    own: tuple[str, ...]
    """The engine's: empty files that it mounts over."""
    layers: tuple[str, ...]
    """The image's."""
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where what is mounted from named volumes is kept, by the path in the container."""
    packed: bool = False
    """Whether the engine keeps a packed copy of each layer, too."""


async def overlay_of(engine: DockerEngine, container: str) -> Overlay:
    """Return the directories of a container that runs.

    Its storage driver `overlay2` names them. With the image store of containerd the engine says
    nothing of them, and the kernel says it of what is mounted as the container's root, which
    nobody inside may mount anew. Those of a rootless engine are refused: it marks what was
    removed in another way, so that this would be taken for what is there.

    Raises:
        SandboxUnsupportedError: They are kept in another way, or cannot be told from here.
        HostError: The host could not look.
    """
    if await engine.rootless():
        raise SandboxUnsupportedError(
            "the engine is rootless: what containers wrote in it cannot be compared",
            hint="use an engine that root runs",
        )
    told = cast("dict[str, Any]", await engine.do("inspect_container", container))
    mounts = [each for each in told["Mounts"] if each["Type"] == "volume"]
    volumes = {str(each["Destination"]): str(each["Source"]) for each in mounts}
    return replace(_root_of(told), volumes=volumes)


def _root_of(told: Mapping[str, Any]) -> Overlay:
    driver = cast("dict[str, Any]", told.get("GraphDriver") or {})
    data = cast("dict[str, str]", driver.get("Data") or {})
    if driver.get("Name") == "overlay2" and "UpperDir" in data:
        lowers = data["LowerDir"].split(":")
        own = tuple(each for each in lowers if each.endswith(_OF_THE_ENGINE))
        return Overlay(data["UpperDir"], own, tuple(each for each in lowers if each not in own))
    if driver.get("Name") == "overlayfs":
        return replace(_of_process(int(told["State"]["Pid"]), str(told["Id"])), packed=True)
    raise SandboxUnsupportedError(
        f"the engine keeps files with {driver.get('Name')!r}, which cannot be compared",
        hint="use the storage driver overlay2, or the image store of containerd",
    )


def _of_process(pid: int, container: str) -> Overlay:
    process = Path("/proc", str(pid))
    try:
        # A number that was given to another process since would tell of another's files.
        if container not in (process / "cgroup").read_text():
            raise _untold(f"process {pid} is not the container's")
        return read_mounts((process / "mountinfo").read_text())
    except OSError as error:
        refuse_shortage("find the files of a container", error)
        raise _untold(f"{error}") from error


def read_mounts(mounts: str) -> Overlay:
    """Return what is mounted as the root by a `mountinfo`, as proc(5) describes it.

    Raises:
        SandboxUnsupportedError: That is no overlay, or its directories are not told in full.
    """
    fields = (line.partition(" - ") for line in mounts.splitlines())
    roots = [after.split() for before, _, after in fields if before.split()[4:5] == ["/"]]
    if not roots or roots[-1][0] != "overlay" or len(roots[-1]) != 3:
        raise _untold("its root is no overlay")
    options = [each.partition("=") for each in roots[-1][2].split(",")]
    lowers = [value for name, _, value in options if name == "lowerdir+"]
    lowers += [each for n, _, value in options if n == "lowerdir" for each in value.split(":")]
    uppers = [value for name, _, value in options if name == "upperdir"]
    found = [*uppers, *lowers]
    if len(uppers) != 1 or not all(p.startswith("/") and "\\" not in p for p in found):
        raise _untold("the kernel does not name its directories in full")
    # The topmost is what the engine made for this container.
    return Overlay(uppers[0], tuple(lowers[:1]), tuple(lowers[1:]))


def _untold(why: str) -> SandboxUnsupportedError:
    return SandboxUnsupportedError(
        f"where a container keeps its files cannot be told from this host: {why}",
        hint="run as root beside the engine",
    )


@asynccontextmanager
async def container_root(engine: DockerEngine, container: str) -> AsyncGenerator[int]:
    """Keep the root directory of a container open for the block.

    Raises:
        SandboxUnsupportedError: The engine does not run on this host, or this process may not
            look into its containers.
        HostError: The host could not look.
    """
    told = cast("dict[str, Any]", await engine.do("inspect_container", container))
    root = _open_root(int(told["State"]["Pid"]), str(told["Id"]))
    try:
        yield root
    finally:
        os.close(root)


def _open_root(pid: int, container: str) -> int:
    process, root = Path("/proc", str(pid)), -1
    try:
        root = os.open(process / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # A number that was given to another process since would lead elsewhere.
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
        f"the files that a container opens cannot be observed from this host: {why}",
        hint="run as root beside the engine",
    )
