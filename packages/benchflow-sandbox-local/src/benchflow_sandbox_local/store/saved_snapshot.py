"""The record of a saved snapshot, which lies beside its files."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from benchflow_contracts._model import Model
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_contracts.seal import Seal
from pydantic import Base64Bytes, Field, ValidationError

from benchflow_sandbox_local.live.processes import CarriedProcess, LiveState

NAME: Final = "snapshot.json"
_MAX_BYTES = 16 << 20


class SavedLayer(Model):
    """One layer; its files are in the directory of its place in the list."""

    bytes: int = Field(ge=0)
    digest: str


class SavedProcess(Model):
    """A carried process; see `CarriedProcess`."""

    id: str
    pid: int
    pipes: tuple[int | None, int | None, int | None]
    out: Base64Bytes
    err: Base64Bytes

    @classmethod
    def of(cls, one: CarriedProcess) -> Self:
        """Return the record of a process."""
        out, err = base64.b64encode(one.out), base64.b64encode(one.err)
        return cls(id=one.id, pid=one.pid, pipes=one.pipes, out=out, err=err)


class SavedLive(Model):
    """The processes of a live image; see `LiveState`."""

    bytes: int = Field(ge=0)
    memory: str
    """The digest of the pages of all processes."""
    processes: tuple[SavedProcess, ...]
    mounts: tuple[tuple[str, str], ...]
    door_ports: tuple[int, ...]

    @classmethod
    def of(cls, state: LiveState, memory: str) -> Self:
        """Return the record of a state whose pages have the digest `memory`."""
        return cls(
            bytes=state.bytes,
            memory=memory,
            processes=tuple(SavedProcess.of(process) for process in state.processes),
            mounts=state.mounts,
            door_ports=state.door_ports,
        )

    def state(self, name: str, size: int) -> LiveState:
        """Return the state, with its processes in `size` bytes of the directory `name`."""
        carried = tuple(
            CarriedProcess(one.id, one.pid, one.pipes, one.out, one.err) for one in self.processes
        )
        return LiveState(name, size, carried, self.mounts, self.door_ports)


class SavedSnapshot(Model):
    """`snapshot.json`."""

    schema_version: Literal["1.0"] = "1.0"
    image: SandboxImage
    key: str
    """The key of the base, which must exist unchanged."""
    path: Path | None
    """The image's directory; `None` is the host's root."""
    user: str
    rooted: bool
    layers: tuple[SavedLayer, ...] = Field(min_length=1)
    """Top first."""
    live: SavedLive | None = None
    mark: Mapping[str, str] | None = None
    """What the sandbox compared its files with; see `ChangeTracker`."""
    seal: str = ""
    """The authentication code of the record, by the store that saved it."""

    @property
    def sealed_text(self) -> str:
        """The text that `seal` authenticates."""
        return self.model_dump_json(exclude={"seal"})

    @classmethod
    def read(cls, directory: Path, seal: Seal) -> Self:
        """Read what `save` wrote, with the same `seal`.

        Raises:
            SnapshotError: It is missing or truncated, or another store saved it.
        """
        path = directory / NAME
        try:
            with path.open("rb") as file:
                saved = cls.model_validate_json(file.read(_MAX_BYTES))
            ours = seal.fits(saved.sealed_text, saved.seal)
        except OSError as error:
            raise SnapshotError(f"{str(directory)!r} cannot be loaded: {error}") from error
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = f"{path}:{'.'.join(map(str, problem['loc']))}"
            raise SnapshotError(f"not a saved snapshot: {problem['msg']}", where=where) from error
        if not ours:
            raise SnapshotError(
                f"{str(directory)!r} was not saved by this user here, or was changed since",
                hint="load it with the store that saved it; what a snapshot holds is run as root,"
                " so one that somebody else gave you is never opened",
            )
        return saved
