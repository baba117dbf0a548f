"""A model server for tests: loopback only, deterministic, four wire formats.

`with ScriptedLlm(policy) as llm: ... llm.url ...`. It speaks OpenAI Chat Completions
(`/v1/chat/completions`), OpenAI Responses (`/v1/responses`), Anthropic Messages
(`/v1/messages`) and Gemini (`/v1beta/models/MODEL:generateContent`), streamed or not, and keeps
every request.
"""

from .exchange import ModelReply, ModelRequest, ToolUse
from .policy import AnswersProbes, Policy, WriteOneFile, book_the_review
from .server import ScriptedLlm

__all__ = [
    "AnswersProbes",
    "ModelReply",
    "ModelRequest",
    "Policy",
    "ScriptedLlm",
    "ToolUse",
    "WriteOneFile",
    "book_the_review",
]
