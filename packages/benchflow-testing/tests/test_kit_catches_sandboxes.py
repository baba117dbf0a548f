"""The kit can fail: a provider that breaks one promise fails the check of that promise."""

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from benchflow_contracts import (
    ExecResult,
    SandboxTimeoutError,
    TransferError,
)
from benchflow_testing import check as check_module
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    FakeSandbox,
    FakeSandboxProvider,
)
from benchflow_testing.fakes.process import FakeGate

pytestmark = pytest.mark.usefixtures("impatient")


class TimeoutLeavesProcesses(FakeSandbox):
    async def exec(self, cmd, *, timeout=None, **rest):
        if timeout is None:
            return await super().exec(cmd, **rest)
        process = await super().spawn(cmd)
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
        except TimeoutError:
            raise SandboxTimeoutError("late") from None
        return ExecResult(exit_code=code, stdout="", stderr="", duration_sec=0)


class CancelLeavesProcesses(FakeSandbox):
    async def exec(self, cmd, *, timeout=None, **rest):
        if "ticks" not in cmd:
            return await super().exec(cmd, timeout=timeout, **rest)
        process = await super().spawn(cmd)
        return ExecResult(exit_code=await process.wait(), stdout="", stderr="", duration_sec=0)


class WaitsForDaemons(FakeSandbox):
    async def exec(self, cmd, *, timeout=None, **rest):
        text = f"{cmd}\nwait" if isinstance(cmd, str) else cmd
        return await super().exec(text, timeout=timeout, **rest)


class FreezesNothing(FakeSandbox):
    @asynccontextmanager
    async def freeze(self):
        yield


class FreezesTheSpawnedAlone(FakeSandbox):
    async def exec(self, cmd, **rest):
        gate, self.machine.gate = self.machine.gate, FakeGate()
        try:
            return await super().exec(cmd, **rest)
        finally:
            self.machine.gate = gate


class TearsSnapshots(FakeSandbox):
    async def snapshot(self, level="filesystem", *, while_frozen=None):
        image = await super().snapshot(level, while_frozen=while_frozen)
        path = f"{self.spec.workdir}/z-second"
        await asyncio.sleep(0.05)
        self.provider.images._sealed[image.ref].files.put(path, self.files.read(path))
        return image


class CallsAFrozenSnapshotTorn(FakeSandbox):
    async def snapshot(self, level="filesystem", *, while_frozen=None):
        image = await super().snapshot(level, while_frozen=while_frozen)
        return image.model_copy(update={"consistency": "crash_consistent"})


class KillsNoDaemons(FakeSandbox):
    async def kill_all(self):
        for process in [*self.machine.processes.values()]:
            await process.kill()


class ThawsEarly(FakeSandbox):
    @asynccontextmanager
    async def freeze(self):
        self.gate._holders.append(None)
        self.gate._open.clear()
        try:
            yield
        finally:
            self.gate._holders.clear()
            self.gate._open.set()


class StaysFrozenOnError(FakeSandbox):
    @asynccontextmanager
    async def freeze(self):
        self.gate._holders.append(None)
        self.gate._open.clear()
        yield
        self.gate._holders.clear()
        self.gate._open.set()


class WaitsForItsOwnFreeze(FakeSandbox):
    @asynccontextmanager
    async def freeze(self):
        async with super().freeze():
            self.gate._holders[-1] = None
            yield


class ReadsBeforeTheFreeze(FakeSandbox):
    async def snapshot(self, level="filesystem", *, while_frozen=None):
        if while_frozen is not None:
            await while_frozen()
        return await super().snapshot(level)


class StaysFrozenAfterAReader(FakeSandbox):
    async def snapshot(self, level="filesystem", *, while_frozen=None):
        if while_frozen is None:
            return await super().snapshot(level)
        self.gate._holders.append(None)
        self.gate._open.clear()
        await while_frozen()
        return await super().snapshot(level)


class AlwaysSucceeds(FakeSandbox):
    async def exec(self, cmd, **rest):
        return (await super().exec(cmd, **rest)).model_copy(update={"exit_code": 0})


