import pytest
from benchflow_agent_acp.asks import to_answer, to_ask, to_reply
from benchflow_agent_acp.state import IncomingRequest
from benchflow_contracts import Answer, UsageError

CLAUDE = {
    "sessionId": "s",
    "toolCallId": "toolu_1",
    "mode": "form",
    "message": "Which database shall I use?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "question_0": {
                "type": "string",
                "title": "Database",
                "oneOf": [
                    {"const": "SQLite", "title": "SQLite", "description": "One file"},
                    {"const": "Postgres", "title": "Postgres"},
                ],
            },
            "question_0_custom": {"type": "string", "title": "Other"},
        },
    },
}
CODEX = {
    "sessionId": "s",
    "mode": "form",
    "message": "Input requested",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "color": {
                "type": "string",
                "title": "Which color?",
                "description": "Color",
                "_meta": {"codex": {"isOther": True}},
                "oneOf": [
                    {"const": "red", "title": "Red"},
                    {"const": "None of the above", "title": "None of the above"},
                ],
            },
            "color_note": {"type": "string"},
            "size": {"type": "integer", "description": "How many?"},
            "sure": {"type": "boolean", "description": "Sure?"},
            "tags": {
                "type": "array",
                "description": "Which tags?",
                "items": {"type": "string", "enum": ["a", "b", "c"]},
            },
        },
    },
}
GATE = {
    "sessionId": "s",
    "toolCall": {"toolCallId": "call_1", "title": None, "rawInput": {"command": "rm x"}},
    "options": [
        {"optionId": "allow-once", "name": "Allow", "kind": "allow_once"},
        {"optionId": "always", "name": "Always", "kind": "allow_always"},
        {"optionId": "no", "name": "Deny", "kind": "reject_once"},
    ],
}
QWEN = {
    "sessionId": "s",
    "toolCall": {
        "toolCallId": "call_2",
        "title": "Ask user 2 questions",
        "_meta": {
            "toolName": "ask_user_question",
            "qwenInteractionKind": "user_question",
            "qwenQuestions": [
                {
                    "question": "Which color?",
                    "header": "Color",
                    "options": [
                        {"label": "Red", "description": "The red one"},
                        {"label": "Blue", "description": ""},
                    ],
                    "multiSelect": False,
                },
                {
                    "question": "Which extras?",
                    "options": [{"label": "Cache"}, {"label": "Metrics"}],
                    "multiSelect": True,
                },
            ],
        },
    },
    "options": [
        {"optionId": "proceed_once", "name": "Submit", "kind": "allow_once"},
        {"optionId": "cancel", "name": "Cancel", "kind": "reject_once"},
    ],
}


def ask_of(method, params):
    return to_ask(IncomingRequest(7, method, params))


def form(params):
    return ask_of("elicitation/create", params)


def gate(params):
    return ask_of("session/request_permission", params)


def test_claudes_form_is_one_branchable_question_with_free_text():
    ask = form(CLAUDE)
    assert (ask.id, ask.channel, ask.kind) == ("ask-7", "elicitation", "question")
    assert ask.tool_call_id == "toolu_1"
    assert ask.branchable
    (question,) = ask.questions
    assert question.id == "question_0"
    assert question.text == "Which database shall I use?\nDatabase"
    assert [(o.id, o.description) for o in question.options] == [
        ("SQLite", "One file"),
        ("Postgres", ""),
    ]
    assert question.allow_custom
    assert ask.raw == CLAUDE


def test_codex_form_has_every_kind_of_question_and_no_option_for_free_text():
    ask = form(CODEX)
    assert [question.id for question in ask.questions] == ["color", "size", "sure", "tags"]
    assert [question.multi for question in ask.questions] == [False, False, False, True]
    assert [len(question.options) for question in ask.questions] == [1, 0, 2, 3]
    assert ask.questions[0].text == "Which color?\nColor"
    assert not ask.branchable


def test_a_permission_request_has_the_options_of_the_agent():
    ask = gate(GATE)
    assert (ask.channel, ask.kind, ask.tool_call_id) == ("permission", "permission", "call_1")
    assert [option.kind for option in ask.questions[0].options] == [
        "allow_once",
        "allow_always",
        "reject_once",
    ]


