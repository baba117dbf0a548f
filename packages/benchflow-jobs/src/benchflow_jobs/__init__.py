"""A Job: many rollouts that run together, and their report."""

from .options import JobOptions
from .report import JobReport, job_directories, read_job, summarise
from .runner import run_job

__all__ = ["JobOptions", "JobReport", "job_directories", "read_job", "run_job", "summarise"]
