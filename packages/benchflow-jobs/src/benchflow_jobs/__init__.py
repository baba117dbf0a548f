"""A Job: many rollouts that run together, and their report."""

from .begin import plan_of
from .options import JobOptions
from .planning import JobConfig, JobConfigError
from .planning import read_job as read_job_config
from .preflight import PreflightError, check_job
from .report import JobReport, job_directories, read_job, summarise
from .runner import resume_job, run_job
from .status import JobView, job_view

__all__ = [
    "JobConfig",
    "JobConfigError",
    "JobOptions",
    "JobReport",
    "JobView",
    "PreflightError",
    "check_job",
    "job_directories",
    "job_view",
    "plan_of",
    "read_job",
    "read_job_config",
    "resume_job",
    "run_job",
    "summarise",
]
