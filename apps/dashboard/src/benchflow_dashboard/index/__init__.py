"""The index: what lists and counters need, so that no request parses a log."""

from .index import Index, reindex, update_index
from .queries import (
    FailureGroup,
    Job,
    Neighbours,
    RolloutEntry,
    Run,
    RunPage,
    StepHit,
    TaskRow,
    Totals,
    read_facets,
    read_failures,
    read_jobs,
    read_neighbours,
    read_page,
    read_rate,
    read_tasks,
    read_totals,
    search_steps,
)
from .run_query import RunQuery
from .trial_queries import read_trials

__all__ = [
    "FailureGroup",
    "Index",
    "Job",
    "Neighbours",
    "RolloutEntry",
    "Run",
    "RunPage",
    "RunQuery",
    "StepHit",
    "TaskRow",
    "Totals",
    "read_facets",
    "read_failures",
    "read_jobs",
    "read_neighbours",
    "read_page",
    "read_rate",
    "read_tasks",
    "read_totals",
    "read_trials",
    "reindex",
    "search_steps",
    "update_index",
]
