"""What an engine of containers gives one, beside its image."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ._model import Model

ServiceCondition = Literal["started", "healthy", "completed"]
"""What a dependent waits for. `completed` is an end with exit code 0."""


class HostMount(Model):
    """A path of this machine that a container may read, and write unless it says otherwise."""

    path: Path
    read_only: bool = False


class ContainerOptions(Model):
    """Of a service, or of the sandbox itself. Needs the capability `services`."""

    entrypoint: tuple[str, ...] | None = None
    """`None` is the image's own."""
    command: tuple[str, ...] | None = None
    """`None` is a service's image's own; the sandbox itself idles then."""
    user: str = ""
    """Of the entrypoint, as the next; `""` is the image's own."""
    workdir: str = ""
    hostname: str = ""
    """A name in its networks, too."""
    hosts: Mapping[str, str] = {}
    """Addresses by name, which only this container knows."""
    networks: Mapping[str, tuple[str, ...]] = {}
    """Those that it is on, each with the names that it has there beside its own. They are the
    sandbox's and made for it. Empty is one that is named `default`."""
    needs: Mapping[str, ServiceCondition] = {}
    """What must be so of services, or of `main`, before it starts."""
    volumes: Mapping[str, str] = {}
    """Names of the sandbox's own volumes, by absolute path inside. Empty at first."""
    files: Mapping[str, Path] = {}
    """Files and directories of the task on the host, shown read-only, by path inside."""
    host_mounts: Mapping[str, HostMount] = {}
    """Paths of this machine by path inside, only of tasks that the operator trusts with them. They
    are in no snapshot, and every copy of the container has the same."""
    texts: Mapping[str, str] = {}
    """Contents of files that anybody inside may read and nobody write, by path inside."""
    ulimits: Mapping[str, tuple[int, int]] = {}
    """Soft and hard, by the names of `ulimit` in Docker; -1 is none."""
    shm_mb: int | None = None
    """Of `/dev/shm`."""
