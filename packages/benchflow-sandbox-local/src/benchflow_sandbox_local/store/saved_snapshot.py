"""The record of a saved snapshot, in the directory of its files."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from benchflow_contracts._model import RareModel
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_contracts.seal import Seal
from pydantic import Base64Bytes, Field, ValidationError

from benchflow_sandbox_local.live.processes import ImageProcess, LiveState

NAME: Final = "snapshot.json"
_MAX_BYTES = 16 << 20


class SavedLayer(RareModel):
    """One layer; the name of its directory is its index in the list."""

    bytes: int = Field(ge=0)
    digest: str


class SavedProcess(RareModel):
    """The saved form of an `ImageProcess`."""

    id: str
    pid: int
    pipes: tuple[int | None, int | None, int | None]
    out: Base64Bytes
    err: Base64Bytes

    @classmethod
    def of(cls, process: ImageProcess) -> Self:
        """Return the record of a process."""
        out, err = base64.b64encode(process.out), base64.b64encode(process.err)
        return cls(id=process.id, pid=process.pid, pipes=process.pipes, out=out, err=err)

    def decode(self) -> ImageProcess:
        """Return the process of this record."""
        return ImageProcess(self.id, self.pid, self.pipes, self.out, self.err)


class SavedLive(RareModel):
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
        """Return the state of the live image `name`, whose files have `size` bytes."""
        processes = tuple(process.decode() for process in self.processes)
        return LiveState(name, size, processes, self.mounts, self.door_ports)


class SavedSnapshot(RareModel):
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
    """The baseline of the sandbox; see `ChangeTracker`."""
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
            SnapshotError: The record is missing or truncated, or another store saved it.
        """
        path = directory / NAME
        try:
            with path.open("rb") as file:
                saved = cls.model_validate_json(file.read(_MAX_BYTES))
            is_authentic = seal.fits(saved.sealed_text, saved.seal)
        except OSError as error:
            raise SnapshotError(f"{str(directory)!r} cannot be loaded: {error}") from error
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = f"{path}:{'.'.join(map(str, problem['loc']))}"
            raise SnapshotError(f"not a saved snapshot: {problem['msg']}", where=where) from error
        if not is_authentic:
            raise SnapshotError(
                f"{str(directory)!r} was saved by another store, or has changed since",
                hint="load it with the store that saved it; programs of a snapshot may run as root,"
                " so a snapshot from somebody else is never loaded",
            )
        return saved
