"""Distinguish an agent's work from its other calls, such as titles."""

from typing import Literal

from .documents import Document

Purpose = Literal["main", "aux"]


class PurposeRule:
    """A call is work if it offers tools to the first model that was offered tools.

    Measured on claude, codex and opencode: titles, summaries and quota probes offer no
    tools, and some go to a smaller model. An agent that works without tools needs
    `without_tools="main"`.
    """

    def __init__(self, without_tools: Purpose = "aux") -> None:
        self._without_tools: Purpose = without_tools
        self._model: object = None

    def of(self, request: Document) -> Purpose:
        """Return the purpose of the next request."""
        if not request.get("tools"):
            return self._without_tools
        if self._model is None:
            self._model = request.get("model")
        return "main" if request.get("model") == self._model else "aux"
