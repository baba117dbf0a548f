"""The LLM judge."""

from .judge import LLMJudge

__all__ = ["LLMJudge"]
