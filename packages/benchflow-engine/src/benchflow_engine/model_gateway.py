"""The gateway of one rollout: between its sandboxes and the model endpoint."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchflow_contracts import CallBudget, ModelGateway, UpstreamAnswer
from benchflow_contracts.gateway import EndpointProbe, UpstreamProtocol
from benchflow_contracts.scratch import scratch_directory
from benchflow_gateway.prices import Price
from benchflow_kernel.config import AccessConfig
from benchflow_kernel.resolve import JudgePlane
from benchflow_store import JUDGE_DIR, MODEL_DIR

from .config import RunConfig
from .upstream_probe import settle_model

if TYPE_CHECKING:
    from benchflow_gateway import PublicAddress

_MB: Final = 1024 * 1024


@asynccontextmanager
async def open_gateways(
    config: RunConfig,
    directory: Path | None,
    on_answer: Callable[[UpstreamAnswer], None] | None = None,
    secret: str | None = None,
) -> AsyncGenerator[tuple[ModelGateway | None, JudgePlane | None, EndpointProbe | None]]:
    """Yield the gateway of the agents, the judge's model, and the probe of the agents' endpoint.

    See `open_gateway`, `open_judge` and `settle_model`. `secret` is a part of each token for
    sandboxes that reach the gateway from outside.
    """
    kind, probe = await settle_model(config)
    async with (
        open_gateway(config, directory, on_answer, kind=kind, secret=secret) as gateway,
        open_judge(config, directory) as judge,
    ):
        yield gateway, judge, probe


@asynccontextmanager
async def open_gateway(
    config: RunConfig,
    directory: Path | None,
    on_answer: Callable[[UpstreamAnswer], None] | None = None,
    *,
    kind: UpstreamProtocol = "same",
    secret: str | None = None,
) -> AsyncGenerator[ModelGateway | None]:
    """Yield the gateway of a rollout whose files are in `directory`.

    `on_answer` is as `HttpGateway.on_answer`, and `kind` is the protocol of the endpoint.

    Without a model endpoint, or with `gateway` off, yield None: nothing is recorded, and the
    sandbox's relay connects to the endpoint. Without a directory the record is deleted at the
    end of the rollout.
    """
    if config.model.base_url is None or not config.model.gateway:
        yield None
        return
    # Only a rollout with a model needs the HTTP server, so the import is late.
    from benchflow_gateway import (  # noqa: PLC0415
        HttpGateway,
        Limits,
        Publisher,
        SamplingOverride,
    )

    async with AsyncExitStack() as stack:
        if directory is None:
            record = stack.enter_context(scratch_directory("model"))
        else:
            record = directory / MODEL_DIR
        limits = Limits(record_bytes=config.model.record_mb * _MB)
        model = config.model
        prices = {} if model.usd_per_mtok is None else {"": _price(model.usd_per_mtok)}
        gateway = HttpGateway(record, kind=kind, limits=limits, prices=prices)
        gateway.sampling = SamplingOverride(
            model.sampling, config.seed if model.seed is None else model.seed
        )
        gateway.on_answer = on_answer
        if model.access.mode != "tunnel":
            gateway.publisher = Publisher(public_address(model.access), secret)
        yield await stack.enter_async_context(gateway)


@asynccontextmanager
async def open_judge(
    config: RunConfig, directory: Path | None
) -> AsyncGenerator[JudgePlane | None]:
    """Yield the judge's model of a rollout whose files are in `directory`; None without a judge.

    Without a directory the record is deleted at the end of the rollout.
    """
    judge = config.judge
    upstream = judge.endpoint()
    if upstream is None or judge.model is None:
        yield None
        return
    from benchflow_gateway import HttpGateway, Limits  # noqa: PLC0415 - as above

    prices = {} if judge.usd_per_mtok is None else {judge.model: _price(judge.usd_per_mtok)}
    async with AsyncExitStack() as stack:
        if directory is None:
            record = stack.enter_context(scratch_directory("judge"))
        else:
            record = directory / JUDGE_DIR
        gateway = HttpGateway(
            record,
            kind=judge.upstream,
            model=judge.model,
            prices=prices,
            limits=Limits(record_bytes=judge.record_mb * _MB),
        )
        yield JudgePlane(
            await stack.enter_async_context(gateway),
            upstream,
            judge.model,
            None if judge.max_calls is None else CallBudget(calls=judge.max_calls),
        )


def public_address(access: AccessConfig) -> "PublicAddress":
    """Return the address of the gateways of this process for sandboxes outside."""
    from benchflow_gateway import PublicAddress  # noqa: PLC0415 - as above

    host, _, port = access.bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return PublicAddress(host, int(port), access.tls_cert, access.tls_key, access.gateway_url)


def check_public_address(access: AccessConfig) -> None:
    """Check the address and the TLS files of the gateway, if sandboxes reach it from outside.

    Raises:
        UsageError: The address would send tokens without encryption, or a file cannot be used.
    """
    if access.mode != "tunnel" and access.gateway_url is not None:
        address = public_address(access)
        address.check()
        address.tls()


def _price(usd_per_mtok: tuple[float, float]) -> Price:
    return Price(input=usd_per_mtok[0], output=usd_per_mtok[1])
