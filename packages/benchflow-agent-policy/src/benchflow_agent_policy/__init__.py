"""The policy agent: a small ACP agent that acts through any OpenAI-compatible endpoint.

The agent's program is in `in_sandbox/`. This package ships that program with its declaration,
in the way that every package can ship an agent; see the README of `benchflow-agent-acp`.
"""

from .agent import policy

__all__ = ["policy"]
