"""The records of `benchflow-monitor`, carried by spans."""

from benchflow_traces.client_records import (
    ClientRecord,
    EndedRecord,
    ScoreRecord,
    StepRecord,
    parse_record,
)
from benchflow_traces.facts import (
    AgentRun,
    CalledTool,
    Evaluation,
    Fact,
    Failure,
    Message,
    ModelCall,
    Reading,
    Tokens,
    ToolRun,
    UserPrompt,
)
from benchflow_traces.spans import Span


def read_span(span: Span) -> Reading | None:
    """Return the facts of a record of `benchflow-monitor`, else None."""
    text = span.attributes.get("benchflow.record")
    record = parse_record(text) if isinstance(text, str) else None
    if record is None:
        return None
    return Reading("benchflow", tuple(_facts(record)), {"conversation": record.rollout})


def _facts(record: ClientRecord) -> list[Fact]:
    match record:
        case StepRecord():
            return _step(record)
        case ScoreRecord():
            explanation = record.explanation or None
            return [Evaluation(record.name, score=record.value, explanation=explanation)]
        case EndedRecord(error=error) if error is not None:
            return [AgentRun("agent", failure=Failure(error.type, error.message))]
        case _:
            return []


def _step(record: StepRecord) -> list[Fact]:
    calls = tuple(
        CalledTool(call.id or f"{record.index}-{number}", call.name, call.arguments)
        for number, call in enumerate(record.tool_calls)
    )
    names = {call.id: call.name for call in calls}
    usage = record.usage
    tokens = (
        Tokens()
        if usage is None
        else Tokens(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    )
    output = Message("assistant", record.message, record.reasoning, calls)
    call = ModelCall(
        record.model, output=output, finish=record.stop_reason, tokens=tokens, role=record.role
    )
    prompts = [UserPrompt(record.prompt, role=record.role)] if record.prompt else []
    runs = [
        ToolRun(
            id=result.tool_call_id,
            name=names.get(result.tool_call_id, "tool"),
            result=result.content,
            failure=Failure("Error", result.content) if result.status == "failed" else None,
        )
        for result in record.observations
    ]
    return [*prompts, call, *runs]
