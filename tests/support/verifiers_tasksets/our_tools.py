# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
"""The taskset of BenchFlow's tools, by an id of one module, as verifiers needs it."""

from benchflow_adapters_verifiers.tool_tasks import ToolTaskset

__all__ = ["ToolTaskset"]
