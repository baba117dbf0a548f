"""Run one build, and end it before the host runs out of resources."""

import asyncio
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import requests
from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.image import ImageRecipe
from benchflow_sandbox_core.recipe.context import BuildContext
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile
from benchflow_sandbox_core.shield import finish
from docker import APIClient
from docker.errors import DockerException
from docker.types import CancellableStream
from docker.utils.json_stream import json_stream

from .output import BuildOutput
from .packing import IN_MEMORY, pack_entries

_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Headroom:
    """Limits the processes and memory that a build takes from the host.

    BuildKit and the engine do not have an option for this. So a build is ended while the engine
    still has enough resources to end the build.
    """

    processes: int
    memory: int

    @classmethod
    def now(cls) -> "Headroom":
        """Return the required minimum: a share of the total, or half of the free amount."""
        free, memory = _processes(), _memory()
        return cls(
            min(int(_limit() * _PROCESSES), free // 2),
            min(int(memory["MemTotal"] * _MEMORY), memory["MemAvailable"] // 2),
        )

    @property
    def shortage(self) -> str | None:
        """The resource that the host lacks, or None. An unreadable host also counts as short."""
        try:
            processes, memory = _processes(), _memory()["MemAvailable"]
        except OSError as error:
            return f"the free resources of the host cannot be read: {error.strerror}"
        if processes < self.processes:
            return f"the host can start only {max(processes, 0)} more processes"
        if memory < self.memory:
            return f"the host has only {memory >> 10} MiB of memory left"
        return None


def _limit() -> int:
    """Return the host's maximum of processes and threads."""
    names = ("pid_max", "threads-max")
    return min(int((_PROC / "sys/kernel" / name).read_text()) for name in names)


def _processes() -> int:
    """Return the number of further processes that the host can start."""
    return _limit() - int((_PROC / "loadavg").read_text().split()[3].partition("/")[2])


def _memory() -> dict[str, int]:
    """Return the values of `/proc/meminfo` in KiB by name."""
    lines = (line.split() for line in (_PROC / "meminfo").read_text().splitlines()[:5])
    return {name.rstrip(":"): int(value) for name, value, *_ in lines}


class Build:
    """Builds an image with the engine's BuildKit, in a thread that another thread can end."""

    def __init__(
        self, api: APIClient, recipe: ImageRecipe, context: BuildContext, text: str
    ) -> None:
        """Use `text` instead of the context's Dockerfile."""
        self._api = api
        self._recipe = recipe
        self._context = context
        self._text = text
        self._stream: CancellableStream[Any] | None = None
        self._killed = False

    async def run(self, tag: str, options: Mapping[str, str]) -> None:
        """Build the image. The engine has it under `tag` on return.

        Cancellation and the recipe's timeout end the engine's work. So does a host that runs out
        of processes or memory.

        Raises:
            SandboxTimeoutError: The build took too long.
            SandboxError: The build failed or was ended. The error names the instruction and
                shows the end of its output.
        """
        name = self._recipe.dockerfile
        output = BuildOutput(name, Dockerfile.parse(self._text.encode(), name), tag)
        limit = self._recipe.timeout_sec
        headroom = Headroom.now()
        running = asyncio.get_running_loop().create_task(
            asyncio.to_thread(self._build, output, {"t": tag, **options})
        )
        try:
            async with asyncio.timeout(limit):
                await self._watch(running, output, headroom)
        except TimeoutError as error:
            await finish(self._end(running))
            raise SandboxTimeoutError(
                f"the image was not built in {limit:g} s{output.shown}", where=output.where
            ) from error
        except asyncio.CancelledError:
            await finish(self._end(running))
            raise

    async def _watch(
        self, running: "asyncio.Task[None]", output: BuildOutput, headroom: Headroom
    ) -> None:
        while not (await asyncio.wait([running], timeout=_LOOK))[0]:
            if (shortage := headroom.shortage) is not None:
                await finish(self._end(running))
                raise SandboxError(
                    f"the build was ended: {shortage}{output.shown}",
                    where=output.where,
                    hint="let the instruction use less, or run fewer builds and rollouts at once",
                )
        await running

    async def _end(self, running: "asyncio.Task[None]") -> None:
        self._killed = True
        if self._stream is not None:
            # The engine ends a build when its caller disconnects.
            with suppress(OSError):
                self._stream.close()
        with suppress(SandboxError):
            await running

    def _build(self, output: BuildOutput, options: Mapping[str, str]) -> None:
        try:
            with tempfile.SpooledTemporaryFile(IN_MEMORY) as packed:
                self._pack(cast("IO[bytes]", packed))
                packed.seek(0)
                self._post(cast("IO[bytes]", packed), output, options)
        except (DockerException, requests.RequestException) as error:
            raise SandboxError(
                f"the engine cannot be reached: {error}", hint="is dockerd running?", retryable=True
            ) from error

    def _post(self, packed: IO[bytes], output: BuildOutput, options: Mapping[str, str]) -> None:
        # The `build` of the SDK cannot be ended.
        response = self._api.post(
            f"{self._api.base_url}/v{self._api.api_version}/build",
            params={"dockerfile": self._recipe.dockerfile, "version": "2", **options},
            data=packed,
            headers={"Content-Type": "application/x-tar"},
            stream=True,
            timeout=(60, self._recipe.timeout_sec),
        )
        with response:
            if response.status_code != requests.codes.ok:
                raise output.failed(_message(response))
            events = json_stream(response.iter_content(None))
            self._stream = CancellableStream(events, response)
            if self._killed:
                return
            for event in cast("Iterable[Mapping[str, Any]]", self._stream):
                output.take(event)

    def _pack(self, packed: IO[bytes]) -> None:
        # BuildKit mistakes an archive that begins with a PAX record for a Dockerfile. Long names
        # need such records, so the Dockerfile itself comes first.
        first = (os.path.normpath(self._recipe.dockerfile), self._text)
        pack_entries(packed, self._context.entries, first=first, ended=lambda: self._killed)


def _message(response: requests.Response) -> str:
    with suppress(ValueError, TypeError, KeyError):
        return str(response.json()["message"])
    return f"{response.status_code} {response.reason}"


_PROC = Path("/proc")
_PROCESSES, _MEMORY = 1 / 2, 1 / 16
"""Shares of the host's totals."""
