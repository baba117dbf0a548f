"""Compares jobs: statistics of their rewards, and read-only SQL over their facts."""

from .fact_files import TABLES, write_parquet
from .facts import VIEWS, Facts, view_set
from .plot import write_plot
from .query import QueryResult, limited_memory, query, query_jobs
from .report import (
    AnalysisOptions,
    AnalysisReport,
    ComparisonReport,
    JobProgress,
    VariantReport,
    analyse,
)
from .tables import Table, report_notes, report_tables, to_markdown

__all__ = [
    "TABLES",
    "VIEWS",
    "AnalysisOptions",
    "AnalysisReport",
    "ComparisonReport",
    "Facts",
    "JobProgress",
    "QueryResult",
    "Table",
    "VariantReport",
    "analyse",
    "limited_memory",
    "query",
    "query_jobs",
    "report_notes",
    "report_tables",
    "to_markdown",
    "view_set",
    "write_parquet",
    "write_plot",
]
