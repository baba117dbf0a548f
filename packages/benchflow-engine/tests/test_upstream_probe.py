"""An endpoint of unknown kind: it is asked once, and its level is known from then on."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from benchflow_contracts import Endpoint, UsageError
from benchflow_contracts.gateway import EndpointProbe
from benchflow_engine.upstream_probe import TokensMissingError, UpstreamChoice, settle_upstream

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "a"}}
IDS = {"prompt_token_ids": [1], "choices": [{**CHOICE, "token_ids": [2]}]}
LOGPROBS = {"content": [{"token": "a", "logprob": -1.0}]}
EXACT = {"prompt_token_ids": [1], "choices": [{**CHOICE, "token_ids": [2], "logprobs": LOGPROBS}]}


class Answers:
    """A chat endpoint that always answers the same, and counts its requests."""

    def __init__(self, body: dict[str, Any], status: int = 200, *, strict: bool = False) -> None:
        self.body, self.status, self.strict = body, status, strict
        self.asked = 0

    def of(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked += 1
        if self.strict and "return_token_ids" in request:
            return 400, {"error": {"message": "unknown field return_token_ids"}}
        return self.status, self.body


@contextmanager
def served(answers: Answers) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, body = answers.of(request)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Endpoint(url=f"http://127.0.0.1:{server.server_address[1]}/v1")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settle(
    endpoint: Endpoint, kind: UpstreamChoice = "auto", *, require_tokens: bool = False
) -> tuple[str, EndpointProbe | None]:
    return asyncio.run(settle_upstream(kind, endpoint, "m", require_tokens=require_tokens))


@pytest.mark.parametrize(
    ("body", "strict", "kind", "level"),
    [
        (EXACT, False, "vllm", "tokens+logprobs"),
        (IDS, False, "vllm", "tokens"),
        ({"choices": [CHOICE]}, False, "openai", "text"),
        ({"choices": [CHOICE]}, True, "openai", "text"),
    ],
)
def test_an_unknown_endpoint_gets_its_kind_by_one_probe(
    body: dict[str, Any], strict: bool, kind: str, level: Any
) -> None:
    answers = Answers(body, strict=strict)
    with served(answers) as endpoint:
        found = [settle(endpoint) for _ in range(3)]
    assert found == [(kind, EndpointProbe(level=level))] * 3
    assert answers.asked == (2 if strict else 1)


def test_rollouts_that_start_together_share_one_request() -> None:
    async def start_many(endpoint: Endpoint) -> list[str]:
        async with asyncio.TaskGroup() as group:
            many = [group.create_task(settle_upstream("auto", endpoint, "m")) for _ in range(20)]
        return [each.result()[0] for each in many]

    answers = Answers(EXACT)
    with served(answers) as endpoint:
        assert asyncio.run(start_many(endpoint)) == ["vllm"] * 20
    assert answers.asked == 1


def test_a_cancelled_caller_does_not_cancel_the_probe_of_another() -> None:
    async def cancel_first(endpoint: Endpoint) -> str:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(settle_upstream("auto", endpoint, "m"))
            await asyncio.sleep(0)
            second = group.create_task(settle_upstream("auto", endpoint, "m"))
            await asyncio.sleep(0)
            first.cancel()
        return second.result()[0]

    with served(Answers(EXACT)) as endpoint:
        assert asyncio.run(cancel_first(endpoint)) == "vllm"


def test_a_stated_kind_is_not_probed() -> None:
    answers = Answers(EXACT)
    with served(answers) as endpoint:
        assert settle(endpoint, "vllm") == ("vllm", None)
    assert answers.asked == 0


def test_a_failed_probe_is_a_warning_or_with_required_tokens_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with served(Answers({"error": {"message": "no such model"}}, status=404)) as endpoint:
        kind, probe = settle(endpoint)
        assert kind == "openai"
        assert probe is not None
        assert probe.level is None
        assert "answered 404: no such model" in str(probe.error)
        assert "tokens of the model endpoint are not known" in caplog.text
        with pytest.raises(TokensMissingError, match="answered 404"):
            settle(endpoint, require_tokens=True)


@pytest.mark.parametrize("kind", ["auto", "vllm"])
def test_required_tokens_refuse_an_endpoint_without_log_probabilities(
    kind: UpstreamChoice,
) -> None:
    with (
        served(Answers(IDS)) as endpoint,
        pytest.raises(TokensMissingError, match="level 'tokens' only"),
    ):
        settle(endpoint, kind, require_tokens=True)


def test_required_tokens_refuse_a_protocol_that_has_none() -> None:
    with pytest.raises(UsageError, match="upstream 'anthropic' returns none"):
        settle(Endpoint(url="http://127.0.0.1:1"), "anthropic", require_tokens=True)
