"""The plan of a job: from a `job.toml` to a schedule of slots, before anything runs."""

from benchflow_engine.task_override import TaskOverride

from .dataset import Dataset, find_dataset
from .extend import extend
from .inputs import (
    config_of,
    plan_revision,
    policy_of,
    resource_limits,
    variant_plans,
)
from .job_config import JobConfig, VariantConfig
from .job_file import JobSource, parse_job, parse_override, read_job
from .plan_files import difference, finish_plan_files, is_own_plan, load_plan, write_plan
from .problems import JobConfigError, Problem
from .resolved_job import (
    ImageChoice,
    ResolvedJob,
    Revision,
    find_tasks,
    plan_job,
    resolve_job,
)
from .slot_table import PlannedTask, SlotTable
from .variants import Variant

__all__ = [
    "Dataset",
    "ImageChoice",
    "JobConfig",
    "JobConfigError",
    "JobSource",
    "PlannedTask",
    "Problem",
    "ResolvedJob",
    "Revision",
    "SlotTable",
    "TaskOverride",
    "Variant",
    "VariantConfig",
    "config_of",
    "difference",
    "extend",
    "find_dataset",
    "find_tasks",
    "finish_plan_files",
    "is_own_plan",
    "load_plan",
    "parse_job",
    "parse_override",
    "plan_job",
    "plan_revision",
    "policy_of",
    "read_job",
    "resolve_job",
    "resource_limits",
    "variant_plans",
    "write_plan",
]
