"""Save snapshots to directories: the engine's tar and its description."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

from benchflow_contracts._model import Model
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_contracts.seal import Seal
from benchflow_sandbox_core.atomic_file import staging_dir, write
from benchflow_sandbox_core.thread import StopFlag, run
from pydantic import Field, ValidationError

from .changes import SavedBaseline
from .commit_limiter import require_space
from .engine import DockerEngine
from .images import SnapshotImages
from .labels import PROVIDER

_NAME: Final = "snapshot.json"
_TAR: Final = "image.tar"
_CHUNK = 1 << 20
_MAX_BYTES = 16 << 20


class ArchivedSnapshot(Model):
    """`snapshot.json`."""

    schema_version: Literal["1.0"] = "1.0"
    image: SandboxImage
    engine_id: str
    """The engine's id of the image in the tar."""
    sha256: str
    """The digest of the tar in hex."""
    size: int = Field(ge=0)
    mark: SavedBaseline | None = None
    """The baseline of the sandbox's changed files."""
    seal: str = ""
    """The authentication code of all other fields, with the secret of the store."""

    @property
    def sealed_text(self) -> str:
        """The text that `seal` authenticates."""
        return self.model_dump_json(exclude={"seal"})


class SnapshotArchiver:
    """Saves snapshots of the engine to directories, and loads them again.

    The tar is complete, so loading does not require the base image. An agent wrote its files, so
    only a tar that this store has sealed is given to the engine.
    """

    def __init__(self, engine: DockerEngine, images: SnapshotImages, seal: Seal) -> None:
        self._engine = engine
        self._images = images
        self._seal = seal

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to `to`. If this fails, `to` does not exist.

        Raises:
            SnapshotError: The snapshot is unknown, `to` exists, or writing failed.
        """
        name = self._images.check(image)
        root = await self._root()
        await run(lambda stop: self._save(image, name, to, root, stop))

    async def _root(self) -> str:
        return str((await self._engine.do("info"))["DockerRootDir"])

    def _save(self, image: SandboxImage, name: str, to: Path, root: str, stop: StopFlag) -> None:
        staging = staging_dir(to)
        try:
            # The engine writes the whole image to its own disk before it sends the first byte.
            for place in (str(staging), root):
                require_space(place, image.bytes)
            digest, size = self._copy_out(name, image.bytes, staging / _TAR, stop)
            baseline = self._images.baseline(image)
            mark = None if baseline is None else baseline.to_save()
            description = ArchivedSnapshot(
                image=image, engine_id=name, sha256=digest, size=size, mark=mark
            )
            description = description.model_copy(
                update={"seal": self._seal.of(description.sealed_text)}
            )
            write(staging / _NAME, description.model_dump_json(indent=1))
            staging.rename(to)
        except (OSError, SandboxError) as error:
            raise SnapshotError(f"cannot save {image.ref!r}: {error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _copy_out(self, name: str, took: int, path: Path, stop: StopFlag) -> tuple[str, int]:
        digest, size = hashlib.sha256(), 0
        with path.open("xb") as file, self._engine.saved_image(name, took) as answer:
            for piece in answer.iter_content(_CHUNK):
                stop.check()
                digest.update(piece)
                size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest(), size

    async def load(self, saved: Path) -> SandboxImage:
        """Load a saved snapshot as a snapshot of this owner.

        Raises:
            SnapshotError: The files are incomplete, changed, or saved by another store.
        """
        description = self._read(saved)
        try:
            # The engine stores the tar on its own disk, and unpacks its layers.
            require_space(await self._root(), 2 * description.size)
            async with self._images.while_loading():
                exists = await self._images.has(description.engine_id)
                await run(lambda stop: self._copy_in(saved / _TAR, description, stop))
                image = await self._images.adopt(
                    description.engine_id, description.image, forget=not exists
                )
        except (OSError, SandboxError) as error:
            raise SnapshotError(f"cannot load {str(saved)!r}: {error}") from error
        self._images.set_baseline(
            image, None if description.mark is None else description.mark.load()
        )
        return image

    def _read(self, saved: Path) -> ArchivedSnapshot:
        path = saved / _NAME
        try:
            with path.open("rb") as file:
                description = ArchivedSnapshot.model_validate_json(file.read(_MAX_BYTES))
            ours = self._seal.fits(description.sealed_text, description.seal)
        except OSError as error:
            raise SnapshotError(f"{str(saved)!r} cannot be loaded: {error}") from error
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = f"{path}:{'.'.join(map(str, problem['loc']))}"
            raise SnapshotError(f"not a saved snapshot: {problem['msg']}", where=where) from error
        if not ours or description.image.provider != PROVIDER:
            raise SnapshotError(
                f"{str(saved)!r} was changed, or another store saved it",
                hint="load it with the store that saved it; root runs the files of a snapshot,"
                " so a snapshot of another user is never loaded",
            )
        return description

    def _copy_in(self, path: Path, description: ArchivedSnapshot, stop: StopFlag) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb") as file:
            if (
                os.fstat(file.fileno()).st_size != description.size
                or _digest(file, stop) != description.sha256
            ):
                raise SnapshotError(f"{str(path)!r} was changed: its digest differs")
            file.seek(0)
            api = cast("Any", self._engine.api)
            with self._engine.typed("load_image"):
                for line in api.load_image(file):
                    if "error" in line:
                        raise SnapshotError(f"the engine refuses the image: {line['error']}")


def _digest(file: BinaryIO, stop: StopFlag) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_CHUNK):
        stop.check()
        digest.update(piece)
    return digest.hexdigest()
