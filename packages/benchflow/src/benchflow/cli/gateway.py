"""`bench gateway`: the model gateway on its own."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Literal

from benchflow_contracts import CallBudget, ModelEndpoint, UsageError
from benchflow_gateway import HttpGateway, Limits, Price, Route, read_calls

from .flags import Json
from .output import print_json, print_table

_DESCRIPTORS = 65536
_MB = 1024 * 1024


async def serve(
    *,
    upstream: str,
    record: Path,
    kind: Literal["same", "openai", "vllm", "anthropic"] = "same",
    model: str | None = None,
    port: int = 0,
    rollout: str = "serve",
    node: str = "n0",
    replay: Path | None = None,
    on_divergence: Literal["refuse", "live"] = "refuse",
    calls: int | None = None,
    tokens: int | None = None,
    cost_usd: float | None = None,
    price: tuple[str, ...] = (),
    record_mb: int | None = None,
    api_key_env: str = "BENCHFLOW_API_KEY",
    json: Json = False,
) -> None:
    """Serve one route on loopback until interrupted; print its address on standard output.

    Every call is in RECORD/ROLLOUT/NODE.jsonl before its last byte is answered.

    Examples:
        bench gateway serve --upstream http://127.0.0.1:8000/v1 --kind vllm --record calls
        bench gateway serve --upstream https://api.anthropic.com --record calls --tokens 100000

    Args:
        upstream: The base URL of the model server.
        record: The directory that calls are recorded in.
        kind: What the upstream speaks; `same` is whatever the agent speaks.
        model: Ask the upstream for this model, whatever the agent names.
        port: Listen here; 0 takes a free port.
        rollout: Part of the address and of the record's path, as is node.
        replay: Answer from this record first.
        on_divergence: What becomes of a request that is not the recorded one.
        calls: Refuse calls beyond this number.
        tokens: Refuse calls once this many tokens are used.
        cost_usd: Refuse calls once this much is spent; needs --price.
        price: MODEL=INPUT,OUTPUT in US dollars per million tokens; may be repeated.
        record_mb: Refuse calls once the record takes this much disk.
        api_key_env: The variable that holds the upstream's key.
    """
    _allow_many_connections()
    endpoint = _endpoint(upstream, api_key_env)
    recorded = read_calls(replay) if replay is not None else ()
    budget = CallBudget(calls=calls, tokens=tokens, cost_usd=cost_usd)
    limits = Limits(record_bytes=None if record_mb is None else record_mb * _MB)
    async with HttpGateway(
        record,
        kind=kind,
        model=model,
        port=port,
        prices=dict(_price(text) for text in price),
        diverged_go_live=on_divergence == "live",
        limits=limits,
    ) as gateway:
        route = await gateway.open(rollout, node, upstream=endpoint, replay=recorded, budget=budget)
        _tell(route, json=json)
        await _interrupted()


def _allow_many_connections() -> None:
    # A stream takes two descriptors, and 1024 is what a process has by default.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tell(route: Route, *, json: bool) -> None:
    if json:
        print_json({"url": route.endpoint.upstream})
    else:
        sys.stdout.write(route.endpoint.upstream + "\n")
    sys.stdout.flush()


async def _interrupted() -> None:
    # Not by the interpreter's own handler: who starts a server in the background of a
    # script may have had SIGINT ignored.
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def _endpoint(url: str, api_key_env: str) -> ModelEndpoint:
    if not url.startswith(("http://", "https://")):
        hint = "for example http://127.0.0.1:8000/v1"
        raise UsageError(f"--upstream {url!r} is no http(s) URL", hint=hint)
    key = os.environ.get(api_key_env)
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    return ModelEndpoint(upstream=url, headers=headers)


def _price(text: str) -> tuple[str, Price]:
    model, _, prices = text.rpartition("=")
    try:
        fresh, made = (float(part) for part in prices.split(","))
        return model, Price(input=fresh, output=made)
    except ValueError as error:
        hint = "for example --price my-model=3,15"
        raise UsageError(f"--price {text!r} is not MODEL=INPUT,OUTPUT", hint=hint) from error


async def show(record: Path, *, json: Json = False) -> None:
    """Show the calls of a record.

    Examples:
        bench gateway show calls/serve/n0.jsonl

    Args:
        record: A file of recorded calls.
    """
    calls = read_calls(record)
    if json:
        print_json([call.model_dump(mode="json") for call in calls])
        return
    rows = [
        (
            call.id,
            call.purpose,
            call.model or "",
            call.status,
            call.usage.input_tokens,
            call.usage.output_tokens,
            "" if call.cost_usd is None else f"{call.cost_usd:.4f}",
            "replayed" if call.replayed else call.error or "",
        )
        for call in calls
    ]
    columns = ("call", "purpose", "model", "status", "in", "out", "USD", "note")
    print_table(columns, rows, empty="no calls")