class ReportsSignalsRaw(FakeSandbox):
    async def exec(self, cmd, **rest):
        result = await super().exec(cmd, **rest)
        return result.model_copy(update={"exit_code": -(result.exit_code - 128)})


class MixesStreams(FakeSandbox):
    async def exec(self, cmd, **rest):
        result = await super().exec(cmd, **rest)
        return result.model_copy(update={"stdout": result.stdout + result.stderr, "stderr": ""})


class JoinsArguments(FakeSandbox):
    async def exec(self, cmd, **rest):
        return await super().exec(cmd if isinstance(cmd, str) else " ".join(cmd), **rest)


class LeaksTheHost(FakeSandbox):
    async def exec(self, cmd, *, env=None, **rest):
        return await super().exec(cmd, env={**os.environ, **(env or {})}, **rest)


class ForgetsTheCount(FakeSandbox):
    async def exec(self, cmd, **rest):
        result = await super().exec(cmd, **rest)
        return result.model_copy(update={"stdout_dropped": 0})


class IgnoresStdin(FakeSandbox):
    async def exec(self, cmd, *, stdin=b"", **rest):
        return await super().exec(cmd, **rest)


class FallsBackToTheDefaultUser(FakeSandbox):
    async def exec(self, cmd, *, user=None, **rest):
        return await super().exec(cmd, user=user if user == "root" else None, **rest)


class RunsAllAsRoot(FakeSandbox):
    async def exec(self, cmd, *, user=None, **rest):
        return await super().exec(cmd, user="root", **rest)


class FallsBackToTheWorkdir(FakeSandbox):
    async def exec(self, cmd, *, cwd=None, **rest):
        known = cwd is not None and self.files.exists(cwd)
        return await super().exec(cmd, cwd=cwd if known else None, **rest)


class KeepsShellState(FakeSandbox):
    last = None

    async def exec(self, cmd, *, cwd=None, **rest):
        if isinstance(cmd, str) and "cd away" in cmd:
            self.last = f"{self.spec.workdir}/away"
        return await super().exec(cmd, cwd=cwd or self.last, **rest)


class KillsLeadersOnly(FakeSandbox):
    async def spawn(self, cmd, **rest):
        process = await super().spawn(cmd, **rest)

        async def kill() -> None:
            process.group._finish(137)

        process.kill = kill
        return process


class FollowsLinks(FakeSandbox):
    async def download(self, remote, local, **rest):
        entry = self.files.entry(remote)
        if entry is None or entry.kind != "file":
            await super().download(remote, local, **rest)
        else:
            local.write_bytes(entry.data)


class FollowsLinksToTheHost(FakeSandbox):
    async def download(self, remote, local, **rest):
        parent, _, name = remote.rpartition("/")
        entry = self.files.entry(parent, follow=False)
        if entry is None or entry.kind != "link":
            await super().download(remote, local, **rest)
        else:
            local.write_bytes((Path(entry.target) / name).read_bytes())


class NeverLeavesOut(FakeSandbox):
    async def download(self, remote, local, **rest):
        await super().download(remote, local, **{**rest, "leave_out": False})


class LeavesPartialDownloads(FakeSandbox):
    async def download(self, remote, local, **rest):
        try:
            await super().download(remote, local, **rest)
        except TransferError:
            local.write_bytes(b"partial")
            raise


class UploadsUntilALink(FakeSandbox):
    async def upload(self, local, remote, *, user="root"):
        if local.is_dir():
            for path in sorted(local.iterdir()):
                await super().upload(path, f"{remote}/{path.name}", user=user)
        else:
            await super().upload(local, remote, user=user)


class UploadsThroughLinks(FakeSandbox):
    async def upload(self, local, remote, *, user="root"):
        target = local.resolve()
        await super().upload(target, remote, user=user)


class LosesTheExecutableBit(FakeSandbox):
    async def upload(self, local, remote, *, user="root"):
        await super().upload(local, remote, user=user)
        for path in self.files.below(remote):
            if self.files.entry(path).kind == "file":
                self.files.chmod(path, 0o644)


class ClosesWhatItMakes(FakeSandbox):
    async def upload(self, local, remote, *, user="root"):
        there = self.files.exists(remote)
        await super().upload(local, remote, user=user)
        if local.is_dir() and not there:
            self.files.chmod(remote, local.stat().st_mode & 0o777)


