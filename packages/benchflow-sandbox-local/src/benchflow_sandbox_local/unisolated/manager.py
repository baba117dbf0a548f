"""Create plain sandboxes, where the operator has accepted them."""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.owner import current_owner
from benchflow_sandbox_core.shield import finish

from benchflow_sandbox_local.sandbox import LocalSandbox
from benchflow_sandbox_local.store.labels import Label, LabelStore

from .sandbox import PlainBox, PlainSandbox, no_snapshots

CAPABILITIES = SandboxCapabilities(
    isolation="none",
    network_modes=frozenset({"public"}),
    resource_limits=frozenset({"output"}),
    network_switch=True,
    notes={
        "isolation": "plain processes of your own user: they can read and change all that you can"
        " (hint: run as root, or enable user namespaces)",
        "network": "the host's own network, so only mode 'public' is possible",
        "snapshots": "plain processes cannot be frozen, so the files of one instant cannot be"
        " copied",
    },
)
"""The capabilities without any namespace."""


class PlainManager:
    """Creates and removes plain sandboxes below one directory."""

    def __init__(self, directory: Path, store: LabelStore) -> None:
        self._directory = directory
        self._store = store
        self._owner = current_owner()
        self.sandboxes: dict[str, PlainSandbox] = {}

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Create a directory and its sandbox."""
        _refuse(spec, image)
        spec = ImageConfig().fill(spec)
        name = f"bf-{secrets.token_hex(6)}"
        self._store.write(self._label(name, labels))
        box = PlainBox(name, spec, self._directory / name)
        sandbox = PlainSandbox(box, on_removed=partial(self._removed, name))
        self.sandboxes[name] = sandbox
        try:
            await box.start()
        except BaseException:
            await finish(sandbox.teardown())
            raise
        return sandbox

    def _label(self, name: str, labels: Mapping[str, str]) -> Label:
        return Label(
            id=name,
            owner=self._owner,
            launcher=None,
            created_at=time.time(),
            labels=dict(labels),
            groups=(),
            plain=True,
        )

    def _removed(self, name: str) -> None:
        self._store.remove(name)
        self.sandboxes.pop(name, None)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Refuse: a plain sandbox takes no snapshot."""
        del image, to
        raise no_snapshots()

    async def load(self, saved: Path) -> SandboxImage:
        """Refuse: a plain sandbox takes no snapshot."""
        del saved
        raise no_snapshots()

    async def discard(self, image: SandboxImage) -> None:
        """Do nothing: a plain sandbox takes no snapshot."""

    async def aclose(self) -> None:
        """Tear down every sandbox. Idempotent."""
        for sandbox in list(self.sandboxes.values()):
            await sandbox.teardown()


def _refuse(spec: SandboxSpec, image: SandboxImage | None) -> None:
    """Raise `SandboxUnsupportedError` for a setting that plain processes cannot have."""
    settings = {
        f"network {spec.network!r}": spec.network != "public",
        f"networks {spec.switches!r}": not {"public"}.issuperset(spec.switches),
        f"image {spec.image!r}": spec.image not in {None, "host"},
        "a recipe": spec.recipe is not None,
        "bundles": bool(spec.bundles),
        "an entrypoint": spec.entrypoint is not None,
        "a door": bool(spec.served_doors),
        "a snapshot": image is not None,
    }
    for setting, is_set in settings.items():
        if is_set:
            raise SandboxUnsupportedError(
                f"an unisolated sandbox cannot have {setting}",
                hint="run as root, enable user namespaces, or use another provider",
            )
