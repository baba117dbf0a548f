"""Compares jobs: statistics of their rewards, and read-only SQL over their facts.

The names below are loaded on first use: the statistics, and reports on trials, do not need DuckDB.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from .fact_files import TABLES, write_parquet
    from .facts import VIEWS, Facts, view_set
    from .plot import write_plot
    from .report import AnalysisReport, JobProgress, analyse
    from .statement import QueryResult, limited_memory, query, query_jobs
    from .tables import Table, report_notes, report_tables, to_markdown
    from .trial_report import (
        AnalysisOptions,
        ComparisonReport,
        VariantReport,
        compare_groups,
        group_trials,
        report_variant,
    )

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
    "compare_groups",
    "group_trials",
    "limited_memory",
    "query",
    "query_jobs",
    "report_notes",
    "report_tables",
    "report_variant",
    "to_markdown",
    "view_set",
    "write_parquet",
    "write_plot",
]

_MODULES = {
    **dict.fromkeys(("TABLES", "write_parquet"), "fact_files"),
    **dict.fromkeys(("VIEWS", "Facts", "view_set"), "facts"),
    **dict.fromkeys(("write_plot",), "plot"),
    **dict.fromkeys(("QueryResult", "limited_memory", "query", "query_jobs"), "statement"),
    **dict.fromkeys(
        (
            "AnalysisOptions",
            "ComparisonReport",
            "VariantReport",
            "compare_groups",
            "group_trials",
            "report_variant",
        ),
        "trial_report",
    ),
    **dict.fromkeys(("AnalysisReport", "JobProgress", "analyse"), "report"),
    **dict.fromkeys(("Table", "report_notes", "report_tables", "to_markdown"), "tables"),
}


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _MODULES)
