"""Check, rebuild, clean and migrate the record of a job's directory."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchflow_contracts import EvidenceStore, StoreError

from .connection import ARTIFACTS_DIR, DATABASE_FILE, Location, connect
from .evidence import LocalEvidenceStore
from .job_lock import is_locked, lock_job
from .projection import PROJECTED_FILES, project, projected
from .reader import JobReader
from .schema import migrate_schema

FileState = Literal["equal", "behind", "different", "missing"]
"""`behind`: the file is a beginning of the projection, and the job has continued since."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`."""

    slots: int
    cursor: int
    artifacts: int
    """The number of artifacts whose bytes were compared with their digest."""
    files: Mapping[str, FileState]
    is_running: bool
    """Whether a process runs the job: its files may then be behind."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The result of `rebuild`."""

    cursor: int
    """The number of slots that the files show."""
    changed: tuple[str, ...]
    """The files whose bytes were missing or wrong."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """The result of `gc`."""

    kept: int
    deleted: tuple[str, ...]
    """The digests of the artifacts that no row names."""
    bytes: int
    """The size of the deleted artifacts."""
    unfinished: int
    """The number of deleted files that a killed process left half-written."""


@dataclass(frozen=True, slots=True)
class MigrateReport:
    """The result of `migrate`."""

    before: int
    after: int


def verify(
    directory: Path, location: Location | None = None, *, evidence: EvidenceStore | None = None
) -> VerifyReport:
    """Check the database, the digests of all artifacts, and the projected files.

    Args:
        directory: The directory of the job.
        location: The database (default: `record.db` of the job).
        evidence: The artifacts of the job (default: `artifacts/` of the job).

    Raises:
        StoreError: The database cannot be opened, or has another schema version.
    """
    is_running = is_locked(directory)
    with JobReader(location or directory / DATABASE_FILE) as reader:
        problems = [f"the database is damaged: {text}" for text in reader.check_integrity()]
        if problems:
            return VerifyReport(0, 0, 0, {}, is_running, tuple(problems))
        problems += reader.contradictions()
        digests = sorted(reader.digests())
        files: dict[str, FileState] = {
            name: _compare(directory / name, projected(reader, name)) for name in PROJECTED_FILES
        }
        slots, cursor = sum(reader.counts().values()), reader.progress()[0]
    for name, state in files.items():
        if state != "equal" and not is_running:
            problems.append(f"{name} is {state}")
    if evidence is None:
        damaged = list(_damaged(directory / ARTIFACTS_DIR, digests))
    else:
        damaged = asyncio.run(_damaged_elsewhere(evidence, digests))
    return VerifyReport(
        slots=slots,
        cursor=cursor,
        artifacts=len(digests),
        files=files,
        is_running=is_running,
        problems=(*problems, *damaged),
    )


def _damaged(directory: Path, digests: Iterable[str]) -> Iterator[str]:
    store = LocalEvidenceStore(directory)
    for digest in digests:
        try:
            store.read(digest)
        except StoreError as error:
            yield str(error)


async def _damaged_elsewhere(store: EvidenceStore, digests: Iterable[str]) -> list[str]:
    problems: list[str] = []
    for digest in digests:
        try:
            await store.get(digest)
        except StoreError as error:
            problems.append(str(error))
    return problems


def rebuild(directory: Path, location: Location | None = None) -> RebuildReport:
    """Write the facts, the evidence lists and the runtime files again from the database.

    Raises:
        JobIsRunningError: A process runs the job, and writes these files itself.
        StoreError: The database cannot be read, or a file cannot be written.
    """
    location = location or directory / DATABASE_FILE
    with lock_job(directory):
        with JobReader(location) as reader:
            changed = [
                name
                for name in PROJECTED_FILES
                if _compare(directory / name, projected(reader, name)) != "equal"
            ]
        cursor = project(directory, location)
    return RebuildReport(cursor=cursor, changed=tuple(changed))


def gc(directory: Path, location: Location | None = None, *, dry_run: bool = False) -> GcReport:
    """Delete the artifacts that no row of the database names.

    Raises:
        JobIsRunningError: A process runs the job. It stores artifacts before it names them.
        StoreError: The database cannot be read, or an artifact cannot be deleted.
    """
    store = LocalEvidenceStore(directory / ARTIFACTS_DIR)
    with lock_job(directory):
        with JobReader(location or directory / DATABASE_FILE) as reader:
            named = reader.digests()
        present = list(store.digests())
        unnamed = [(digest, size) for digest, size in present if digest not in named]
        if not dry_run:
            for digest, _ in unnamed:
                store.remove(digest)
        unfinished = 0 if dry_run else store.remove_unfinished()
    return GcReport(
        kept=len(present) - len(unnamed),
        deleted=tuple(digest for digest, _ in unnamed),
        bytes=sum(size for _, size in unnamed),
        unfinished=unfinished,
    )


def migrate(directory: Path, location: Location | None = None) -> MigrateReport:
    """Bring the schema of the database to this program's version, in one transaction.

    Raises:
        JobIsRunningError: A process runs the job.
        SchemaVersionError: The database is newer than this program.
        StoreError: The database cannot be opened or written.
    """
    with lock_job(directory):
        connection = connect(location or directory / DATABASE_FILE, "write")
        try:
            before, after = migrate_schema(connection)
        finally:
            connection.close()
    return MigrateReport(before=before, after=after)


def _compare(path: Path, parts: Iterator[bytes]) -> FileState:
    """Compare a file with the parts of its projection."""
    try:
        with path.open("rb") as file:
            for part in parts:
                found = file.read(len(part))
                if found != part:
                    is_prefix = part.startswith(found) and not file.read(1)
                    return "behind" if is_prefix else "different"
            return "different" if file.read(1) else "equal"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
