"""`bench gateway probe` and `render`: the tokens of a model endpoint."""

import os
import sys
from pathlib import Path
from typing import Literal

from benchflow_gateway import probe_tokens

from . import format as fmt
from .flags import Json
from .gateway import endpoint_at, print_url, wait_for_interrupt
from .output import print_json


async def probe(
    *,
    upstream: str,
    model: str,
    api_key_env: str = "BENCHFLOW_API_KEY",
    json: Json = False,
) -> None:
    """Ask a chat endpoint for one token, and show which tokens its answer has.

    Examples:
        bench gateway probe --upstream http://127.0.0.1:8000/v1 --model my-policy

    Args:
        upstream: Base URL of the model server.
        model: Name of the model in the request.
        api_key_env: Variable on this machine with the server's key.
    """
    level = await probe_tokens(endpoint_at(upstream, api_key_env), model)
    if json:
        print_json({"level": level})
    else:
        sys.stdout.write(f"{fmt.token_level(level)}\n")


async def render(
    *,
    engine: Literal["vllm", "skyrl", "sglang", "tinker"] = "vllm",
    upstream: str,
    family: str,
    tokenizer: Path,
    thinking: bool | None = None,
    context_tokens: int | None = None,
    sampling_mask: bool = False,
    port: int = 0,
    api_key_env: str = "BENCHFLOW_API_KEY",
    json: Json = False,
) -> None:
    """Serve a chat endpoint that keeps sampled tokens; print its address on standard output.

    The endpoint renders messages itself and sends token ids to the engine. The next prompt of a
    conversation begins with exactly the sampled tokens. Use it with `--upstream vllm`. GET /status
    counts the prompts for which this was not possible.

    Examples:
        bench gateway render --upstream http://127.0.0.1:8000 --family qwen3 --tokenizer ./Qwen3-8B

    Args:
        engine: Wire of the engine. `tinker` needs the package of this name.
        upstream: Base URL of the engine.
        family: Model family of the package `renderers`, such as qwen3.
        tokenizer: The model's tokenizer.json, or its directory.
        thinking: Thinking of the model, for a family that can turn it off.
        context_tokens: Tokens of a prompt that is too long (default: the engine decides).
        sampling_mask: Request to SGLang for the tokens that top-k and top-p leave.
        port: Port to listen on (default: a free port).
        api_key_env: Variable on this machine with the engine's key.
    """
    # The package `renderers` is an extra.
    from benchflow_gateway.rendering import load_renderer, serve_rendering

    endpoint_at(upstream, api_key_env)
    renderer = load_renderer(family, tokenizer, thinking=thinking)
    async with serve_rendering(
        renderer,
        engine,
        upstream,
        api_key=os.environ.get(api_key_env),
        port=port,
        context_tokens=context_tokens,
        sampling_mask=sampling_mask,
    ) as (_, url):
        print_url(url, json=json)
        await wait_for_interrupt()
