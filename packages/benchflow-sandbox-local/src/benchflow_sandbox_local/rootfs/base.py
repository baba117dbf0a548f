"""The lower layers that sandboxes with the same image and user share."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.service import MAIN

from benchflow_sandbox_local.launcher import Launcher
from benchflow_sandbox_local.launcher_process.layers.skeleton import IDENTITY

from .source import RootSource


@dataclass(frozen=True, slots=True)
class Base:
    """Built once by the launcher for each image and default user."""

    source: RootSource
    user: str
    """The default user, whom it knows."""
    lowers: tuple[str, ...]
    """Top first."""
    binds: tuple[str, ...]
    uid: int
    gid: int
    environment: Mapping[str, str]
    """Set for every process."""

    @property
    def digests(self) -> Mapping[str, str]:
        """The digest of the image, as `HasImageDigests.image_digests`."""
        digest = self.source.digest
        return {} if digest is None else {MAIN: digest}

    @property
    def key(self) -> str:
        """The key of its source; the first parent of every digest on top of it."""
        return self.source.key


class Bases:
    """Builds each base once, through the launcher."""

    def __init__(self, launcher: Launcher, init: str, identity: Path | None) -> None:
        self._launcher = launcher
        self._init = init
        self._identity = identity
        self._built: dict[tuple[str, str], Base] = {}
        self._building = asyncio.Lock()

    async def of(self, source: RootSource, user: str) -> Base:
        """Return the base of sandboxes that are made from `source`, with `user` as their own."""
        key = (source.key, user)
        async with self._building:
            if key not in self._built:
                self._built[key] = await self._build(source, user)
        return self._built[key]

    async def _build(self, source: RootSource, user: str) -> Base:
        answer = await self._launcher.ask(
            "base",
            name=secrets.token_hex(4),
            images=[str(lower) for lower in source.lowers],
            host=source.path is None or not source.complete,
            user=user,
            init=self._init,
            identity=None if self._identity is None else str(self._identity),
        )
        message = answer.message
        ids = (message["uid"], message["gid"])
        lowers, binds = tuple(message["lowers"]), tuple(message["binds"])
        return Base(source, user, lowers, binds, *ids, self._environment(source))

    def _environment(self, source: RootSource) -> dict[str, str]:
        env = dict(source.config.env)
        if self._identity is not None:
            own = env.get("LD_PRELOAD")
            env["LD_PRELOAD"] = IDENTITY if own is None else f"{IDENTITY}:{own}"
        return env
