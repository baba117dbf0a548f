"""The record database of jobs: one writer for each job, many readers, and its projections.

The names below are loaded on first use: a program imports only the modules that it uses.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from .connection import ARTIFACTS_DIR, DATABASE_FILE, Location
    from .errors import (
        DamagedDatabaseError,
        DatabaseBusyError,
        DiskFaultError,
        DiskFullError,
        EmptyDatabaseError,
        JobIsRunningError,
        SchemaVersionError,
        StaleWriterError,
        UnknownOutcomeError,
    )
    from .evidence import LocalEvidenceStore
    from .fact_rows import UNCOMPARED, comparable
    from .job_list import ListedJob, list_jobs
    from .job_lock import is_locked, lock_job
    from .maintenance import (
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
    from .record_rows import record_metrics
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
    )
    from .summary import ErrorTotal, MetricTotal, RecordTotals, VariantTotals
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
    "EmptyDatabaseError",
    "ErrorTotal",
    "EventRow",
    "FileState",
    "GcReport",
    "JobIsRunningError",
    "JobReader",
    "JobState",
    "JobStatus",
    "JobWriter",
    "ListedJob",
    "LocalEvidenceStore",
    "Location",
    "Metric",
    "MetricTotal",
    "MigrateReport",
    "ObjectEvidenceStore",
    "PlanRevision",
    "PlannedSlot",
    "Projector",
    "RebuildReport",
    "Receipt",
    "RecordTotals",
    "ResolvedSlot",
    "RunControl",
    "SchemaVersionError",
    "SlotStatus",
    "StaleWriterError",
    "StoredSlot",
    "UnknownOutcomeError",
    "VariantTotals",
    "VerifyReport",
    "comparable",
    "gc",
    "is_locked",
    "list_jobs",
    "lock_job",
    "migrate",
    "project",
    "read_job_state",
    "rebuild",
    "record_metrics",
    "verify",
]

_HOMES = {
    name: module
    for module, names in {
        "connection": "ARTIFACTS_DIR DATABASE_FILE Location",
        "errors": (
            "DamagedDatabaseError DatabaseBusyError DiskFaultError DiskFullError "
            "EmptyDatabaseError JobIsRunningError SchemaVersionError StaleWriterError "
            "UnknownOutcomeError"
        ),
        "evidence": "LocalEvidenceStore",
        "fact_rows": "UNCOMPARED comparable",
        "job_list": "ListedJob list_jobs",
        "job_lock": "is_locked lock_job",
        "maintenance": (
            "FileState GcReport MigrateReport RebuildReport VerifyReport gc migrate rebuild verify"
        ),
        "object_evidence": "ObjectEvidenceStore",
        "projection": "PROJECTED_FILES Projector project",
        "reader": "AttemptError AttemptRow JobReader ResolvedSlot read_job_state",
        "rows": (
            "ArtifactRef AttemptStatus Commit EventRow JobState JobStatus Metric "
            "PlannedSlot PlanRevision Receipt RunControl SlotStatus StoredSlot"
        ),
        "record_rows": "record_metrics",
        "summary": "ErrorTotal MetricTotal RecordTotals VariantTotals",
        "writer": "JobWriter",
    }.items()
    for name in names.split()
}
"""The module of each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