class ForgetsTheOwner(FakeSandbox):
    async def upload(self, local, remote, *, user="root"):
        await super().upload(local, remote, user=self.spec.user)


class ReplacesDirectories(FakeSandbox):
    async def upload(self, local, remote, *, user="root"):
        if local.is_dir() and self.files.exists(remote):
            self.files.remove(remote, recursive=True)
        await super().upload(local, remote, user=user)


class RestoreKeepsProcesses(FakeSandbox):
    async def restore(self, image):
        self.machine.files._entries = self.provider.images.open(image).files._entries


class RestoreDoesNothing(FakeSandbox):
    async def restore(self, image):
        await self.machine.halt()


class SnapshotsAnyLevel(FakeSandbox):
    async def snapshot(self, level="filesystem"):
        return await super().snapshot("filesystem")


class WorksAfterTeardown(FakeSandbox):
    async def exec(self, cmd, **rest):
        alive, self.alive = self.alive, True
        try:
            return await super().exec(cmd, **rest)
        finally:
            self.alive = alive


class SwitchesSilently(FakeSandbox):
    async def switch_network(self, mode, allowed_hosts=()):
        del mode, allowed_hosts


class SwitchesToAnything(FakeSandbox):
    async def switch_network(self, mode, allowed_hosts=()):
        hosts = tuple(allowed_hosts)
        self._spec = self.spec.model_copy(update={"network": mode, "allowed_hosts": hosts})


class SwitchEndsProcesses(FakeSandbox):
    async def switch_network(self, mode, allowed_hosts=()):
        await super().switch_network(mode, allowed_hosts)
        await self.machine.halt()


class RestoreForgetsTheSwitch(FakeSandbox):
    async def restore(self, image):
        await super().restore(image)
        self._spec = self.spec.model_copy(update={"network": "model-only"})


class SwitchesTheNameAlone(FakeSandbox):
    async def exec(self, cmd, *, user=None, **rest):
        return await super().exec(cmd, user=user or "agent", **rest)


class ClaimsASwitch(FakeSandbox):
    switch_network = None


class SwitchesToNobody(FakeSandbox):
    async def switch_user(self, user):
        self._spec = self.spec.model_copy(update={"user": user})


class RepeatsIds(FakeSandbox):
    id = "always-the-same"


