"""The agent's side of ACP: sessions, and their prompts one at a time."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from .faults import ToolError, TurnCancelledError, TurnFailedError
from .mcp_tools import McpTools
from .model import Model, ModelOptions
from .question import Questioner
from .session import Session
from .settings import Settings
from .shell import Shell
from .skills import skills_prompt
from .tool import Tool
from .turn import Turn
from .wire import Json, Wire, as_list, as_object

SKILLS_DIR = "~/.agents/skills"
CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {},
    "mcpCapabilities": {"http": True},
    "sessionCapabilities": {},
}


class Workplace:
    """A session with the tools that it works with in this process."""

    def __init__(self, session: Session, mcp: McpTools, own: list[Tool]) -> None:
        self.session = session
        self.mcp = mcp
        self.tools = {tool.name: tool for tool in (*own, *mcp.tools)}


class PolicyAgent:
    """Answers the client until it closes its end."""

    def __init__(self, settings: Settings, wire: Wire | None = None) -> None:
        self._settings = settings
        self._wire = wire or Wire()
        self._model = Model(self._wire, settings)
        self._places: dict[str, Workplace] = {}

    def serve(self) -> NoReturn:
        """Serve requests; leave when the client closes its end."""
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
        """Say what this agent can do."""
        return {
            "protocolVersion": 1,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "benchflow-policy", "version": "1.0.0"},
            "authMethods": [],
        }

    def new(self, params: Json) -> Json:
        """Open a session."""
        session = Session.create(params["cwd"], ModelOptions(self._settings.model))
        skills = skills_prompt(Path(SKILLS_DIR).expanduser())
        session.messages.append(
            {"role": "system", "content": self._settings.system_prompt + skills}
        )
        self._open(session, params)
        session.save()
        return {"sessionId": session.id, **session.described()}

    def load(self, params: Json) -> Json:
        """Open a saved session, and say again what was said in it."""
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
        return session.described()

    def set_mode(self, params: Json) -> Json:
        """Change the mode."""
        self._places[params["sessionId"]].session.set_mode(params["modeId"])
        return {}

    def set_option(self, params: Json) -> Json:
        """Change the model or its effort."""
        session = self._places[params["sessionId"]].session
        session.set(params["configId"], params["value"])
        return {"configOptions": session.config_options()}

    def prompt(self, params: Json) -> Json:
        """Run one prompt turn."""
        place = self._places[params["sessionId"]]
        turn = Turn(self._wire, self._settings, place.session, self._model, place.tools)
        try:
            return turn.run(_prompt_text(params["prompt"]))
        finally:
            place.session.save()

    def _open(self, session: Session, params: Json) -> None:
        earlier = self._places.pop(session.id, None)
        if earlier is not None:
            earlier.mcp.close()
        mcp = McpTools(self._wire, self._settings, session.cwd)
        mcp.connect(as_list(params.get("mcpServers")))
        shell = Shell(self._wire, self._settings, session.cwd)
        asks = Questioner(self._wire, session.id)
        self._places[session.id] = Workplace(session, mcp, [shell.tool(), asks.tool()])

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


def main() -> NoReturn:
    """Serve on the standard streams."""
    PolicyAgent(Settings.from_env()).serve()
