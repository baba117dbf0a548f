"""Files that a build takes from an image beside it."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import IO, cast

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.shield import finish

from benchflow_sandbox_docker.engine import Engine
from benchflow_sandbox_docker.labels import BUILT, KIND

IN_MEMORY = 16 << 20
"""Bytes of an archive that need no file."""


@asynccontextmanager
async def beside(
    engine: Engine, name: str, pack: Callable[[IO[bytes]], None]
) -> AsyncGenerator[None]:
    """Let the engine have an image of what `pack` writes, during the block.

    Raises:
        SandboxError: The engine refused.
    """
    repository, tag = name.split(":")
    labels = [f"LABEL {KIND}={BUILT}"]
    try:
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as packed:
            await finish(asyncio.to_thread(pack, cast("IO[bytes]", packed)))
            packed.seek(0)
            await engine.do(
                "import_image_from_data", packed, repository=repository, tag=tag, changes=labels
            )
        yield
    finally:
        # One that stays is found by its label.
        with suppress(SandboxError):
            await finish(engine.do("remove_image", name))
