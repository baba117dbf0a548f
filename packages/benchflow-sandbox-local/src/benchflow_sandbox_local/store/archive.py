"""Snapshots that outlive their provider: saved to a directory and loaded again."""

import asyncio
import errno
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.seal import Seal
from benchflow_sandbox_core.atomic_file import staging_dir, write
from benchflow_sandbox_core.baseline import decode_baseline, encode_baseline

from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.rootfs.source import RootSource

from .labels import PROVIDER
from .layers import Layer, LayerPool, StoredImage
from .saved_snapshot import NAME, SavedLayer, SavedLive, SavedSnapshot

BaseOf = Callable[[RootSource, str], Awaitable[Base]]


class SnapshotArchive:
    """Copies sealed layers and live images to a directory, and loads them from it.

    Only the owner can read the directory, because an agent has written its files.
    """

    def __init__(self, launcher: Launcher, root: str, seal: Seal, *, rooted: bool) -> None:
        self._launcher = launcher
        self._seal = seal
        self._root = root
        self._rooted = rooted

    async def save(self, sealed: StoredImage, to: Path) -> None:
        """Write `sealed` to `to`, completely or not at all.

        Raises:
            SnapshotError: `to` exists, or cannot be written.
        """
        staging = await asyncio.to_thread(staging_dir, to)
        live = sealed.live
        try:
            answer = await self._launcher.ask(
                "save",
                layers=[layer.path(self._root) for layer in sealed.layers],
                image=None if live is None else live.name,
                to=str(staging),
            )
            record = self._record(sealed, answer.message["memory"])
            record = record.model_copy(update={"seal": self._seal.of(record.sealed_text)})
            await asyncio.to_thread(write, staging / NAME, record.model_dump_json(indent=1))
            staging.rename(to)
        except (OSError, LauncherError) as error:
            # A sparse file in memory can be larger than any file of the host's disk.
            failure = SnapshotError(f"cannot save {sealed.image.ref!r}: {error}")
            if error.errno == errno.EFBIG:
                failure.caused_by = "inside"
            raise failure from error
        finally:
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)

    def _record(self, sealed: StoredImage, memory: str) -> SavedSnapshot:
        base = sealed.base
        return SavedSnapshot(
            image=sealed.image,
            key=base.key,
            path=base.source.path,
            user=base.user,
            rooted=self._rooted,
            layers=tuple(
                SavedLayer(bytes=layer.allowance, digest=layer.digest) for layer in sealed.layers
            ),
            live=None if sealed.live is None else SavedLive.of(sealed.live, memory),
            mark=encode_baseline(sealed.mark),
        )

    def read(self, saved: Path) -> SavedSnapshot:
        """Return the record of a saved snapshot that this store has saved.

        Raises:
            SnapshotError: The directory is not a snapshot, or another store saved it.
        """
        return SavedSnapshot.read(saved, self._seal)

    async def load(self, saved: Path, base_of: BaseOf) -> StoredImage:
        """Load a snapshot that `save` wrote. The directory is not needed afterwards.

        Raises:
            SnapshotError: The snapshot is truncated or changed, or was saved on another machine, by
                another user, or over another image.
        """
        record = self.read(saved)
        if record.image.provider != PROVIDER or record.rooted != self._rooted:
            raise SnapshotError(
                f"{str(saved)!r} is a snapshot of provider {record.image.provider!r}, taken"
                f" {'with' if record.rooted else 'without'} root",
                hint="load it where it was saved",
            )
        base = await self._base(record, base_of)
        pool = LayerPool(f"f-{secrets.token_hex(6)}")
        layers = tuple(
            Layer(f"l{secrets.token_hex(3)}", pool, saved_layer.bytes, saved_layer.digest)
            for saved_layer in record.layers
        )
        pool.layers.update({layer.name: layer for layer in layers})
        name = None if record.live is None else f"i{secrets.token_hex(4)}"
        try:
            size = await self._copy_in(saved, record, layers, name)
        except LauncherError as error:
            await self._drop(pool, name)
            raise SnapshotError(f"cannot load {str(saved)!r}: {error}") from error
        except BaseException:
            await self._drop(pool, name)
            raise
        ref = f"{pool.name}/{name or layers[0].name}"
        state = None if record.live is None or name is None else record.live.state(name, size)
        image = record.image.model_copy(update={"ref": ref})
        return StoredImage(image, base, layers, state, decode_baseline(record.mark))

    async def _base(self, record: SavedSnapshot, base_of: BaseOf) -> Base:
        try:
            source = RootSource.of(record.path)
            base = await base_of(source, record.user)
        except (OSError, SandboxError) as error:
            raise SnapshotError(f"the image below the snapshot cannot be used: {error}") from error
        if base.key != record.key:
            raise SnapshotError(
                f"the image below the snapshot has changed since: its key was {record.key!r}",
                hint="a snapshot contains the changes of a sandbox, not the image below them",
            )
        return base

    async def _copy_in(
        self, saved: Path, record: SavedSnapshot, layers: tuple[Layer, ...], name: str | None
    ) -> int:
        """Copy a snapshot below the launcher's root; return the size of its live image."""
        pool = layers[0].pool
        answer = await self._launcher.ask(
            "load",
            pool=pool.name,
            # A copy may use more pages than the sealed layer.
            size=2 * pool.size + (64 << 20),
            layers=[layer.name for layer in layers],
            image=name,
            image_bytes=0 if record.live is None else record.live.bytes,
            parent=record.key,
            source=str(await asyncio.to_thread(saved.absolute)),
        )
        loaded = answer.message
        if (loaded["digests"], loaded["digest"], loaded["memory"]) != (
            [layer.digest for layer in record.layers],
            record.image.digest,
            "" if record.live is None else record.live.memory,
        ):
            raise SnapshotError(
                f"{str(saved)!r} has changed since it was saved: its digest differs"
            )
        return int(loaded["bytes"])

    async def _drop(self, pool: LayerPool, name: str | None) -> None:
        if name is not None:
            await self._launcher.ask("remove_image", image=name)
        await self._launcher.ask("drop_pool", pool=pool.name)
