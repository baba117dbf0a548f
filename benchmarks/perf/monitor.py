"""What a span of production costs: decode, map, store, and fold into a scored rollout.

The spans are those of an agent with content: chat and tool spans of 1 to 2 kB, in requests of 500,
as the batch processor of OpenTelemetry sends them. The CPU seconds of all threads count. The peer
is what the same bytes cost when protobuf only parses them.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from benchflow_dashboard.monitor.assembler import Assembler
from benchflow_dashboard.monitor.codec import span_rows
from benchflow_dashboard.monitor.config import MonitorConfig
from benchflow_dashboard.monitor.scoring import OnlineScorer
from benchflow_dashboard.monitor.writer import SpanWriter
from benchflow_traces import decode_traces
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from report import emit

SPANS = 500
STEPS = 5
PROTOBUF = "application/x-protobuf"


def request(number: int) -> bytes:
    """Return a request with the spans of 50 rollouts of 5 steps, each with a tool."""
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for rollout in range(SPANS // (2 * STEPS)):
        trace = (number * 1000 + rollout + 1).to_bytes(16, "big")
        for step in range(2 * STEPS):
            span = scope.spans.add(
                trace_id=trace,
                span_id=(step + 1).to_bytes(8, "big"),
                parent_span_id=b"" if step == 0 else (1).to_bytes(8, "big"),
                start_time_unix_nano=1_000 + step,
                end_time_unix_nano=2_000 + step,
            )
            attributes = chat(step) if step % 2 == 0 else tool(step)
            for key, value in attributes.items():
                span.attributes.add(key=key).value.string_value = value
    return message.SerializeToString()


def chat(step: int) -> dict[str, str]:
    asked = [{"role": "user", "parts": [{"type": "text", "content": "where is it? " * 60}]}]
    call = {"type": "tool_call", "id": f"c{step}", "name": "find", "arguments": '{"q": "x"}'}
    answer = [{"role": "assistant", "parts": [call, {"type": "text", "content": "look " * 100}]}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(answer),
    }


def tool(step: int) -> dict[str, str]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "find",
        "gen_ai.tool.call.id": f"c{step - 1}",
        "gen_ai.tool.call.result": "a result " * 180,
    }


def microseconds(begin: float, spans: int) -> float:
    return (time.process_time() - begin) / spans * 1e6


async def store(directory: Path, bodies: list[bytes]) -> tuple[float, float]:
    """Return the CPU us of a span until it is durable, and until its rollout is scored."""
    database = directory / "monitor.db"
    writer = SpanWriter(database, max_waiting=2**30)
    config = MonitorConfig(grace_sec=0.0)
    begin = time.process_time()
    for body in bodies:
        await writer.store(span_rows(decode_traces(body, PROTOBUF)))
    writer.close()
    stored = microseconds(begin, len(bodies) * SPANS)
    assembler = Assembler(database, config, OnlineScorer(config))
    begin = time.process_time()
    rollouts = 0
    while count := await assembler.assemble():
        rollouts += count
    assembler.close()
    assert rollouts == len(bodies) * SPANS // (2 * STEPS)
    return stored, microseconds(begin, len(bodies) * SPANS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10)
    arguments = parser.parse_args()
    parsed: list[float] = []
    stored: list[float] = []
    folded: list[float] = []
    for number in range(arguments.rounds):
        bodies = [request(number * 100 + one) for one in range(arguments.requests)]
        begin = time.process_time()
        for body in bodies:
            ExportTraceServiceRequest.FromString(body)
        parsed.append(microseconds(begin, len(bodies) * SPANS))
        with tempfile.TemporaryDirectory() as directory:
            durable, scored = asyncio.run(store(Path(directory), bodies))
        stored.append(durable)
        folded.append(scored)
    size = len(bodies[0]) // SPANS
    emit("monitor.parse", parsed, unit="CPU us a span", bytes_a_span=size)
    ratio = sorted(stored)[len(stored) // 2] / sorted(parsed)[len(parsed) // 2]
    emit("monitor.store", stored, unit="CPU us a span", limit=100, to_parse=round(ratio, 1))
    emit("monitor.fold_and_score", folded, unit="CPU us a span", rollouts_of=2 * STEPS)


if __name__ == "__main__":
    main()
