"""The files that a Dockerfile itself holds, as an image beside."""

import io
import tarfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.shield import finish

from benchflow_sandbox_docker.engine import Engine
from benchflow_sandbox_docker.labels import BUILT, KIND


@asynccontextmanager
async def documents(engine: Engine, name: str, files: Mapping[str, str]) -> AsyncGenerator[None]:
    """Let the engine have an image of these files, if there are any, during the block.

    Raises:
        SandboxError: The engine refused.
    """
    if not files:
        yield
        return
    repository, tag = name.split(":")
    labels = [f"LABEL {KIND}={BUILT}"]
    packed = _pack(files)
    try:
        await engine.do(
            "import_image_from_data", packed, repository=repository, tag=tag, changes=labels
        )
        yield
    finally:
        # One that stays is found by its label.
        with suppress(SandboxError):
            await finish(engine.do("remove_image", name))


def _pack(files: Mapping[str, str]) -> bytes:
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, text in files.items():
                data = text.encode()
                member = tarfile.TarInfo(path.lstrip("/"))
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return packed.getvalue()