def test_qwens_questionnaire_in_a_permission_request_is_a_question():
    ask = gate(QWEN)
    assert (ask.channel, ask.kind) == ("vendor", "question")
    assert [question.text for question in ask.questions] == ["Which color?", "Which extras?"]
    assert [question.multi for question in ask.questions] == [False, True]
    older = {**QWEN, "toolCall": {**QWEN["toolCall"]}}
    older["toolCall"]["rawInput"] = {"questions": QWEN["toolCall"]["_meta"]["qwenQuestions"]}
    older["toolCall"]["_meta"] = {"qwenInteractionKind": "user_question"}
    assert gate(older).questions == ask.questions


@pytest.mark.parametrize(
    ("ask", "answer", "reply"),
    [
        (
            form(CLAUDE),
            Answer(selected={"question_0": ("Postgres",)}),
            {"action": "accept", "content": {"question_0": "Postgres"}},
        ),
        (
            form(CLAUDE),
            Answer(text={"question_0": "DuckDB"}),
            {"action": "accept", "content": {"question_0_custom": "DuckDB"}},
        ),
        (form(CLAUDE), Answer(outcome="declined"), {"action": "decline"}),
        (form(CLAUDE), Answer(outcome="cancelled"), {"action": "cancel"}),
        (
            form(CODEX),
            Answer(
                selected={"sure": ("true",), "tags": ("a", "c")},
                text={"color": "green", "size": "3"},
            ),
            {
                "action": "accept",
                "content": {
                    "color": "None of the above",
                    "color_note": "green",
                    "size": 3,
                    "sure": True,
                    "tags": ["a", "c"],
                },
            },
        ),
        (
            gate(GATE),
            Answer(selected={"permission": ("always",)}),
            {"outcome": {"outcome": "selected", "optionId": "always"}},
        ),
        (gate(GATE), Answer(outcome="cancelled"), {"outcome": {"outcome": "cancelled"}}),
        (
            gate(QWEN),
            Answer(selected={"0": ("Blue",), "1": ("Cache", "Metrics")}),
            {
                "outcome": {"outcome": "selected", "optionId": "proceed_once"},
                "answers": {"0": "Blue", "1": "Cache, Metrics"},
            },
        ),
        (
            gate(QWEN),
            Answer(selected={"1": ("Cache",)}, text={"0": "green"}),
            {
                "outcome": {"outcome": "selected", "optionId": "proceed_once"},
                "answers": {"0": "green", "1": "Cache"},
            },
        ),
        (
            gate(QWEN),
            Answer(outcome="declined"),
            {"outcome": {"outcome": "selected", "optionId": "cancel"}},
        ),
        (gate(QWEN), Answer(outcome="cancelled"), {"outcome": {"outcome": "cancelled"}}),
    ],
)
def test_an_answer_survives_the_conversion_to_a_reply(ask, answer, reply):
    assert to_reply(ask, answer) == reply
    assert to_answer(ask, reply) == answer


def test_a_declined_permission_selects_reject_and_is_recorded_so():
    reply = to_reply(gate(GATE), Answer(outcome="declined"))
    assert reply == {"outcome": {"outcome": "selected", "optionId": "no"}}
    assert to_answer(gate(GATE), reply) == Answer(selected={"permission": ("no",)})


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (form(CLAUDE), Answer(selected={"question_0": ("Oracle",)})),
        (form(CLAUDE), Answer(selected={"question_0": ("SQLite", "Postgres")})),
        (form(CLAUDE), Answer()),
        (form(CODEX), Answer(text={"size": "many"})),
        (form(CODEX), Answer(text={"tags": "none"})),
        (gate(GATE), Answer(selected={"permission": ("sudo",)})),
        (gate(GATE), Answer()),
        (gate(QWEN), Answer(selected={"0": ("Green",), "1": ("Cache",)})),
        (gate(QWEN), Answer(selected={"0": ("Red",)})),
    ],
)
def test_an_answer_to_another_question_is_refused(ask, answer):
    with pytest.raises(UsageError):
        to_reply(ask, answer)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("elicitation/create", {}),
        ("elicitation/create", {**CLAUDE, "mode": "url"}),
        ("elicitation/create", {**CLAUDE, "requestedSchema": {"type": "object"}}),
        ("elicitation/create", {**CLAUDE, "requestedSchema": {"properties": 7}}),
        ("session/request_permission", {**GATE, "options": []}),
        ("session/request_permission", {**GATE, "options": "all"}),
        ("session/request_permission", {**GATE, "toolCall": 1}),
        ("fs/read_text_file", {"path": "/etc/passwd"}),
    ],
)
def test_a_request_without_a_question_is_not_an_ask(method, params):
    assert ask_of(method, params) is None
