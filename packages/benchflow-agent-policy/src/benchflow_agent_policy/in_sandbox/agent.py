"""The agent's side of ACP: sessions and their prompts. One prompt runs at a time."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from .errors import ToolError, TurnCancelledError, TurnFailedError
from .mcp_tools import McpTools
from .model import Model, ModelOptions
from .question import AskUserTool
from .session import Session
from .settings import Settings
from .shell import Shell
from .tool import Tool
from .turn import Turn
from .wire import Json, Wire, as_list, as_object

SKILLS_DIR = "~/.agents/skills"
_SKILL_FIELD = re.compile(r"^(name|description):[ \t]*(.+)$", re.MULTILINE)
_SKILLS = 64
_HEAD_CHARS = 4096
CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {},
    "mcpCapabilities": {"http": True},
    "sessionCapabilities": {},
}


class OpenSession:
    """A session and its tools in this process."""

    def __init__(self, session: Session, mcp: McpTools, own_tools: list[Tool]) -> None:
        self.session = session
        self.mcp = mcp
        self.tools = {tool.name: tool for tool in (*own_tools, *mcp.tools)}


class PolicyAgent:
    """Serves one client."""

    def __init__(self, settings: Settings, wire: Wire | None = None) -> None:
        self._settings = settings
        self._wire = wire or Wire()
        self._model = Model(self._wire, settings)
        self._sessions: dict[str, OpenSession] = {}

    def serve(self) -> NoReturn:
        """Serve requests until the client closes the pipe."""
        while True:
            message = self._wire.receive()
            if "method" not in message or "id" not in message:
                continue
            handler = METHODS.get(str(message["method"]))
            if handler is None:
                self._refuse(message, -32601, "method not found")
                continue
            self._wire.cancelled = False
            try:
                result = handler(self, as_object(message.get("params")))
            except TurnFailedError as error:
                self._refuse(message, -32000, str(error), kind=error.kind)
            except (ToolError, TurnCancelledError) as error:
                self._refuse(message, -32000, str(error) or "cancelled")
            except (KeyError, TypeError, OSError, ValueError) as error:
                self._refuse(message, -32602, repr(error)[:500])
            else:
                self._wire.send(id=message["id"], result=result)

    def initialize(self, _params: Json) -> Json:
        """Return the capabilities of the agent."""
        return {
            "protocolVersion": 1,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "benchflow-policy", "version": "1.0.0"},
            "authMethods": [],
        }

    def new(self, params: Json) -> Json:
        """Open a session."""
        session = Session.create(params["cwd"], ModelOptions(self._settings.model))
        skills = _skills_prompt(Path(SKILLS_DIR).expanduser())
        session.messages.append(
            {"role": "system", "content": self._settings.system_prompt + skills}
        )
        self._open(session, params)
        session.save()
        return {"sessionId": session.id, **session.modes_and_options()}

    def load(self, params: Json) -> Json:
        """Open a saved session, and send its messages again."""
        session = Session.load(params["sessionId"])
        session.cwd = params["cwd"]
        self._open(session, params)
        for message in session.messages:
            kind = {"user": "user_message_chunk", "assistant": "agent_message_chunk"}
            text = message.get("content")
            if message["role"] in kind and isinstance(text, str) and text:
                content = {"type": "text", "text": text}
                update = {"sessionUpdate": kind[message["role"]], "content": content}
                body = {"sessionId": session.id, "update": update}
                self._wire.send(method="session/update", params=body)
        return session.modes_and_options()

    def set_mode(self, params: Json) -> Json:
        """Change the mode."""
        self._sessions[params["sessionId"]].session.set_mode(params["modeId"])
        return {}

    def set_option(self, params: Json) -> Json:
        """Change the model or its effort."""
        session = self._sessions[params["sessionId"]].session
        session.set(params["configId"], params["value"])
        return {"configOptions": session.config_options()}

    def prompt(self, params: Json) -> Json:
        """Run one prompt turn."""
        entry = self._sessions[params["sessionId"]]
        turn = Turn(self._wire, self._settings, entry.session, self._model, entry.tools)
        try:
            return turn.run(_prompt_text(params["prompt"]))
        finally:
            entry.session.save()

    def _open(self, session: Session, params: Json) -> None:
        previous = self._sessions.pop(session.id, None)
        if previous is not None:
            previous.mcp.close()
        mcp = McpTools(self._wire, self._settings, session.cwd)
        mcp.connect(as_list(params.get("mcpServers")))
        shell = Shell(self._wire, self._settings, session.cwd)
        asks = AskUserTool(self._wire, session.id)
        self._sessions[session.id] = OpenSession(session, mcp, [shell.tool(), asks.tool()])

    def _refuse(self, message: Json, code: int, text: str, **data: str) -> None:
        error: Json = {"code": code, "message": text, **({"data": data} if data else {})}
        self._wire.send(id=message["id"], error=error)


METHODS: Mapping[str, Callable[[PolicyAgent, Json], Json]] = {
    "initialize": PolicyAgent.initialize,
    "session/new": PolicyAgent.new,
    "session/load": PolicyAgent.load,
    "session/set_mode": PolicyAgent.set_mode,
    "session/set_config_option": PolicyAgent.set_option,
    "session/prompt": PolicyAgent.prompt,
}


def _prompt_text(blocks: object) -> str:
    parts: list[str] = []
    for block in map(as_object, as_list(blocks)):
        text = block.get("text") or block.get("uri")
        parts.append(text if isinstance(text, str) else f"[{block.get('type', 'block')!s:.40}]")
    return "\n".join(parts)


def _skills_prompt(directory: Path) -> str:
    """Return a paragraph that names every skill, or an empty string."""
    lines: list[str] = []
    for path in sorted(directory.glob("*/SKILL.md"))[:_SKILLS]:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_CHARS)
        fields = dict(_SKILL_FIELD.findall(head))
        name = fields.get("name", path.parent.name).strip()
        lines.append(f"- {name}: {fields.get('description', '').strip()} ({path})")
    if not lines:
        return ""
    return "\n\nYou have skills. Read the file of one before you use it.\n" + "\n".join(lines)


def main() -> NoReturn:
    """Serve on the standard streams."""
    PolicyAgent(Settings.from_env()).serve()
