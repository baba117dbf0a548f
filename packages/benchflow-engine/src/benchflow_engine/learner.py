"""The learner store of one rollout: the files that it gets from earlier rollouts and hands on."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow_contracts import (
    LearnerUse,
    LearnerVersion,
    RolloutRecord,
    Sandbox,
    SandboxError,
    StoreError,
    TransferError,
    caused_inside,
)
from benchflow_contracts.pausing import running_timeout
from benchflow_contracts.redaction import redactor
from benchflow_contracts.scratch import scratch_directory

LEARNER_DIR: Final = "/learner"
"""The directory of the learner store inside the sandbox."""
LEARNER_ENV: Final = "BENCHFLOW_LEARNER_DIR"
"""The agent's variable with that directory."""
_FILES_DIR: Final = "learner"
"""The directory of a version, in the directory of the rollout that made the version."""


class LearnerDirectory:
    """The learner store of one rollout, as the `SharedFiles` of its planes.

    The rollout begins with the files of one version. The files that its agent leaves are in the
    rollout's directory, and become the next version if the record of the rollout counts.
    """

    def __init__(
        self, before: LearnerVersion, rollout: Path, *, max_bytes: int, seconds: float = 120
    ) -> None:
        """Prepare the store of a rollout.

        Args:
            before: The version to begin with. The directory of its rollout is beside `rollout`.
            rollout: The directory of the rollout.
            max_bytes: The most bytes of a version.
            seconds: The longest time of the download.
        """
        self._before = before
        self._rollout = rollout
        self._files = rollout / _FILES_DIR
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._digest = before.digest
        self._refused: str | None = None

    async def upload(self, sandbox: Sandbox) -> None:
        """Copy the version in; see `SharedFiles`. The default user of the sandbox owns its files.

        Raises:
            StoreError: The files of the version are missing or damaged.
            SandboxError: The copy failed.
        """
        cleared = await sandbox.exec(["rm", "-rf", LEARNER_DIR], user="root", cwd="/")
        if not cleared.ok:  # An image may have such a directory.
            raise SandboxError(f"cannot empty {LEARNER_DIR!r}: {cleared.stderr[-200:]}")
        if self._before.digest is None or self._before.rollout is None:
            with scratch_directory("learner") as empty:
                await sandbox.upload(empty, LEARNER_DIR, user=sandbox.spec.user)
            return
        files = self._rollout.parent / self._before.rollout / _FILES_DIR
        if await asyncio.to_thread(_digest_of, files) != self._before.digest:
            raise StoreError(
                f"version {self._before.generation} of the learner store is damaged: {str(files)!r}"
                f" does not have the digest {self._before.digest}",
                hint="restore this directory from a copy, or start a new job",
            )
        await sandbox.upload(files, LEARNER_DIR, user=sandbox.spec.user)

    async def download(self, sandbox: Sandbox) -> None:
        """Copy the files out; see `SharedFiles`. Links and special files are left out.

        The operator's secrets are masked, before the files are in the rollout's directory.

        Raises:
            StoreError: The files cannot be written.
            SandboxError: The sandbox or the host failed.
        """
        await asyncio.to_thread(shutil.rmtree, self._files, True)
        with scratch_directory("learner") as scratch:
            self._digest, local = self._before.digest, scratch / _FILES_DIR
            self._refused = await self._refusal(sandbox, local)
            if self._refused is None:
                self._digest = await asyncio.to_thread(_save, local, self._files)

    async def _refusal(self, sandbox: Sandbox, local: Path) -> str | None:
        """Copy the files to `local`. Return why they cannot be a version, or `None`."""
        try:
            async with running_timeout(self._seconds):
                await sandbox.download(
                    LEARNER_DIR, local, max_bytes=self._max_bytes, leave_out=True
                )
        except TimeoutError:
            return f"the download took longer than {self._seconds:g} s"
        except TransferError as error:
            if not caused_inside(error):
                raise
            return str(error)
        is_directory = local.is_dir()  # noqa: ASYNC240 - takes no time
        return None if is_directory else f"{LEARNER_DIR!r} is not a directory"

    async def finish(self, record: RolloutRecord) -> RolloutRecord:
        """Return the record of the rollout with its use of the store.

        A rollout without a reward, and one whose verdict does not count, makes no version. Files
        that are not a new version are deleted.
        """
        before, after = self._before, None
        if record.is_final and not record.tampered and self._digest != before.digest:
            after = LearnerVersion(
                generation=before.generation + 1, digest=self._digest, rollout=record.rollout_id
            )
        else:
            await asyncio.to_thread(shutil.rmtree, self._files, True)
        use = LearnerUse(before=before, after=after, refused=self._refused)
        return record.model_copy(update={"learner": use})


def _save(local: Path, files: Path) -> str | None:
    """Copy a new version to `files`, and flush it to the disk; return its digest.

    The commit of the rollout's record follows. After a power cut the record would otherwise name
    files that are lost.
    """
    try:
        shutil.copytree(local, files, copy_function=_copy_masked)
        for path in (*_below(files), files, *files.parents[:2]):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise StoreError(f"cannot save the learner store {str(files)!r}: {error}") from error
    return _digest_of(files)


def _copy_masked(source: str, target: str) -> None:
    Path(target).write_bytes(redactor().data(Path(source).read_bytes()))
    shutil.copymode(source, target)


def _digest_of(files: Path) -> str | None:
    """Return the digest of names, contents and executable bits; `None` without a file."""
    digest = hashlib.sha256()
    try:
        entries = list(_below(files))
        for path in entries:
            is_file = path.is_file()
            kind = "file" if is_file else "directory"
            if is_file and path.stat().st_mode & 0o100:
                kind = "program"
            digest.update(os.fsencode(f"{kind}\0{path.relative_to(files)}\0"))
            if is_file:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise StoreError(f"cannot read the learner store {str(files)!r}: {error}") from error
    return f"sha256:{digest.hexdigest()}" if entries else None


def _below(files: Path) -> Iterator[Path]:
    return iter(sorted(files.rglob("*")))
