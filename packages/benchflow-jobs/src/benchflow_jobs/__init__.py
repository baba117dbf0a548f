"""A Job: many rollouts that run together, and their report.

The names below are loaded on first use. A program that only shows a job does not import the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .begin import plan_of
    from .options import JobOptions
    from .planning import JobConfig, JobConfigError
    from .planning import read_job as read_job_config
    from .preflight import PreflightError, check_job
    from .report import JobCost, JobReport, job_directories, read_job, summarise
    from .runner import resume_job, run_job
    from .status import JobView, job_view

__all__ = [
    "JobConfig",
    "JobConfigError",
    "JobCost",
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

_HOMES = {
    "JobConfig": "planning",
    "JobConfigError": "planning",
    "JobOptions": "options",
    "JobView": "status",
    "PreflightError": "preflight",
    "check_job": "preflight",
    "job_view": "status",
    "plan_of": "begin",
    "resume_job": "runner",
    "run_job": "runner",
    **dict.fromkeys(("JobCost", "JobReport", "job_directories", "read_job", "summarise"), "report"),
}


def __getattr__(name: str) -> object:
    if name == "read_job_config":
        return import_module(".planning", __name__).read_job
    if name not in _HOMES:
        raise AttributeError(f"module 'benchflow_jobs' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
