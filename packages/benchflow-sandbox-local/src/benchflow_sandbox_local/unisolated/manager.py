"""Makes plain sandboxes, where the operator has accepted them."""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.owner import ProcessIdentity
from benchflow_sandbox_core.shield import finish

from benchflow_sandbox_local.change_tracker import ChangeTracker
from benchflow_sandbox_local.live.dump import DumpCall, SocketMakers
from benchflow_sandbox_local.maker import During
from benchflow_sandbox_local.running_box import LocalRunningBox
from benchflow_sandbox_local.sandbox import LocalSandbox
from benchflow_sandbox_local.store.labels import Label, LabelStore
from benchflow_sandbox_local.store.layers import UndigestedImage

from .sandbox import PlainRunningBox, PlainSandbox

CAPABILITIES = SandboxCapabilities(
    isolation="none",
    network_modes=frozenset({"public"}),
    resource_limits=frozenset({"output"}),
    notes={
        "isolation": "plain processes of your own user: they can read and change all that you can"
        " (hint: run as root, or enable user namespaces)",
        "network": "it is the host's own, so only mode 'public' is true",
        "snapshots": "nothing holds plain processes still, so no instant can be copied",
    },
)
"""What is true without any namespace."""


class PlainManager:
    """Makes and removes plain sandboxes below one directory."""

    def __init__(self, directory: Path, store: LabelStore) -> None:
        self._directory = directory
        self._store = store
        self._owner = ProcessIdentity.of(os.getpid())
        self.sandboxes: dict[str, PlainSandbox] = {}
        self.notes: dict[str, str] = {}

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Make a directory and its sandbox."""
        _refuse(spec, image)
        spec = ImageConfig().fill(spec)
        name = f"bf-{secrets.token_hex(6)}"
        self._store.write(self._label(name, labels))
        directory = self._directory / name
        sandbox = PlainSandbox(name, spec, self, str(directory))
        self.sandboxes[name] = sandbox
        try:
            await sandbox.adopt(PlainRunningBox(name, _make(directory, spec.workdir)))
        except BaseException:
            await finish(sandbox.teardown())
            raise
        return sandbox

    def _label(self, name: str, labels: Mapping[str, str]) -> Label:
        return Label(
            id=name,
            owner=self._owner,
            launcher=self._owner,
            created_at=time.time(),
            labels=dict(labels),
            groups=(),
            plain=True,
        )

    async def socket_in(self, netns: int) -> socket.socket:  # noqa: ARG002 - there is one network
        """Return a socket of the host."""
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def check(self, image: SandboxImage) -> None:  # noqa: ARG002 - refused
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    def require_live(self) -> None:
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    def forking(
        self,
        sandbox: LocalSandbox,  # noqa: ARG002 - refused
    ) -> AbstractAsyncContextManager[DumpCall]:
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def inspect(self, sandbox: LocalSandbox) -> SocketMakers:  # noqa: ARG002 - refused
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def fork(
        self,
        sandbox: LocalSandbox,  # noqa: ARG002 - refused
        dump: DumpCall,  # noqa: ARG002
        makers: SocketMakers,  # noqa: ARG002
        *,
        held: bool,  # noqa: ARG002
    ) -> UndigestedImage:
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def publish(self, forked: UndigestedImage) -> SandboxImage:  # noqa: ARG002 - refused
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def seal(
        self,
        sandbox: LocalSandbox,  # noqa: ARG002 - refused
        while_frozen: During | None,  # noqa: ARG002
    ) -> SandboxImage:
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def restart(
        self,
        sandbox: LocalSandbox,  # noqa: ARG002 - refused
        image: SandboxImage,  # noqa: ARG002
    ) -> LocalRunningBox:
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def save(self, image: SandboxImage, to: Path) -> None:  # noqa: ARG002 - refused
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def load(self, saved: Path) -> SandboxImage:  # noqa: ARG002 - refused
        """Refuse: there are no snapshots."""
        raise _no_snapshots()

    async def discard(self, image: SandboxImage) -> None:
        """Do nothing: there are no snapshots."""

    def written(self, sandbox: LocalSandbox) -> ChangeTracker:
        """Refuse: what plain processes write is nowhere apart."""
        raise _not_apart(sandbox)

    async def remove(self, sandbox: LocalSandbox) -> None:
        """Remove the directory of a sandbox whose processes are dead. Idempotent."""
        if self.sandboxes.pop(sandbox.id, None) is not None:
            shutil.rmtree(self._directory / sandbox.id, ignore_errors=True)
            self._store.remove(sandbox.id)

    async def aclose(self) -> None:
        """Tear down every sandbox. Idempotent."""
        for sandbox in list(self.sandboxes.values()):
            await sandbox.teardown()


def _make(directory: Path, workdir: str) -> str:
    Path(f"{directory}{workdir}").mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(directory)


def _no_snapshots() -> SandboxUnsupportedError:
    return SandboxUnsupportedError(
        "a plain sandbox takes no snapshot", hint="run where namespaces are allowed"
    )


def _not_apart(sandbox: LocalSandbox) -> SandboxUnsupportedError:
    return SandboxUnsupportedError(
        f"the changes of the plain sandbox {sandbox.id!r} are not known",
        hint="run where namespaces are allowed",
    )


def _refuse(spec: SandboxSpec, image: SandboxImage | None) -> None:
    """Refuse what plain processes would only pretend to honour."""
    wishes = {
        f"network {spec.network!r}": spec.network != "public",
        f"networks {spec.switches!r}": not {"public"}.issuperset(spec.switches),
        f"image {spec.image!r}": spec.image not in {None, "host"},
        "a recipe": spec.recipe is not None,
        "mounts": bool(spec.mounts),
        "an entrypoint": spec.entrypoint is not None,
        "a model endpoint": spec.model is not None,
        "a snapshot": image is not None,
    }
    for wish, present in wishes.items():
        if present:
            raise SandboxUnsupportedError(
                f"an unisolated sandbox cannot have {wish}",
                hint="run as root, enable user namespaces, or use another provider",
            )
