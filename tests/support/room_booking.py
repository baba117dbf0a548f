"""A scripted model that books the review's room by the tools of any agent."""

from typing import Any

from scripted_llm import ModelReply, ModelRequest, ToolUse

EVENTS = ["evt-10", "evt-11", "evt-12"]
QUESTION = "Which review with Dana?"
LOOK = "claw-gcal list --start 2026-03-16T00:00:00Z --end 2026-03-21T00:00:00Z --text review"
ROOM = "room-maple@harborlight.example"


def properties(request: ModelRequest, tool: str) -> dict[str, Any]:
    found: dict[str, Any] = request.tools[tool].get("properties", {})
    return found


def shell(request: ModelRequest, command: str) -> ModelReply:
    tool, key = next(
        (tool, key)
        for tool in request.tools
        for key in ("command", "cmd")
        if key in properties(request, tool)
    )
    return ModelReply(tools=(ToolUse(tool, {key: command}),))


def ask(request: ModelRequest) -> ModelReply:
    """Ask with the portable tool where there is one, otherwise with the agent's own."""
    portable = next((t for t in request.tools if "options" in properties(request, t)), None)
    if portable is not None:
        return ModelReply(tools=(ToolUse(portable, {"question": QUESTION, "options": EVENTS}),))
    tool = next(tool for tool in request.tools if "questions" in properties(request, tool))
    options = [{"label": event, "description": "A review"} for event in EVENTS]
    question = {"question": QUESTION, "header": "Event", "options": options, "multiSelect": False}
    return ModelReply(tools=(ToolUse(tool, {"questions": [question]}),))


def book(request: ModelRequest) -> ModelReply:
    """Look, ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not request.tools:
        return ModelReply(text="A title")
    if not seen:
        return shell(request, LOOK)
    if len(seen) == 1:
        return ask(request)
    if len(seen) == 2:
        chosen = next(event for event in EVENTS if event in seen[1])
        return shell(request, f"claw-gcal update {chosen} --add-attendee {ROOM}")
    return ModelReply(text="Booked.")
