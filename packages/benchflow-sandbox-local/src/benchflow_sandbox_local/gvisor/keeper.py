"""The provider's workshop for gVisor boxes."""

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import HostError, SandboxError, SnapshotError
from benchflow_contracts.sandbox import Isolation, SandboxImage, SandboxSpec
from benchflow_sandbox_core.fifo.streams import FifoStreams
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_native import guest_path

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.cgroup.hierarchy import Hierarchies
from benchflow_sandbox_local.change_tracker import ChangeTracker
from benchflow_sandbox_local.keeper import Keeper
from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.live.budget import resident
from benchflow_sandbox_local.live.processes import CarriedProcess, LiveState, park, unpark
from benchflow_sandbox_local.networks import GUEST
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.running_box import Place, box_request
from benchflow_sandbox_local.sandbox import LocalSandbox
from benchflow_sandbox_local.store.labels import PROVIDER, LabelStore
from benchflow_sandbox_local.store.layers import StoredImage

from .engine import RunscProgram
from .group import GvisorGroup
from .running_box import GvisorRunningBox
from .sandbox import GvisorSandbox

NOTES = {
    "memory": "a gVisor box that is out of memory ends as a whole",
    "pids": "the processes of a gVisor box are not the host's, so none can be counted",
    "deleted files": "a box in which one is open cannot be forked live, which says so",
    "file identity": "a file that nobody has open gets another st_ino in a live fork",
}
"""What gVisor cannot do."""


class GvisorManager(Keeper):
    """Makes, seals, forks and removes gVisor boxes.

    A checkpoint leaves the box running and copies its upper layer, so a fork that fails costs
    the box nothing.
    """

    live_engine = "runsc"
    isolation: Isolation = "container"
    networks = GUEST
    no_builds = "files are not put into gVisor's boxes from outside"
    lost_in_fork = frozenset({"deleted file", "file identity"})

    def __init__(
        self,
        engine: RunscProgram,
        launcher: Launcher,
        directory: Path,
        store: LabelStore,
        where: Hierarchies,
        *,
        rooted: bool,
        live_budget: int,
        live_seconds: float,
    ) -> None:
        super().__init__(
            launcher,
            directory,
            store,
            where,
            rooted=rooted,
            live_budget=live_budget,
            live_seconds=live_seconds,
        )
        self._seconds = live_seconds
        self._engine = engine
        self.notes.update(NOTES)

    async def live_version(self) -> str:
        """Return what the engine says of itself."""
        return await asyncio.to_thread(self._engine.version)

    def require_live(self) -> None:
        """Do nothing: every box here can be forked."""

    def _find_forker(self, launcher: Launcher, seconds: float, *, rooted: bool) -> None:
        """Do without CRIU: boxes of this kind are written down by their own kernel."""

    def _init(self) -> str:
        return str(guest_path())

    def _new_sandbox(self, name: str, spec: SandboxSpec, group: Group, base: Base) -> LocalSandbox:
        return GvisorSandbox(name, spec, GvisorGroup(group), self, base)

    def _asked(self, sandbox: LocalSandbox, place: Place, **more: object) -> dict[str, Any]:
        base = self._bodies[sandbox.id].base
        asked = box_request(place, sandbox.spec, base, sandbox.group)
        return {**asked, "program": self._engine.program, "image": None, **more}

    async def _start(self, sandbox: LocalSandbox) -> GvisorRunningBox:
        place = self._new_place(sandbox)
        machine = await GvisorRunningBox.start(
            self._launcher, self._asked(sandbox, place), sandbox.spec
        )
        self.notes.update(machine.notes)
        return machine

    async def _bring_up(self, sandbox: LocalSandbox, state: LiveState) -> None:
        place = self._new_place(sandbox)
        mounts = [{"source": source, "target": target} for source, target in state.mounts]
        asked = self._asked(sandbox, place, image=state.name, mounts=mounts, relay_port=state.port)
        try:
            machine = await GvisorRunningBox.start(
                self._launcher, asked, sandbox.spec, state.processes
            )
        except HostError:
            raise
        except SandboxError as error:
            raise SnapshotError(f"the box does not come back: {error}") from error
        await sandbox.adopt(machine)
        for carried in state.processes:
            streams = machine.carried.pop(carried.id)
            sandbox.carry_in(SandboxProcess(machine, carried.pid, streams, carried.id))

    async def checkpoint(self, sandbox: GvisorSandbox) -> SandboxImage:
        """Take a live snapshot of a box that is held still.

        Raises:
            SnapshotError: It failed. The box goes on.
        """
        need = sum(resident(pid) for pid in sandbox.group.members())
        with self._budget.promised(need):
            return await self._checkpoint(sandbox)

    async def _checkpoint(self, sandbox: GvisorSandbox) -> SandboxImage:
        processes = sandbox.processes
        made: list[SandboxImage] = []
        try:
            await park(processes)
            state = await self._write_down(sandbox, processes)
            async with AsyncExitStack() as still:
                files = await self._seal(sandbox, made, still)
        except HostError:
            raise
        except (LauncherError, TimeoutError) as error:
            deleted = "deleted" in str(error)
            raise SnapshotError(
                f"cannot snapshot {sandbox.id!r}: {error}",
                hint="close the files that were deleted" if deleted else None,
                retryable=deleted,
            ) from error
        finally:
            unpark(processes)
        return await self._join(files, state)

    async def _write_down(
        self, sandbox: GvisorSandbox, processes: list[SandboxProcess]
    ) -> LiveState:
        await sandbox.gvisor.ask("checkpoint", self._seconds)
        name = f"i{secrets.token_hex(4)}"
        box = self._bodies[sandbox.id].box
        taken = await self._launcher.ask("take", box=box, image=name)
        shown = tuple((mount.source, mount.target) for mount in sandbox.spec.mounts)
        model = sandbox.spec.model
        port = None if model is None else model.port
        carried = tuple(_carried(process) for process in processes)
        return LiveState(name, taken.message["bytes"], carried, shown, port)

    async def _join(self, files: SandboxImage, state: LiveState) -> SandboxImage:
        """Make one image of files and processes."""
        sealed = self.images.get(files)
        layer, under = sealed.layers[0], sealed.layers[1:]
        answer = await self._launcher.ask(
            "identify",
            image=state.name,
            family=layer.family.name,
            layer=layer.name,
            parent=under[0].digest if under else sealed.base.key,
        )
        image = SandboxImage(
            provider=PROVIDER,
            level="live",
            ref=f"{self._owner.pid}-{layer.family.name}/{state.name}",
            digest=answer.message["digest"],
            bytes=state.bytes,
        )
        self.images.add(StoredImage(image, sealed.base, sealed.layers, state, sealed.mark))
        await finish(self.discard(files))
        return image

    def written(self, sandbox: LocalSandbox) -> ChangeTracker:
        """Return what compares the files of a box, whose processes are not the host's to count."""
        return replace(super().written(sandbox), counts=False)

    async def _forget_state(self, state: LiveState) -> None:
        await self._launcher.ask("forget", image=state.name)


def _carried(process: SandboxProcess) -> CarriedProcess:
    streams = process.streams
    assert isinstance(streams, FifoStreams)
    stdin, stdout, stderr = (None if end.closed else streams.number for end in streams.ends)
    out, err = streams.stdout.carried, streams.stderr.carried
    return CarriedProcess(process.id, process.pid, (stdin, stdout, stderr), out, err)
