"""The rollout service, without a wire: every front end submits to it and reads from it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .policies import Policies
from .settings import ServeSettings


class RolloutService:
    """Runs rollouts for clients, in the event loop that opens it."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.policies = Policies()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open what the rollouts share. At the end of the block, each rollout has ended."""
        yield
