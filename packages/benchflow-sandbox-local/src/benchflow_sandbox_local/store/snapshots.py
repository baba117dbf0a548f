"""The snapshots of one provider, and the layers that they need."""

from collections.abc import Iterable

from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage

from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.live.processes import LiveState

from .labels import PROVIDER
from .layers import (
    Layer,
    LayerStack,
    StoredImage,
    UndigestedImage,
    acquire_layers,
    release_layers,
)

_EAGAIN = 11


class SnapshotStore:
    """Finds, adds and deletes snapshots."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._stored: dict[str, StoredImage] = {}

    def add(self, stored: StoredImage) -> None:
        """Keep a snapshot and the layers it needs."""
        self._stored[stored.image.ref] = stored
        acquire_layers(stored.layers)

    def add_files(self, stack: LayerStack, layers: tuple[Layer, ...], name: str) -> SandboxImage:
        """Keep a snapshot of files alone."""
        image = SandboxImage(
            provider=PROVIDER,
            level="filesystem",
            consistency="instant",
            ref=f"{stack.pool.name}/{name}",
            digest=layers[0].digest,
            bytes=layers[0].allowance,
        )
        self.add(StoredImage(image, stack.base, layers, mark=stack.mark))
        return image

    async def publish(self, made: UndigestedImage) -> SandboxImage:
        """Digest a live image and keep it.

        Raises:
            SnapshotError: No child can be made of the image. The image is deleted.
        """
        state, layer = made.live, made.layers[0]
        try:
            layer.digest, digest = await self._identify(made)
        except BaseException:
            await self.delete_state(state)
            await self.free(release_layers(made.layers))
            raise
        image = SandboxImage(
            provider=PROVIDER,
            level="live",
            consistency="instant",
            ref=f"{layer.pool.name}/{state.name}",
            digest=digest,
            bytes=state.bytes,
        )
        self.add(StoredImage(image, made.base, made.layers, state, mark=made.mark))
        release_layers(made.layers)
        return image

    async def _identify(self, made: UndigestedImage) -> tuple[str, str]:
        """Return the digest of an image's files alone, and the digest of the complete image."""
        layer, below = made.layers[0], made.layers[1:]
        try:
            answer = await self._launcher.ask(
                "identify",
                image=made.live.name,
                library=made.library,
                family=layer.pool.name,
                layer=layer.name,
                parent=below[0].digest if below else made.base.key,
            )
        except LauncherError as error:
            retryable = error.errno == _EAGAIN
            raise SnapshotError(
                f"the sandbox cannot be forked: {error}", retryable=retryable
            ) from error
        return answer.message["files"], answer.message["digest"]

    def get(self, image: SandboxImage) -> StoredImage:
        """Return the snapshot that `image` names.

        Raises:
            SnapshotError: It is unknown here, or its digest is not the recorded one.
        """
        stored = self._stored.get(image.ref)
        if stored is None:
            raise SnapshotError(
                f"snapshot {image.ref!r} is not one of this provider instance",
                hint="a local snapshot lives as long as the provider that took it",
            )
        if stored.image.digest != image.digest:
            raise SnapshotError(f"snapshot {image.ref!r} does not have digest {image.digest!r}")
        return stored

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot, and the layers that nothing else needs. Idempotent."""
        stored = self._stored.pop(image.ref, None)
        if stored is None:
            return
        unused = release_layers(stored.layers)
        if stored.live is not None:
            await self.delete_state(stored.live)
        await self.free(unused)

    async def delete_state(self, state: LiveState) -> None:
        """Delete the processes of a live image. Idempotent."""
        await self._launcher.ask("forget", image=state.name)

    async def free(self, layers: Iterable[Layer]) -> None:
        """Delete layers that nothing needs."""
        for layer in layers:
            pool = layer.pool
            pool.layers.pop(layer.name, None)
            if pool.empty:
                await self._launcher.ask("drop_family", family=pool.name)
            else:
                await self._launcher.ask("drop", family=pool.name, layer=layer.name)

    @property
    def live_bytes(self) -> int:
        """The bytes of the processes of all live images."""
        return sum(stored.live.bytes for stored in self._stored.values() if stored.live)
