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
    """The lower layers of one image and default user, which the launcher builds once."""

    source: RootSource
    user: str
    """The default user, who exists in the layers."""
    lowers: tuple[str, ...]
    """Top first."""
    binds: tuple[str, ...]
    uid: int
    gid: int
    environment: Mapping[str, str]
    """Variables for every process."""

    @property
    def digests(self) -> Mapping[str, str]:
        """The digest of the image, in the form of `HasImageDigests.image_digests`."""
        digest = self.source.digest
        return {} if digest is None else {MAIN: digest}

    @property
    def key(self) -> str:
        """The key of the source. Digests of layers on this base are chained to it."""
        return self.source.key


class Bases:
    """Builds each base once, through the launcher."""

    def __init__(self, launcher: Launcher, init: str, identity: Path | None) -> None:
        self._launcher = launcher
        self._init = init
        self._identity = identity
        self._bases: dict[tuple[str, str], Base] = {}
        self._build_lock = asyncio.Lock()

    async def of(self, source: RootSource, user: str) -> Base:
        """Return the base of `source` with the default user `user`."""
        key = (source.key, user)
        async with self._build_lock:
            if key not in self._bases:
                self._bases[key] = await self._build(source, user)
        return self._bases[key]

    async def _build(self, source: RootSource, user: str) -> Base:
        answer = await self._launcher.ask(
            "build_base",
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
            others = env.get("LD_PRELOAD")
            env["LD_PRELOAD"] = IDENTITY if others is None else f"{IDENTITY}:{others}"
        return env
