"""A server with the wires of token engines, and a tokenizer of the family qwen3."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)


def make_tokenizer(path: Path) -> Tokenizer:
    """Write a byte-level tokenizer with a few merges, so that texts have several spellings."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("o", "k")]
    vocabulary = [*letters, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({word: at for at, word in enumerate(vocabulary)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL[:3]))
    made.add_tokens(list(SPECIAL[3:]))
    made.save(str(path))
    return made


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of `text` letter by letter: a model need not sample merged tokens."""
    ids: list[int] = []
    while text:
        word = next((each for each in SPECIAL if text.startswith(each)), text[0])
        ids += tokenizer.encode(word, add_special_tokens=False).ids
        text = text[len(word) :]
    return ids


class TokenEngine:
    """Answers with scripted texts, in the wire of vLLM, SkyRL or SGLang."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.change: Callable[[dict[str, Any]], Any] = lambda body: body
        self._tokenizer = tokenizer
        self._texts = list(texts)

    def _next(self) -> list[int]:
        return spelled(self._tokenizer, self._texts.pop(0))

    async def _generate(self, request: web.Request) -> web.Response:
        self.requests.append({"path": request.path, **await request.json()})
        ids = self._next()
        content = [{"token": f"token_id:{each}", "logprob": -0.5} for each in ids]
        choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}}
        return self._reply({"request_id": "r", "choices": [choice]})

    async def _sglang(self, request: web.Request) -> web.Response:
        self.requests.append({"path": request.path, **await request.json()})
        ids = self._next()
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "output_token_logprobs": [[-0.5, each, None] for each in ids],
            "weight_version": "step-7",
        }
        return self._reply({"text": "", "output_ids": ids, "meta_info": meta})

    def _reply(self, body: dict[str, Any]) -> web.Response:
        changed = self.change(body)
        if isinstance(changed, web.Response):
            return changed
        return web.Response(text=json.dumps(changed), content_type="application/json")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/skyrl/v1/generate", self._generate)
        app.router.add_post("/generate", self._sglang)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()
