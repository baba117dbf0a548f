"""The tool `ask_user`: a question to the client, as an ACP form."""

from .errors import ToolError
from .tool import Tool, ToolResult
from .wire import Json, Wire, as_list, as_object

FIELD = "answer"
_OPTIONS = 16
_CHARS = 4000
_DESCRIPTION = (
    "Ask the user one question and wait for the answer. Give `options` when the answers can be "
    "listed. Ask only for what you cannot find out yourself."
)


class AskUserTool:
    """Sends the model's questions to the user."""

    def __init__(self, wire: Wire, session_id: str) -> None:
        self._wire = wire
        self._session_id = session_id

    def tool(self) -> Tool:
        """Return the tool."""
        properties = {
            "question": {"type": "string"},
            "options": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The possible answers, each in a few words.",
            },
            "allow_other": {
                "type": "boolean",
                "description": "Whether the user may answer something else, in words.",
            },
        }
        parameters = {"type": "object", "properties": properties, "required": ["question"]}
        return Tool(
            "ask_user", _DESCRIPTION, parameters, self._run, needs_permission=False, reported=False
        )

    def _run(self, arguments: Json) -> ToolResult:
        question = arguments.get("question")
        if not isinstance(question, str) or not question.strip():
            raise ToolError("`question` must be a text")
        options = [str(option)[:_CHARS] for option in as_list(arguments.get("options"))]
        options = list(dict.fromkeys(option for option in options if option.strip()))[:_OPTIONS]
        other = bool(options) and arguments.get("allow_other") is True
        params = {
            "sessionId": self._session_id,
            "mode": "form",
            "message": question[:_CHARS],
            "requestedSchema": _schema(options, other=other),
        }
        return ToolResult(_answer_text(self._wire.ask("elicitation/create", params)))


def _schema(options: list[str], *, other: bool) -> Json:
    field: Json = {"type": "string"}
    if options:
        field["oneOf"] = [{"const": option, "title": option} for option in options]
    properties: Json = {FIELD: field}
    if other:
        properties[f"{FIELD}_custom"] = {"type": "string"}
    return {"type": "object", "properties": properties}


def _answer_text(reply: Json) -> str:
    content = as_object(reply.get("content"))
    parts = [content.get(FIELD), content.get(f"{FIELD}_custom")]
    words = ". ".join(str(part) for part in parts if part is not None)
    if reply.get("action") != "accept" or not words:
        return "The user gave no answer. Decide yourself."
    return f"The user answered: {words}"
