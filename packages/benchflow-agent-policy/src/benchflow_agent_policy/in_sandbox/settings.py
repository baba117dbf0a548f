"""The settings of the operator, from the environment of the process."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .wire import Json, as_object

SYSTEM_PROMPT = """\
You are an agent that works for a user on a Linux machine. You act with your tools only; what
you merely describe does not happen. Run commands with the tool `shell`; each call is a new shell
in the working directory. When the task leaves something open that the user must decide, and a
wrong guess would be hard to undo, ask with the tool `ask_user`. When everything is done and
checked, reply with a short summary and call no tool."""

_FIXED = ("model", "messages", "tools", "stream")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the agent. All times are in seconds."""

    base_url: str
    api_key: str
    model: str
    system_prompt: str = SYSTEM_PROMPT
    sampling: Json = field(default_factory=dict[str, object])
    """Merged into every request: temperature, top_p, max_tokens, seed, …"""
    max_calls: int = 100
    """Model calls per prompt."""
    context_tokens: int | None = None
    """The turn ends after a call that used this many tokens. `None`: the endpoint decides."""
    model_timeout: float = 600.0
    """The timeout of one model call."""
    attempts: int = 8
    backoff: float = 0.5
    """The pause before the second attempt. Each later one doubles, to 30 s at most."""
    tool_timeout: float = 600.0
    output_chars: int = 30_000
    """The limit for the output of one tool call; the middle is cut."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """Read `OPENAI_*` and `BENCHFLOW_POLICY_*`.

        Raises:
            ValueError: A number or the JSON of the sampling parameters is invalid.
        """
        texts = {
            name: env[f"BENCHFLOW_POLICY_{name.upper()}"]
            for name in ("system_prompt", "sampling", *_NUMBERS)
            if env.get(f"BENCHFLOW_POLICY_{name.upper()}")
        }
        values: Json = {name: _NUMBERS[name](texts[name]) for name in _NUMBERS if name in texts}
        if "sampling" in texts:
            sampling = as_object(json.loads(texts["sampling"]))
            values["sampling"] = {key: sampling[key] for key in sampling if key not in _FIXED}
        if "system_prompt" in texts:
            values["system_prompt"] = texts["system_prompt"]
        return cls(
            base_url=env.get("OPENAI_BASE_URL", "http://127.0.0.1:8721").rstrip("/"),
            api_key=env.get("OPENAI_API_KEY", ""),
            model=env.get("OPENAI_MODEL", "default"),
            **values,
        )


_NUMBERS: Mapping[str, type[int] | type[float]] = {
    "max_calls": int,
    "context_tokens": int,
    "model_timeout": float,
    "attempts": int,
    "backoff": float,
    "tool_timeout": float,
    "output_chars": int,
}
