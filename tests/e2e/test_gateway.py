"""`bench gateway`, as an operator runs it."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse, WriteOneFile

BENCH = Path(sys.executable).with_name("bench")


@contextmanager
def serving(*args: object) -> Iterator[str]:
    """Run `bench gateway serve`; yield the address and token that it prints; end it by SIGTERM."""
    command = [str(BENCH), "gateway", "serve", *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(2 if "--token" in args else 1)]
            yield "".join(lines).strip()
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
        finally:
            server.kill()


def post(url: str, body: dict[str, Any], *, token: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_serve_records_replays_and_keeps_a_budget(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    record = tmp_path / "calls"
    tool = {"name": "write_file", "input_schema": {"properties": {"path": {}, "content": {}}}}
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Go."}],
        "tools": [tool],
    }
    with ScriptedLlm(WriteOneFile("a", "b")) as llm:
        options = ("--upstream", llm.url, "--record", record)
        limited = ("--kind", "vllm", "--calls", 1, "--price", "m=3,15")
        with serving(*options, *limited) as url:
            status, first = post(f"{url}/v1/messages", body)
            assert (status, first["stop_reason"]) == (200, "tool_use")
            status, refused = post(f"{url}/v1/messages", body)
            assert (status, refused["error"]["type"]) == (402, "billing_error")
        file = record / "serve" / "n0.jsonl"
        made, second = bench("gateway", "show", file, "--json")
        assert made["prompt_token_ids"]
        assert made["response"] == first
        assert made["cost_usd"] == pytest.approx((11 * 3 + 7 * 15) / 1e6)
        assert second["error"].startswith("budget")
        with serving(*options, "--node", "n1", "--replay", file) as url:
            assert post(f"{url}/v1/messages", body) == (200, first)
        assert len(llm.requests) == 1
    assert "replayed" in bench("gateway", "show", record / "serve" / "n1.jsonl")


def test_an_agent_that_fills_its_record_is_graded_as_it_stands(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    def chatter(request: ModelRequest) -> ModelReply:
        tools = (ToolUse("shell", {"command": "true"}),) if request.tools else ()
        return ModelReply(text="x" * 200_000, tools=tools)

    task = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/book-the-review-room"
    with ScriptedLlm(chatter) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted")
        limit = ("--model-record-mb", 1, "--agent", "policy", "--json")
        result = bench("run", task, *endpoint, *limit)
        asked = len(llm.requests)
    assert (result["status"], result["reward"]) == ("completed", 0.0)
    assert (result["error"]["type"], result["error"]["boundary"]) == ("RecordLimitError", "agent")
    (record,) = (tmp_path / result["directory"] / "model").rglob("*.jsonl")
    assert record.stat().st_size < 1024 * 1024 + 4000
    assert asked < 6


def test_serve_says_what_is_wrong_with_its_flags(bench: Callable[..., Any]) -> None:
    bench("gateway", "serve", "--upstream", "nowhere", "--record", "calls", code=2)
    bench("gateway", "serve", "--upstream", "http://x", "--record", "c", "--price", "m=1", code=2)
    bench("gateway", "show", "missing.jsonl", code=4)


def test_serve_for_other_machines_asks_for_its_token(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
    with ScriptedLlm(WriteOneFile("a", "b")) as llm:
        options = ("--upstream", llm.url, "--record", tmp_path / "calls")
        public = ("--bind", "0.0.0.0", "--gateway-url", "https://gw.example")
        bench("gateway", "serve", *options, *public, code=2)
        bench("gateway", "serve", *options, *public, "--token", code=2)
        with serving(*options, "--token") as shown:
            url, token = shown.split()
            assert post(f"{url}/chat/completions", body)[0] == 401
            assert post(f"{url}/chat/completions", body, token=token)[0] == 200
        assert len(llm.requests) == 1
