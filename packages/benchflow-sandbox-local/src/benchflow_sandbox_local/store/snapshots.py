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
        """Add a snapshot, and count it as a user of its layers."""
        self._stored[stored.image.ref] = stored
        acquire_layers(stored.layers)

    def add_files(self, stack: LayerStack, layers: tuple[Layer, ...], name: str) -> SandboxImage:
        """Add a snapshot that contains only files."""
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

    async def publish(self, undigested: UndigestedImage) -> SandboxImage:
        """Compute the digest of a live image, and add the image.

        Raises:
            SnapshotError: The image cannot be restored, so it is deleted.
        """
        state, layer = undigested.live, undigested.layers[0]
        try:
            layer.digest, digest = await self._digests(undigested)
        except BaseException:
            await self.delete_state(state)
            await self.free(release_layers(undigested.layers))
            raise
        image = SandboxImage(
            provider=PROVIDER,
            level="live",
            consistency="instant",
            ref=f"{layer.pool.name}/{state.name}",
            digest=digest,
            bytes=state.bytes,
        )
        layers, mark = undigested.layers, undigested.mark
        self.add(StoredImage(image, undigested.base, layers, state, mark=mark))
        release_layers(layers)
        return image

    async def _digests(self, image: UndigestedImage) -> tuple[str, str]:
        """Return the digest of an image's files, and the digest of the complete image."""
        layer, below = image.layers[0], image.layers[1:]
        try:
            answer = await self._launcher.ask(
                "digest_image",
                image=image.live.name,
                library=image.library,
                pool=layer.pool.name,
                layer=layer.name,
                parent=below[0].digest if below else image.base.key,
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
            SnapshotError: The snapshot is unknown here, or has another digest.
        """
        stored = self._stored.get(image.ref)
        if stored is None:
            raise SnapshotError(
                f"snapshot {image.ref!r} is unknown to this provider instance",
                hint="a local snapshot exists as long as the provider that took it",
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
        await self._launcher.ask("remove_image", image=state.name)

    async def free(self, layers: Iterable[Layer]) -> None:
        """Delete layers without users."""
        for layer in layers:
            pool = layer.pool
            pool.layers.pop(layer.name, None)
            if pool.empty:
                await self._launcher.ask("drop_pool", pool=pool.name)
            else:
                await self._launcher.ask("remove_layer", pool=pool.name, layer=layer.name)

    @property
    def live_bytes(self) -> int:
        """The bytes of the processes of all live images."""
        return sum(stored.live.bytes for stored in self._stored.values() if stored.live)
