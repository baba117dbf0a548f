"""The failure of a span, as every dialect reports it."""

from benchflow_traces.facts import Failure
from benchflow_traces.messages import bounded
from benchflow_traces.spans import Attributes, Span, first_text


def failure_of(span: Span) -> Failure | None:
    """Return the failure of a span with the status ERROR, else None.

    The type is the attribute `error.type`, else that of the last `exception` event. Many programs
    send only the event.
    """
    if not span.failed:
        return None
    raised = next((e for e in reversed(span.events) if e.name == "exception"), None)
    attributes: Attributes = {} if raised is None else raised.attributes
    kind = span.text("error.type") or first_text(attributes, "exception.type") or "Error"
    message = first_text(attributes, "exception.message") or span.message
    return Failure(type=kind.rpartition(".")[2][:200] or "Error", message=bounded(message))
