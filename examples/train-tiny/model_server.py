"""An OpenAI-compatible endpoint for the tiny model, with the token ids that training needs."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from tiny_model import CONTEXT, VOCABULARY, message_of, render
from transformers import GPT2LMHeadModel


class ModelServer:
    """Samples from a model whose weights a trainer changes between calls.

    `version` is the number of the weights. Each answer names the version that sampled it.
    """

    def __init__(self, model: GPT2LMHeadModel, seed: int = 0) -> None:
        self.model = model
        self.version = 0
        self.calls = 0
        self.sampled_tokens = 0
        self._random = torch.Generator().manual_seed(seed)
        # One call at a time: the weights of a call never change within it.
        self._lock = threading.Lock()

    @contextmanager
    def training(self) -> Iterator[GPT2LMHeadModel]:
        """Lend the model to a trainer. The weights have a new version afterwards."""
        with self._lock:
            yield self.model
            self.version += 1

    def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a chat completion of one sampled token."""
        prompt = render(request["messages"])
        if len(prompt) >= CONTEXT:
            raise ValueError("maximum context length exceeded")
        temperature = float(request.get("temperature", 1.0))
        with self._lock, torch.no_grad():
            logits = self.model(input_ids=torch.tensor([prompt])).logits[0, -1]
            logprobs = torch.log_softmax(logits / max(temperature, 1e-6), dim=-1)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=self._random))
            version = self.version
            self.calls += 1
            self.sampled_tokens += 1
        return _body(prompt, token, float(logprobs[token]), version, self.calls)


def _body(prompt: list[int], token: int, logprob: float, version: int, call: int) -> dict[str, Any]:
    message = message_of(token, f"call-{call}")
    content = [{"token": VOCABULARY[token], "logprob": logprob, "bytes": None, "top_logprobs": []}]
    return {
        "id": f"completion-{call}",
        "object": "chat.completion",
        "created": 0,
        "model": f"tiny-v{version}",
        "prompt_token_ids": prompt,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
                "token_ids": [token],
                "logprobs": {"content": content},
            }
        ],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": 1,
            "total_tokens": len(prompt) + 1,
        },
    }


@contextmanager
def serving(server: ModelServer, port: int = 0) -> Iterator[str]:
    """Serve on loopback, and yield the base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                body = server.complete(request)
                self._send(200, body, body["model"].removeprefix("tiny-"))
            except (KeyError, ValueError) as error:
                # For example a message that is not one of the lock or of the model.
                self._send(400, {"error": {"message": f"{type(error).__name__}: {error}"}})

        def _send(self, status: int, body: Mapping[str, Any], version: str = "") -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if version:
                self.send_header("x-policy-version", version)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
