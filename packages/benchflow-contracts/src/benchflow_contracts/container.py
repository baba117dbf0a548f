"""Options of a container beside its image."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from ._model import Model, RareModel

ServiceCondition = Literal["started", "healthy", "completed"]
"""The condition that a dependent waits for. `completed` is an end with exit code 0."""


class HostMount(RareModel):
    """A path of this machine that a container may read, and may write unless `read_only`."""

    path: Path
    read_only: bool = False


class ContainerOptions(Model):
    """Options of a service, or of the sandbox itself. Needs the capability `services`."""

    entrypoint: tuple[str, ...] | None = None
    """`None`: the entrypoint of the image."""
    command: tuple[str, ...] | None = None
    """`None`: the command of a service's image; a sandbox idles."""
    user: str = ""
    """The user of the entrypoint; `""` is the image's own."""
    workdir: str = ""
    """The working directory of the entrypoint; `""` is the image's own."""
    hostname: str = ""
    """Also a name of the container in its networks."""
    hosts: Mapping[str, str] = {}
    """Addresses by name, for this container only."""
    networks: Mapping[str, tuple[str, ...]] = {}
    """Networks of the container, each with additional names of the container there. The networks
    belong to the sandbox. Empty means one network, named `default`."""
    needs: Mapping[str, ServiceCondition] = {}
    """Conditions of services, or of `main`, that must hold before the container starts."""
    volumes: Mapping[str, str] = {}
    """Names of the sandbox's volumes, by absolute path inside. Volumes are empty at first."""
    files: Mapping[str, Path] = {}
    """Files and directories of the task on the host, read-only, by path inside."""
    host_mounts: Mapping[str, HostMount] = {}
    """Paths of this machine by path inside, only for tasks that the operator trusts with them.
    Snapshots do not contain them, and all copies of the container share them."""
    texts: Mapping[str, str] = {}
    """Contents of files that every user inside may read and no user may write, by path inside."""
    ulimits: Mapping[str, tuple[int, int]] = {}
    """Soft and hard limits, by the names of `ulimit` in Docker; -1 means no limit."""
    shm_mb: int | None = None
    """The size of `/dev/shm`."""


NO_OPTIONS: Final = ContainerOptions()
"""The default of a field. pydantic would copy a default value with mappings each time."""
