"""The default answer to a permission request."""

from benchflow_contracts import Answer, Ask, AskOption


def allow(ask: Ask) -> Answer:
    """Allow the request: once if that is an option, else always.

    The sandbox protects the host, so a refused tool call would only stop the rollout.
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
