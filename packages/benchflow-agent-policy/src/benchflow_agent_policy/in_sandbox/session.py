"""A session: the conversation, in a file from which a new process resumes."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .model import ModelOptions
from .token_chain import TokenChain
from .wire import Json, as_list

STATE_DIR = "~/.benchflow-policy"
MODES = {"auto": "Acts without asking", "ask": "Asks before each tool call"}
_ID = re.compile(r"policy-[0-9]{1,9}")


@dataclass(slots=True)
class Session:
    """The data of a session. `messages` is the conversation, as the requests send it."""

    id: str
    cwd: str
    options: ModelOptions
    mode: str = "auto"
    messages: list[Json] = field(default_factory=list[Json])
    chain: TokenChain = field(default_factory=TokenChain)
    tool_calls: int = 0
    used_tokens: int = 0
    """The tokens of the last model call: prompt and completion."""

    @classmethod
    def create(cls, cwd: str, options: ModelOptions) -> "Session":
        """Return a new session with the next free number."""
        directory = _directory()
        directory.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.stem[7:]) for path in directory.glob("policy-*.json")]
        return cls(f"policy-{max(numbers, default=0) + 1}", cwd, options)

    @classmethod
    def load(cls, session_id: str) -> "Session":
        """Return a saved session.

        Raises:
            OSError, ValueError, KeyError, TypeError: No valid session has this id.
        """
        if not _ID.fullmatch(session_id):
            raise ValueError(f"{session_id!r:.80} is not a session id")
        state: Json = json.loads((_directory() / f"{session_id}.json").read_text())
        state["options"] = ModelOptions(**state["options"])
        state["chain"] = TokenChain(**state["chain"])
        return cls(**state)

    def save(self) -> None:
        """Write the session to its file, atomically."""
        scratch = _directory() / f"{self.id}.new"
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(_directory() / f"{self.id}.json")

    def set(self, option: str, value: object) -> None:
        """Change an option.

        Raises:
            ValueError: The option does not exist or does not accept the value.
        """
        if option not in ("model", "reasoning_effort") or not isinstance(value, str):
            raise ValueError(f"option {option!r:.80} does not exist or needs a text")
        setattr(self.options, option, value)

    def set_mode(self, mode: object) -> None:
        """Change the mode. Raise `ValueError` if the mode does not exist."""
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r:.80}")
        self.mode = str(mode)

    def close_tool_calls(self, note: str) -> None:
        """Give each open tool call the result `note`; endpoints refuse calls without a result."""
        call_ids = {message.get("tool_call_id") for message in self.messages}
        for call in self._last_calls():
            if call["id"] not in call_ids:
                self.messages.append(tool_message(call["id"], note))

    def _last_calls(self) -> list[Json]:
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return as_list(message.get("tool_calls"))
        return []

    def modes_and_options(self) -> Json:
        """Return the modes and options for the replies to `session/new` and `session/load`."""
        modes = [{"id": key, "name": key, "description": text} for key, text in MODES.items()]
        return {
            "modes": {"currentModeId": self.mode, "availableModes": modes},
            "configOptions": self.config_options(),
        }

    def config_options(self) -> list[Json]:
        """Return the options with their current values."""
        model, effort = self.options.model, self.options.reasoning_effort or "default"
        return [
            _select("model", "Model", "model", model),
            _select("reasoning_effort", "Reasoning effort", "thought_level", effort),
        ]


def tool_message(call_id: str, text: str) -> Json:
    """Return the message with a tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _select(key: str, name: str, category: str, value: str) -> Json:
    """Return a select option. Any value is accepted, but only the current value is listed."""
    options = [{"value": value, "name": value}]
    fields = {"id": key, "name": name, "category": category}
    return {**fields, "type": "select", "currentValue": value, "options": options}


def _directory() -> Path:
    return Path(STATE_DIR).expanduser()
