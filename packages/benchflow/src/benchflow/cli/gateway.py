"""`bench gateway`: the model gateway on its own."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

from benchflow_contracts import CallBudget, Endpoint, Model, UsageError
from benchflow_contracts.gateway import MAX_TOKEN_SEC
from benchflow_gateway import HttpGateway, Limits, Price, PublicAddress, Publisher, read_calls
from cyclopts import Parameter
from pydantic import Field

from .flags import Json
from .output import print_json, print_table

_DESCRIPTORS = 65536
_MB = 1024 * 1024


class LimitFlags(Model):
    """The budget of a route, and the size of its record."""

    calls: int | None = Field(default=None, ge=0)
    """Maximum number of calls (default: no limit)."""
    tokens: int | None = Field(default=None, ge=0)
    """Tokens after which calls are refused (default: no limit)."""
    cost_usd: float | None = Field(default=None, ge=0)
    """US dollars after which calls are refused (default: no limit); needs --price."""
    price: tuple[str, ...] = ()
    """Price as MODEL=INPUT,OUTPUT, in US dollars per million tokens. Repeatable."""
    record_mb: int | None = None
    """Size of the record in MB after which calls are refused (default: no limit)."""


Limited = Annotated[LimitFlags, Parameter(name="*")]
"""Every field of LimitFlags as a flag of its own."""


class PublicFlags(Model):
    """How other machines reach the gateway."""

    bind: str = "127.0.0.1"
    """Address of this machine to listen on. All but the loopback need TLS and --token."""
    token: bool = False
    """A token for the route, which each request has as its key."""
    token_sec: float = Field(default=3600, gt=0, le=MAX_TOKEN_SEC)
    """Seconds until the token ends; at most a day."""
    tls_cert: Path | None = None
    """PEM file with the certificate of the gateway and its chain."""
    tls_key: Path | None = None
    """PEM file with the key of the certificate."""
    gateway_url: str | None = None
    """URL by which others reach the gateway (default: the address of --bind)."""

    def address(self, port: int) -> PublicAddress | None:
        """Return the address for other machines, or None without a token.

        Raises:
            UsageError: The flags would serve without a token or without encryption.
        """
        if not self.token:
            if self.model_fields_set:
                raise UsageError(
                    "the gateway listens for other machines with a token only", hint="add --token"
                )
            return None
        found = PublicAddress(self.bind, port, self.tls_cert, self.tls_key, self.gateway_url)
        found.check()
        return found


Public = Annotated[PublicFlags, Parameter(name="*")]
"""Every field of PublicFlags as a flag of its own."""


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
    limit: Limited = LimitFlags(),
    api_key_env: str = "BENCHFLOW_API_KEY",
    public: Public = PublicFlags(),
    json: Json = False,
) -> None:
    """Serve one model route until interrupted; print its address on standard output.

    Each call is written to RECORD/ROLLOUT/NODE.jsonl before the response ends. Other machines reach
    the route with --bind, TLS and --token; the second line of the output is then the token.

    Examples:
        bench gateway serve --upstream http://127.0.0.1:8000/v1 --kind vllm --record calls
        bench gateway serve --upstream http://127.0.0.1:8000/v1 --record calls --token --calls 500

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
        api_key_env: Variable on this machine with the server's key.
    """
    _allow_many_connections()
    endpoint = endpoint_at(upstream, api_key_env)
    recorded = read_calls(replay) if replay is not None else ()
    budget = CallBudget(calls=limit.calls, tokens=limit.tokens, cost_usd=limit.cost_usd)
    limits = Limits(record_bytes=None if limit.record_mb is None else limit.record_mb * _MB)
    address = public.address(port)
    async with HttpGateway(
        record,
        kind=kind,
        model=model,
        port=port if address is None else 0,
        prices=dict(_price(text) for text in limit.price),
        diverged_go_live=on_divergence == "live",
        limits=limits,
    ) as gateway:
        gateway.publisher = None if address is None else Publisher(address)
        route = await gateway.open(rollout, node, upstream=endpoint, replay=recorded, budget=budget)
        if address is not None:
            _print_access(await route.publish(seconds=public.token_sec), json=json)
        else:
            print_url(route.endpoint.url, json=json)
        await wait_for_interrupt()


def _print_access(endpoint: Endpoint, *, json: bool) -> None:
    """Print the URL and the token of a public route."""
    token = endpoint.bearer or ""
    if json:
        print_json({"url": endpoint.url, "token": token, "expires_at": endpoint.expires_at})
    else:
        sys.stdout.write(f"{endpoint.url}\n{token}\n")
    sys.stdout.flush()


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
