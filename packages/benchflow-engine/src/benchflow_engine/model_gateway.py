"""The gateway of one rollout: between its sandboxes and the model endpoint."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from benchflow_contracts import ModelGateway, UpstreamAnswer
from benchflow_contracts.scratch import scratch_directory
from benchflow_store import MODEL_DIR

from .config import RunConfig

_MB: Final = 1024 * 1024


@asynccontextmanager
async def open_gateway(
    config: RunConfig,
    directory: Path | None,
    on_answer: Callable[[UpstreamAnswer], None] | None = None,
) -> AsyncGenerator[ModelGateway | None]:
    """Yield the gateway of a rollout whose files are in `directory`.

    `on_answer` is as `HttpGateway.on_answer`.

    Without a model endpoint, or with `gateway` off, yield None: nothing is recorded, and the
    sandbox's relay connects to the endpoint. Without a directory the record is deleted at the
    end of the rollout.
    """
    if config.model.base_url is None or not config.model.gateway:
        yield None
        return
    # Only a rollout with a model needs the HTTP server, so the import is late.
    from benchflow_gateway import HttpGateway, Limits, SamplingOverride  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        if directory is None:
            record = stack.enter_context(scratch_directory("model"))
        else:
            record = directory / MODEL_DIR
        limits = Limits(record_bytes=config.model.record_mb * _MB)
        model = config.model
        gateway = HttpGateway(record, kind=model.upstream, limits=limits)
        gateway.sampling = SamplingOverride(
            model.sampling, config.seed if model.seed is None else model.seed
        )
        gateway.on_answer = on_answer
        yield await stack.enter_async_context(gateway)
