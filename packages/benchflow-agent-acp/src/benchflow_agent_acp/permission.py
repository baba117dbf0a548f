"""`session/request_permission`: one question, whose options are the agent's own."""

from typing import Any

from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse
from benchflow_contracts import Answer, Ask, UsageError

PERMISSION_QUESTION = "permission"


def permission_reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """Select the chosen option; a declined gate selects its first reject option."""
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


def permission_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Read the choice back."""
    outcome = reply.get("outcome", {})
    if outcome.get("outcome") != "selected":
        return Answer(outcome="cancelled")
    return Answer(selected={ask.questions[0].id: (outcome["optionId"],)})


def _selected(option_id: str) -> dict[str, Any]:
    outcome = AllowedOutcome(outcome="selected", option_id=option_id)
    return _dump(RequestPermissionResponse(outcome=outcome))


def _dump(response: RequestPermissionResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", by_alias=True, exclude_none=True)
