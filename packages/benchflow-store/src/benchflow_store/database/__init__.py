"""The record database of jobs: one writer for each job, many readers, and its projections."""

from .connection import Location
from .errors import (
    DamagedDatabaseError,
    DatabaseBusyError,
    DiskFaultError,
    DiskFullError,
    JobIsRunningError,
    SchemaVersionError,
    StaleWriterError,
)
from .evidence import LocalEvidenceStore
from .fact_rows import UNCOMPARED, comparable
from .job_lock import is_locked, lock_job
from .maintenance import (
    ARTIFACTS_DIR,
    DATABASE_FILE,
    FileState,
    GcReport,
    MigrateReport,
    RebuildReport,
    VerifyReport,
    gc,
    migrate,
    rebuild,
    verify,
)
from .object_evidence import ObjectEvidenceStore
from .projection import PROJECTED_FILES, Projector, project
from .reader import AttemptError, AttemptRow, JobReader, ResolvedSlot, read_job_state
from .rows import (
    ArtifactRef,
    AttemptStatus,
    Commit,
    EventRow,
    JobState,
    JobStatus,
    Metric,
    PlannedSlot,
    PlanRevision,
    Receipt,
    RunControl,
    SlotStatus,
    StoredSlot,
    record_metrics,
)
from .writer import JobWriter

__all__ = [
    "ARTIFACTS_DIR",
    "DATABASE_FILE",
    "PROJECTED_FILES",
    "UNCOMPARED",
    "ArtifactRef",
    "AttemptError",
    "AttemptRow",
    "AttemptStatus",
    "Commit",
    "DamagedDatabaseError",
    "DatabaseBusyError",
    "DiskFaultError",
    "DiskFullError",
    "EventRow",
    "FileState",
    "GcReport",
    "JobIsRunningError",
    "JobReader",
    "JobState",
    "JobStatus",
    "JobWriter",
    "LocalEvidenceStore",
    "Location",
    "Metric",
    "MigrateReport",
    "ObjectEvidenceStore",
    "PlanRevision",
    "PlannedSlot",
    "Projector",
    "RebuildReport",
    "Receipt",
    "ResolvedSlot",
    "RunControl",
    "SchemaVersionError",
    "SlotStatus",
    "StaleWriterError",
    "StoredSlot",
    "VerifyReport",
    "comparable",
    "gc",
    "is_locked",
    "lock_job",
    "migrate",
    "project",
    "read_job_state",
    "rebuild",
    "record_metrics",
    "verify",
]
