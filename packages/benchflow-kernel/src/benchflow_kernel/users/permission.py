"""The default answer to a permission request."""

from benchflow_contracts import Answer, Ask, AskOption


def allow(ask: Ask) -> Answer:
    """Allow what the agent asks to do: once, where it can be said; else at all.

    The sandbox is what guards, so a gate on a tool call would only stop the rollout.
    Without any option the request is declined.
    """
    selected: dict[str, tuple[str, ...]] = {}
    for question in ask.questions:
        if not question.options:
            return Answer(outcome="declined")
        selected[question.id] = (min(question.options, key=_rank).id,)
    return Answer(selected=selected)


def _rank(option: AskOption) -> int:
    kind = option.kind or ""
    if kind == "allow_once":
        return 0
    if kind.startswith("allow"):
        return 1
    return 3 if kind.startswith("reject") else 2
