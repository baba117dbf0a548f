"""Real programs that export traces, and what they export."""

import os
import subprocess
import sys
from pathlib import Path

from benchflow_traces import Span, decode_traces
from chat_stub import chat_stub, receiver

PROGRAMS = Path(__file__).parent / "otel_programs"
"""Programs as their users write them. They need the group `test` of benchflow-traces."""


class Emitted:
    """Runs a program once, and keeps the spans that it exported."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[Span, ...]] = {}

    def spans(self, program: str) -> tuple[Span, ...]:
        """Return the spans of a program below `PROGRAMS`."""
        if program not in self._spans:
            self._spans[program] = _run(program)
        return self._spans[program]


def _run(program: str) -> tuple[Span, ...]:
    with chat_stub() as model, receiver() as received:
        settings = {
            "MODEL_URL": model,
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        }
        script = PROGRAMS / f"{program}.py"
        done = subprocess.run(
            [sys.executable, script],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return tuple(
        span
        for path, headers, body in received.requests
        for span in decode_traces(body, headers["content-type"])
        if path == "/v1/traces"
    )
