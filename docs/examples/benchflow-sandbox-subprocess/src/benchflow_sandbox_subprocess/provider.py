"""The provider: one private directory per sandbox, and a record of its owner."""

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import uuid4

from benchflow_contracts import (
    BaseProvider,
    ReapPolicy,
    SandboxCapabilities,
    SandboxError,
    SandboxImage,
    SandboxRecord,
    SandboxSpec,
    SandboxUnsupportedError,
    UsageError,
)

from .sandbox import SubprocessSandbox

_RECORD = "record.json"


class SubprocessProvider(BaseProvider):
    """Runs commands as the runner's own user, on the host. Isolates nothing.

    `allow_unisolated` is the operator's consent; without it `create` refuses.
    """

    name = "subprocess"

    def __init__(self, *, allow_unisolated: bool = False) -> None:
        super().__init__()
        self._allowed = allow_unisolated
        self._base = Path(tempfile.gettempdir()) / f"benchflow-subprocess-{os.getuid()}"

    async def ready(self) -> None:
        """Refuse without the operator's consent: `create` would."""
        self._refuse_without_consent()

    async def capabilities(self) -> SandboxCapabilities:
        """Say what is there: no isolation, the host's network, an output cap."""
        return SandboxCapabilities(
            isolation="none",
            network_modes=frozenset({"public"}),
            resource_limits=frozenset({"output"}),
            notes={"isolation": "use a provider with namespaces, containers or machines"},
        )

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> SubprocessSandbox:
        """Make a directory and record its owner."""
        self._refuse_what_is_missing(spec, image)
        home = self._base / f"box-{uuid4().hex[:12]}"
        try:
            self._base.mkdir(mode=0o700, exist_ok=True)
            if self._base.lstat().st_uid != os.getuid():
                raise SandboxError(f"{str(self._base)!r} belongs to somebody else")
            home.mkdir(mode=0o700)
            record = {"pid": os.getpid(), "at": time.time(), "labels": dict(labels or {})}
            (home / _RECORD).write_text(json.dumps(record), encoding="utf-8")
            sandbox = SubprocessSandbox(home, _filled(spec))
        except OSError as error:
            shutil.rmtree(home, ignore_errors=True)
            raise SandboxError(f"sandbox {home.name!r} cannot be made: {error}") from error
        self.track(sandbox)
        return sandbox

    async def sandboxes(self) -> AsyncIterator[SandboxRecord]:
        """Every sandbox of this user, also of dead runners."""
        for path in sorted(self._base.glob(f"*/{_RECORD}")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue  # torn down since the listing
            yield SandboxRecord(
                id=path.parent.name,
                provider=self.name,
                owner_alive=_runs(record["pid"]),
                created_at=record["at"],
                labels=record["labels"],
            )

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove the directories of dead runners."""
        now = time.time()
        found = [record async for record in self.sandboxes() if record.wanted(policy, now)]
        for record in found:
            if record.owner_alive:
                raise SandboxUnsupportedError(f"{record.id!r} is its runner's to remove")
            if not policy.dry_run:
                await asyncio.to_thread(shutil.rmtree, self._base / record.id)
        return found

    def _refuse_without_consent(self) -> None:
        if not self._allowed:
            raise SandboxUnsupportedError(
                "subprocess sandboxes do not isolate", hint="pass --allow-unisolated to accept that"
            )

    def _refuse_what_is_missing(self, spec: SandboxSpec, image: SandboxImage | None) -> None:
        self._refuse_without_consent()
        if spec.allowed_hosts:
            raise UsageError("allowed hosts mean nothing in a network that reaches every host")
        missing = {
            f"network {spec.network!r}": spec.network != "public",
            f"networks {spec.switches!r}": not {"public"}.issuperset(spec.switches),
            f"image {spec.image!r}": spec.image not in {None, "host"},
            "images of their own": spec.recipe is not None,
            "services": bool(spec.services),
            "a door": bool(spec.doors),
            "snapshots": image is not None,
            "bundles": bool(spec.bundles),
            "an entrypoint": spec.entrypoint is not None,
        }
        for what, asked in missing.items():
            if asked:
                raise SandboxUnsupportedError(f"subprocess sandboxes do not have {what}")


def _filled(spec: SandboxSpec) -> SandboxSpec:
    # There is no image to say it: the runner's user, at the top of the private directory.
    return spec.model_copy(update={"user": spec.user or "root", "workdir": spec.workdir or "/"})


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
