"""Convert the agent's questions to Asks, and answers to replies on the wire.

There are four kinds of questions: `elicitation/create` (a form whose properties are questions),
`session/request_permission` (permission for one tool call), Qwen's questionnaire, which is inside a
permission request, and our ask tool (see `ask_mcp`). Every function is pure. The answer of a step
is read from the reply that was sent.
"""

from typing import Any

from acp.schema import (
    AllowedOutcome,
    CreateFormSessionElicitationRequest,
    DeniedOutcome,
    RequestPermissionRequest,
    RequestPermissionResponse,
)
from benchflow_contracts import Answer, Ask, AskOption, Question, UsageError
from pydantic import ValidationError

from .ask_mcp.messages import METHOD as ASK_TOOL
from .ask_mcp.messages import tool_answer, tool_ask, tool_reply
from .elicitation import form_answer, form_questions, form_reply
from .questionnaire import questionnaire, questionnaire_answer, questionnaire_reply
from .state import IncomingRequest

ELICITATION = "elicitation/create"
PERMISSION = "session/request_permission"
PERMISSION_QUESTION = "permission"
ASK_METHODS = frozenset({ELICITATION, PERMISSION, ASK_TOOL})


def to_ask(request: IncomingRequest) -> Ask | None:
    """Return the request as an Ask, or `None` if it is not a valid question."""
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
        UsageError: The answer names a question or an option that the Ask does not have.
    """
    if ask.channel == "elicitation":
        return form_reply(ask, answer)
    if ask.channel == "vendor":
        return questionnaire_reply(ask, answer)
    if ask.channel == "mcp":
        return tool_reply(ask, answer)
    return _permission_reply(ask, answer)


def to_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Return the answer in a reply that `to_reply` made."""
    if ask.channel == "elicitation":
        return form_answer(ask, reply)
    if ask.channel == "vendor":
        return questionnaire_answer(ask, reply)
    if ask.channel == "mcp":
        return tool_answer(ask, reply)
    return _permission_answer(ask, reply)


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
    permission = RequestPermissionRequest.model_validate(request.params)
    questions = questionnaire(request.params)
    if questions is None and not permission.options:
        return None
    tool = permission.tool_call
    question = Question(
        id=PERMISSION_QUESTION,
        text=tool.title or f"Allow the tool call {tool.tool_call_id!r}?",
        options=tuple(
            AskOption(id=option.option_id, label=option.name, kind=option.kind)
            for option in permission.options
        ),
    )
    return Ask(
        id=f"ask-{request.id}",
        channel="permission" if questions is None else "vendor",
        kind="permission" if questions is None else "question",
        questions=questions or (question,),
        tool_call_id=tool.tool_call_id,
        raw=request.params,
    )


def _permission_reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """Select the chosen option. A declined permission selects the first reject option."""
    if answer.outcome == "answered":
        chosen = answer.selected.get(PERMISSION_QUESTION, ())
        known = {option.id for option in ask.questions[0].options}
        if len(chosen) != 1 or chosen[0] not in known:
            raise UsageError(f"ask {ask.id!r} needs one of the options {sorted(known)!r}")
        return _selected(chosen[0])
    if answer.outcome == "declined":
        for option in ask.questions[0].options:
            if (option.kind or "").startswith("reject"):
                return _selected(option.id)
    return _dump(RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled")))


def _permission_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Return the answer in a reply."""
    outcome = reply.get("outcome", {})
    if outcome.get("outcome") != "selected":
        return Answer(outcome="cancelled")
    return Answer(selected={ask.questions[0].id: (outcome["optionId"],)})


def _selected(option_id: str) -> dict[str, Any]:
    outcome = AllowedOutcome(outcome="selected", option_id=option_id)
    return _dump(RequestPermissionResponse(outcome=outcome))


def _dump(response: RequestPermissionResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", by_alias=True, exclude_none=True)
