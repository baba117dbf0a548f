"""A session: everything that was said, in a file that a new process goes on from."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .model import ModelOptions
from .tokens import TokenChain
from .wire import Json, as_list

STATE_DIR = "~/.benchflow-policy"
MODES = {"auto": "Acts without asking", "ask": "Asks before each tool call"}
_ID = re.compile(r"policy-[0-9]{1,9}")


@dataclass(slots=True)
class Session:
    """What a session is made of. `messages` is the conversation, as it is sent."""

    id: str
    cwd: str
    options: ModelOptions
    mode: str = "auto"
    messages: list[Json] = field(default_factory=list[Json])
    chain: TokenChain = field(default_factory=TokenChain)
    tool_calls: int = 0
    used_tokens: int = 0
    """Of the last model call, prompt and completion."""

    @classmethod
    def create(cls, cwd: str, options: ModelOptions) -> "Session":
        """Return a new session with the next free number."""
        directory = _directory()
        directory.mkdir(parents=True, exist_ok=True)
        taken = [int(path.stem[7:]) for path in directory.glob("policy-*.json")]
        return cls(f"policy-{max(taken, default=0) + 1}", cwd, options)

    @classmethod
    def load(cls, session_id: str) -> "Session":
        """Return a saved session.

        Raises:
            OSError, ValueError, KeyError, TypeError: There is none of this id.
        """
        if not _ID.fullmatch(session_id):
            raise ValueError(f"{session_id!r:.80} is no session id")
        state: Json = json.loads((_directory() / f"{session_id}.json").read_text())
        state["options"] = ModelOptions(**state["options"])
        state["chain"] = TokenChain(**state["chain"])
        return cls(**state)

    def save(self) -> None:
        """Write the session to its file, in one piece."""
        scratch = _directory() / f"{self.id}.new"
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(_directory() / f"{self.id}.json")

    def set(self, option: str, value: object) -> None:
        """Change an option.

        Raises:
            ValueError: There is no such option, or it takes no such value.
        """
        if option not in ("model", "reasoning_effort") or not isinstance(value, str):
            raise ValueError(f"no option {option!r:.80} with such a value")
        setattr(self.options, option, value)

    def set_mode(self, mode: object) -> None:
        """Change the mode. Raises `ValueError` when there is no such one."""
        if mode not in MODES:
            raise ValueError(f"no mode {mode!r:.80}")
        self.mode = str(mode)

    def settle(self, note: str) -> None:
        """Give each open tool call a result, without which no endpoint takes the history."""
        done = {message.get("tool_call_id") for message in self.messages}
        for call in self._last_calls():
            if call["id"] not in done:
                self.messages.append(tool_message(call["id"], note))

    def _last_calls(self) -> list[Json]:
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return as_list(message.get("tool_calls"))
        return []

    def described(self) -> Json:
        """Return the modes and options, as `session/new` and `session/load` show them."""
        modes = [{"id": key, "name": key, "description": says} for key, says in MODES.items()]
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
    """Return the message that carries a tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _select(key: str, name: str, category: str, value: str) -> Json:
    """Any value is taken; the current one is the only one that is known to exist."""
    options = [{"value": value, "name": value}]
    shown = {"id": key, "name": name, "category": category}
    return {**shown, "type": "select", "currentValue": value, "options": options}


def _directory() -> Path:
    return Path(STATE_DIR).expanduser()