BROKEN_SANDBOXES = [
    (TimeoutLeavesProcesses, "a_timeout_kills_the_whole_group"),
    (CancelLeavesProcesses, "cancellation_kills_the_whole_group"),
    (FreezesNothing, "freeze_stops_every_process"),
    (FreezesTheSpawnedAlone, "a_kernel_freeze_stops_background_processes_of_root"),
    (TearsSnapshots, "an_instant_snapshot_is_not_torn"),
    (CallsAFrozenSnapshotTorn, "the_consistency_of_snapshots_is_named"),
    (KillsNoDaemons, "kill_all_ends_every_process_and_keeps_the_files"),
    (FreezesNothing, "snapshot_works_in_a_frozen_sandbox"),
    (ThawsEarly, "freeze_is_reentrant"),
    (StaysFrozenOnError, "freeze_thaws_on_error"),
    (ReadsBeforeTheFreeze, "a_snapshot_has_the_state_that_while_frozen_reads"),
    (StaysFrozenAfterAReader, "an_error_in_while_frozen_passes_through"),
    (WaitsForItsOwnFreeze, "exec_inside_a_freeze_block_is_refused"),
    (AlwaysSucceeds, "exec_reports_the_exit_code"),
    (AlwaysSucceeds, "a_missing_program_is_never_a_success"),
    (ReportsSignalsRaw, "exec_reports_a_signal_as_128_plus_n"),
    (MixesStreams, "exec_keeps_stdout_and_stderr_apart"),
    (JoinsArguments, "exec_passes_an_argument_vector_unchanged"),
    (LeaksTheHost, "variables_of_the_runner_are_not_visible_inside"),
    (ForgetsTheCount, "exec_caps_output_and_counts_the_rest"),
    (IgnoresStdin, "exec_feeds_stdin_and_closes_it"),
    (FallsBackToTheDefaultUser, "exec_refuses_an_unknown_user"),
    (RunsAllAsRoot, "exec_runs_as_the_given_user"),
    (RunsAllAsRoot, "upload_gives_files_to_the_given_user"),
    (FallsBackToTheWorkdir, "exec_refuses_a_missing_directory"),
    (KeepsShellState, "execs_do_not_share_shell_state"),
    (KillsLeadersOnly, "kill_ends_the_whole_group"),
    (KillsLeadersOnly, "closing_a_process_kills_it"),
    (FollowsLinks, "download_refuses_links"),
    (FollowsLinksToTheHost, "a_linked_parent_does_not_lead_to_the_host"),
    (NeverLeavesOut, "leave_out_skips_links_and_pipes"),
    (LeavesPartialDownloads, "download_stops_at_its_cap"),
    (LeavesPartialDownloads, "download_of_a_missing_path_is_an_error"),
    (UploadsUntilALink, "upload_refuses_links"),
    (UploadsThroughLinks, "upload_refuses_links"),
    (LosesTheExecutableBit, "upload_keeps_the_executable_bit"),
    (ClosesWhatItMakes, "upload_makes_a_directory_that_all_can_enter"),
    (ForgetsTheOwner, "upload_gives_files_to_the_given_user"),
    (ReplacesDirectories, "upload_merges_a_tree_into_a_directory"),
    (RestoreKeepsProcesses, "restore_ends_all_processes"),
    (RestoreDoesNothing, "restore_rolls_the_files_back"),
    (WorksAfterTeardown, "teardown_may_be_repeated"),
    (SwitchesSilently, "the_spec_has_the_current_network"),
    (SwitchEndsProcesses, "the_spec_has_the_current_network"),
    (SwitchesToAnything, "a_network_outside_the_switches_is_refused"),
    (RestoreForgetsTheSwitch, "a_restored_sandbox_has_the_current_network"),
    (SwitchesTheNameAlone, "the_default_user_changes"),
    (SwitchesToNobody, "a_switch_to_an_unknown_user_is_refused"),
    (ClaimsASwitch, "the_spec_has_the_current_network"),
    (RepeatsIds, "each_sandbox_has_its_own_id_and_spec"),
]


@pytest.mark.parametrize(("broken", "name"), BROKEN_SANDBOXES)
def test_a_broken_sandbox_fails_the_check_of_its_promise(broken, name, status_of):
    provider = FakeSandboxProvider(sandbox_type=broken)
    assert status_of(provider, name) == "failed"


def test_a_level_beyond_the_capabilities_fails(status_of):
    provider = FakeSandboxProvider(sandbox_type=SnapshotsAnyLevel, capabilities=FAKE_WITHOUT_LIVE)
    assert status_of(provider, "an_unsupported_level_is_refused") == "failed"


def test_an_exec_that_waits_for_daemons_fails(monkeypatch, status_of):
    name = "exec_does_not_wait_for_background_processes"
    provider = FakeSandboxProvider(sandbox_type=WaitsForDaemons)
    real = asyncio.timeout
    # The check allows ten seconds for what is done at once.
    monkeypatch.setattr(asyncio, "timeout", lambda sec: real(0.2 if sec == 10 else sec))
    assert status_of(provider, name) == "failed"


def test_a_check_that_hangs_has_failed(monkeypatch, status_of):
    monkeypatch.setattr(check_module, "DEADLINE_SEC", 0.05)
    provider = FakeSandboxProvider(hang_on={"exec"})
    assert status_of(provider, "exec_reports_the_exit_code") == "failed"


def test_checks_that_run_beside_others_have_more_time(monkeypatch):
    monkeypatch.setattr(check_module, "DEADLINE_SEC", 0.05)

    @check_module.promise()
    async def a_check_that_hangs(subject):
        """Never ends."""
        await asyncio.Event().wait()

    [result] = asyncio.run(check_module.run_checks([a_check_that_hangs], None, at_once=4))
    assert (result.status, result.reason) == ("failed", "did not end within 0.2 s")
