"""Whether an engine can keep what a container writes below a size."""

import asyncio

from benchflow_contracts.errors import SandboxError

from .engine import Engine, GoneError

_SIZE = {"StorageOpt": {"size": "64m"}}
_SNAPSHOTTER = "io.containerd.snapshotter"


class DiskCap:
    """Finds it out once, by making a container with a size.

    The overlay driver can on XFS with project quotas alone, and refuses elsewhere. With the image
    store of containerd the engine takes a size and does nothing about it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asking = asyncio.Lock()
        self._asked = False
        self._why: str | None = None

    async def missing(self, image: str) -> str | None:
        """Return why there is none, `None` when there is one."""
        async with self._asking:
            if not self._asked:
                self._why = await self._try(image)
                self._asked = True
            return self._why

    async def _try(self, image: str) -> str | None:
        arguments = {"Image": image, "Cmd": ["/"], "HostConfig": _SIZE}
        try:
            made = await self._engine.do("create_container_from_config", arguments)
        except GoneError:
            raise
        except SandboxError as error:
            if error.retryable and "storage-opt" not in str(error):
                raise
            return str(error)
        await self._engine.remove(made["Id"])
        known = (await self._engine.do("info"))["DriverStatus"] or ()
        if any(_SNAPSHOTTER in str(value) for _, value in known):
            return "the engine keeps images in containerd, which knows no storage-opt"
        return None
