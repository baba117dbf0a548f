"""The index: what lists and counters need, so that no request parses a log."""

from .failure_queries import FailureGroup, read_failures
from .index import Index, reindex, update_index
from .queries import (
    Job,
    Neighbours,
    RolloutEntry,
    Run,
    RunPage,
    TaskRow,
    Totals,
    read_facets,
    read_jobs,
    read_neighbours,
    read_page,
    read_rate,
    read_tasks,
    read_totals,
)
from .run_query import RunQuery
from .step_search import SnippetPart, StepHit, StepHits, StepQuery, search_steps
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
    "SnippetPart",
    "StepHit",
    "StepHits",
    "StepQuery",
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
