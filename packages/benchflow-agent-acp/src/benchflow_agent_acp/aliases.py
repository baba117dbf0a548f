"""Other names of agents, such as the names that Harbor uses."""

ALIASES = {
    "claude-code": "claude-agent-acp",
    "cline-cli": "cline",
    "codex": "codex-acp",
    "gemini-cli": "gemini",
    "kimi-cli": "kimi",
    "kimi-code": "kimi",
    "qwen-code": "qwen",
    "qwen-coder": "qwen",
    "terminus": "terminus-2",
    "vibe": "mistral-vibe",
}
"""Alias to the registry name. A registered name is never an alias."""
