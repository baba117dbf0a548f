"""The model of the runs: `PYTHONPATH=tests/support ./run python -m proven.model` serves it."""

import json
import re
import secrets
import threading
from typing import Any

from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

PORT = 18800
DRINKS = ("Tea", "Coffee", "Cocoa")
_WORD = re.compile(r"word-[0-9a-f]{8}")


def remember_and_ask(request: ModelRequest) -> ModelReply:
    """Do what the task `proven/task` asks for, through the tools of any agent.

    Each code word is random, and those that it knows are the ones in the request: what came
    from another branch would be among them.
    """
    if not request.tools:
        return ModelReply(text="A title")
    if "SUGGESTION MODE" in request.user_text:
        return ModelReply(text="Go on.")  # claude and qwen ask what their user may type next
    seen = request.tool_results
    if "second code word" not in request.user_text:
        if seen:
            return ModelReply(text="I made up a word.")
        return _shell(request, f"echo word-{secrets.token_hex(4)} > first.txt")
    if not seen:
        return _shell(request, f"echo word-{secrets.token_hex(4)} > second.txt")
    question = _question(request)
    if question is not None and len(seen) == 1:
        return ModelReply(tools=(question,))
    if len(seen) == 1 + (question is not None):
        said = seen[1] if question is not None else ""
        drink = next((drink for drink in DRINKS if drink in said), DRINKS[0])
        words = sorted(set(_WORD.findall(json.dumps(request.raw))))
        known = " && ".join(f"echo {word} >> known.txt" for word in words)
        return _shell(request, f"echo {drink} > drink.txt && {known}")
    return ModelReply(text="Done.")


def _properties(request: ModelRequest, tool: str) -> dict[str, Any]:
    found: dict[str, Any] = request.tools[tool].get("properties", {})
    return found


def _shell(request: ModelRequest, command: str) -> ModelReply:
    for tool in request.tools:
        for key in ("command", "cmd"):
            kind = _properties(request, tool).get(key)
            if kind is not None:
                as_list = kind.get("type") == "array"
                given = ["sh", "-c", command] if as_list else command
                return ModelReply(tools=(ToolUse(tool, {key: given}),))
    return ModelReply(text="I have no shell.")


def _question(request: ModelRequest) -> ToolUse | None:
    """Return the question by the portable tool, or else by one of the agent's own."""
    fields = {"question", "options"}
    portable = [tool for tool in request.tools if fields <= {*_properties(request, tool)}]
    if portable:
        return ToolUse(portable[0], {"question": "Which drink?", "options": list(DRINKS)})
    options = [{"label": drink, "description": "To drink"} for drink in DRINKS]
    whole = {
        "id": "drink",
        "header": "Drink",
        "question": "Which drink?",
        "options": options,
        "multiSelect": False,
    }
    for tool in request.tools:
        items = _properties(request, tool).get("questions", {}).get("items", {})
        known = items.get("properties")
        if known:
            asked = {key: value for key, value in whole.items() if key in known}
            return ToolUse(tool, {"questions": [asked]})
    return None


if __name__ == "__main__":
    with ScriptedLlm(remember_and_ask, port=PORT) as llm:
        print(llm.url, flush=True)
        threading.Event().wait()
