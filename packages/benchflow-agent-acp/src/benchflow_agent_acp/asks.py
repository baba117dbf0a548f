"""The agent's questions, in one shape, and the way back to each wire form.

Four forms exist: `elicitation/create` (a form whose properties are questions),
`session/request_permission` (a gate on one tool call), Qwen's questionnaire, which
travels inside a permission request, and our own ask tool's (see `ask_mcp`). Every
mapping here is pure, and the answer that a step shows is read back from the reply
that really went out.
"""

from typing import Any

from acp.schema import CreateFormSessionElicitationRequest, RequestPermissionRequest
from benchflow_contracts import Answer, Ask, AskOption, Question
from pydantic import ValidationError

from .ask_mcp.form import METHOD as ASK_TOOL
from .ask_mcp.form import tool_answer, tool_ask, tool_reply
from .elicitation import form_answer, form_questions, form_reply
from .permission import PERMISSION_QUESTION, permission_answer, permission_reply
from .questionnaire import questionnaire, questionnaire_answer, questionnaire_reply
from .state import IncomingRequest

ELICITATION = "elicitation/create"
PERMISSION = "session/request_permission"
ASK_METHODS = frozenset({ELICITATION, PERMISSION, ASK_TOOL})


def to_ask(request: IncomingRequest) -> Ask | None:
    """Return the request as an Ask, or `None` when it is no valid question."""
    try:
        if request.method == ELICITATION:
            return _from_form(request)
        if request.method == PERMISSION:
            return _from_permission(request)
        if request.method == ASK_TOOL:
            return tool_ask(request)
    except ValidationError:
        return None
    return None


def to_reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """Return the result object that carries `answer` to the agent.

    Raises:
        UsageError: The answer names a question or an option that was not asked.
    """
    if ask.channel == "elicitation":
        return form_reply(ask, answer)
    if ask.channel == "vendor":
        return questionnaire_reply(ask, answer)
    if ask.channel == "mcp":
        return tool_reply(ask, answer)
    return permission_reply(ask, answer)


def to_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Read the answer back from a reply that `to_reply` made."""
    if ask.channel == "elicitation":
        return form_answer(ask, reply)
    if ask.channel == "vendor":
        return questionnaire_answer(ask, reply)
    if ask.channel == "mcp":
        return tool_answer(ask, reply)
    return permission_answer(ask, reply)


def _from_form(request: IncomingRequest) -> Ask | None:
    form = CreateFormSessionElicitationRequest.model_validate(request.params)
    questions = form_questions(form)
    if not questions:
        return None
    return Ask(
        id=f"ask-{request.id}",
        channel="elicitation",
        kind="question",
        questions=questions,
        tool_call_id=form.tool_call_id,
        raw=request.params,
    )


def _from_permission(request: IncomingRequest) -> Ask | None:
    asked = RequestPermissionRequest.model_validate(request.params)
    questions = questionnaire(request.params)
    if questions is None and not asked.options:
        return None
    tool = asked.tool_call
    gate = Question(
        id=PERMISSION_QUESTION,
        text=tool.title or f"Allow the tool call {tool.tool_call_id!r}?",
        options=tuple(
            AskOption(id=option.option_id, label=option.name, kind=option.kind)
            for option in asked.options
        ),
    )
    return Ask(
        id=f"ask-{request.id}",
        channel="permission" if questions is None else "vendor",
        kind="permission" if questions is None else "question",
        questions=questions or (gate,),
        tool_call_id=tool.tool_call_id,
        raw=request.params,
    )
