"""`elicitation/create` in form mode: each property of the form is one question.

Claude sends `question_0` with a companion `question_0_custom` for free text; Codex
sends its own ids with a companion `<id>_note`. A companion is not a question of its own.
Codex also adds an option for free text. That option is not an answer without the text.
"""

from typing import Any

from acp.schema import (
    AcceptElicitationResponse,
    CancelElicitationResponse,
    CreateFormSessionElicitationRequest,
    DeclineElicitationResponse,
    ElicitationBooleanPropertySchema,
    ElicitationMultiSelectPropertySchema,
    ElicitationStringPropertySchema,
)
from benchflow_contracts import Answer, Ask, AskOption, Question, UsageError

from .framing import as_object

_COMPANIONS = ("_custom", "_note")
_OTHER = "None of the above"
_MAX_QUESTIONS = 32
_BOOLEANS = (AskOption(id="true", label="Yes"), AskOption(id="false", label="No"))


def form_questions(form: CreateFormSessionElicitationRequest) -> tuple[Question, ...]:
    """Return the questions of a form, in its order."""
    properties: dict[str, Any] = dict(form.requested_schema.properties or {})
    names = [name for name in properties if not _is_companion(name, properties)]
    return tuple(
        _question(name, properties, form.message, alone=len(names) == 1)
        for name in names[:_MAX_QUESTIONS]
    )


def _is_companion(name: str, properties: dict[str, Any]) -> bool:
    return any(name.endswith(end) and name[: -len(end)] in properties for end in _COMPANIONS)


def _companion(question_id: str, properties: dict[str, Any]) -> str | None:
    names = (question_id + end for end in _COMPANIONS)
    return next((name for name in names if name in properties), None)


def _question(name: str, properties: dict[str, Any], message: str, *, alone: bool) -> Question:
    schema = properties[name]
    options = _options(schema)
    if _has_other(schema.field_meta):
        options = tuple(option for option in options if option.id != _OTHER)
    # Claude puts the question into the message, Codex into the title.
    parts = [message if alone else None, schema.title, schema.description]
    text = "\n".join(dict.fromkeys(part for part in parts if part))
    return Question(
        id=name,
        text=text or name,
        options=options,
        allow_custom=not options or _companion(name, properties) is not None,
        multi=isinstance(schema, ElicitationMultiSelectPropertySchema),
    )


def _has_other(meta: object) -> bool:
    return as_object(as_object(meta).get("codex")).get("isOther") is True


def _options(schema: object) -> tuple[AskOption, ...]:
    if isinstance(schema, ElicitationBooleanPropertySchema):
        return _BOOLEANS
    if isinstance(schema, ElicitationStringPropertySchema):
        titled, plain = schema.one_of, schema.enum
    elif isinstance(schema, ElicitationMultiSelectPropertySchema):
        titled = getattr(schema.items, "any_of", None)
        plain = getattr(schema.items, "enum", None)
    else:
        return ()
    if titled:
        return tuple(
            AskOption(id=item.const, label=item.title, description=item.description or "")
            for item in titled
        )
    return tuple(AskOption(id=value, label=value) for value in plain or ())


def form_reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """Return the reply that fills in, declines or cancels the form."""
    if answer.outcome == "declined":
        return _dump(DeclineElicitationResponse(action="decline"))
    if answer.outcome == "cancelled":
        return _dump(CancelElicitationResponse(action="cancel"))
    content: dict[str, Any] = {}
    for question in ask.questions:
        _fill(content, ask, question, answer)
    if not content:
        raise UsageError(f"the answer to ask {ask.id!r} does not answer any of its questions")
    return _dump(AcceptElicitationResponse(action="accept", content=content))


def _fill(content: dict[str, Any], ask: Ask, question: Question, answer: Answer) -> None:
    properties: dict[str, Any] = ask.raw["requestedSchema"]["properties"]
    chosen = answer.selected.get(question.id, ())
    unknown = set(chosen) - {option.id for option in question.options}
    if unknown or (len(chosen) > 1 and not question.multi):
        raise UsageError(f"ask {ask.id!r} does not have the options {sorted(chosen)!r}")
    kind = properties[question.id].get("type")
    if chosen and question.multi:
        content[question.id] = list(chosen)
    elif chosen:
        content[question.id] = chosen[0] == "true" if kind == "boolean" else chosen[0]
    text = answer.text.get(question.id)
    if text is None:
        return
    if question.options:
        field = _companion(question.id, properties)
        if field is None:
            raise UsageError(f"ask {ask.id!r} does not accept free text for {question.id!r}")
        content[field] = text
        if not chosen and _has_other(properties[question.id].get("_meta")):
            content[question.id] = _OTHER
    else:
        content[question.id] = _typed(text, kind)


def _typed(text: str, kind: str | None) -> str | int | float:
    try:
        return int(text) if kind == "integer" else float(text) if kind == "number" else text
    except ValueError as error:
        raise UsageError(f"{text!r:.80} is not of type {kind}") from error


def form_answer(ask: Ask, reply: dict[str, Any]) -> Answer:
    """Return the answer in a reply."""
    if reply.get("action") != "accept":
        return Answer(outcome="declined" if reply.get("action") == "decline" else "cancelled")
    content: dict[str, Any] = reply.get("content") or {}
    selected: dict[str, tuple[str, ...]] = {}
    text: dict[str, str] = {}
    for question in ask.questions:
        value = content.get(question.id)
        if value is not None and question.options:
            # `_OTHER` only marks free text, unless it is an option of the question.
            if value != _OTHER or any(option.id == _OTHER for option in question.options):
                selected[question.id] = _as_options(value)
        elif value is not None:
            text[question.id] = str(value)
        for end in _COMPANIONS:
            if question.id + end in content:
                text[question.id] = str(content[question.id + end])
    return Answer(selected=selected, text=text)


def _as_options(value: str | bool | list[str]) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (value,) if isinstance(value, str) else tuple(value)


def _dump(
    response: AcceptElicitationResponse | DeclineElicitationResponse | CancelElicitationResponse,
) -> dict[str, Any]:
    return response.model_dump(mode="json", by_alias=True, exclude_none=True)
