"""Represent an Ask as a tool call, like any other action of the agent."""

from typing import Any, Final

from benchflow_contracts import Answer, Ask

ASK_TOOL: Final = "ask_user"
"""The tool name of an Ask in an export."""


def ask_arguments(ask: Ask) -> dict[str, Any]:
    """Return the arguments of the `ask_user` call that represents `ask`."""
    questions = [
        {"question": q.text, "options": [option.label for option in q.options]}
        for q in ask.questions
    ]
    return {"questions": questions}


def answer_text(ask: Ask, answer: Answer) -> str:
    """Return the labels and the free text of `answer`, or another end of the Ask."""
    if answer.outcome != "answered":
        return answer.outcome
    parts: list[str] = []
    for question in ask.questions:
        labels = {option.id: option.label for option in question.options}
        parts += [labels.get(chosen, chosen) for chosen in answer.selected.get(question.id, ())]
        parts += [answer.text[question.id]] if question.id in answer.text else []
    return "\n".join(parts)
