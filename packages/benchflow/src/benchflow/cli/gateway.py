"""`bench gateway`: the model gateway on its own."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Literal

from benchflow_contracts import CallBudget, Endpoint, UsageError
from benchflow_gateway import HttpGateway, Limits, Price, read_calls

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
    """Serve one model route on loopback until interrupted; print its address on standard output.

    Each call is written to RECORD/ROLLOUT/NODE.jsonl before the response ends.

    Examples:
        bench gateway serve --upstream http://127.0.0.1:8000/v1 --kind vllm --record calls

    Args:
        upstream: Base URL of the model server.
        record: Directory of the recorded calls.
        kind: Protocol of the model server. `same` is the agent's own protocol.
        model: Model in the requests to the server (default: the model that the agent names).
        port: Port to listen on (default: a free port).
        rollout: Rollout in the address and in the path of the record.
        node: Node in the address and in the path of the record.
        replay: File of recorded calls, which answer the first requests.
        on_divergence: Treatment of a request that differs from the recorded request.
        calls: Maximum number of calls (default: no limit).
        tokens: Tokens after which calls are refused (default: no limit).
        cost_usd: US dollars after which calls are refused (default: no limit); needs --price.
        price: Price as MODEL=INPUT,OUTPUT, in US dollars per million tokens. Repeatable.
        record_mb: Size of the record in MB after which calls are refused (default: no limit).
        api_key_env: Variable on this machine with the server's key.
    """
    _allow_many_connections()
    endpoint = endpoint_at(upstream, api_key_env)
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
        print_url(route.endpoint.url, json=json)
        await wait_for_interrupt()


def _allow_many_connections() -> None:
    # A streamed call needs two descriptors, and the default limit of a process is 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def print_url(url: str, *, json: bool) -> None:
    """Print the address of a server that is ready."""
    if json:
        print_json({"url": url})
    else:
        sys.stdout.write(url + "\n")
    sys.stdout.flush()


async def wait_for_interrupt() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    # A process in the background of a script starts with SIGINT ignored, so set the handlers.
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def endpoint_at(url: str, api_key_env: str) -> Endpoint:
    """Return the endpoint at `url`, with the key in a variable.

    Raises:
        UsageError: It is not an http(s) URL.
    """
    if not url.startswith(("http://", "https://")):
        hint = "for example http://127.0.0.1:8000/v1"
        raise UsageError(f"--upstream {url!r} is not an http(s) URL", hint=hint)
    key = os.environ.get(api_key_env)
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    return Endpoint(url=url, headers=headers)


def _price(text: str) -> tuple[str, Price]:
    model, _, prices = text.rpartition("=")
    try:
        input_price, output_price = (float(part) for part in prices.split(","))
        return model, Price(input=input_price, output=output_price)
    except ValueError as error:
        hint = "for example --price my-model=3,15"
        raise UsageError(f"--price {text!r} is not MODEL=INPUT,OUTPUT", hint=hint) from error


async def show(record: Path, *, json: Json = False) -> None:
    """Show the calls of a record.

    Examples:
        bench gateway show calls/serve/n0.jsonl

    Args:
        record: File of recorded calls.
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
