"""Credentials that end while a job runs, such as the tokens of EKS."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

_SECONDS: Final = 60.0
_clock = time.monotonic
_logger = logging.getLogger(__name__)


class Renewal:
    """Calls `renew` before a call of an SDK, at most once a minute.

    If it fails, the old credentials stay, and the cloud's answer decides.
    """

    def __init__(self, renew: Callable[[Any], Awaitable[object]]) -> None:
        self._renew = renew
        self._renewed_at = _clock()

    async def __call__(self, settings: Any) -> None:  # noqa: ANN401 - of the SDK
        """Renew the credentials in `settings`, if it is time."""
        if _clock() - self._renewed_at < _SECONDS:
            return
        self._renewed_at = _clock()
        try:
            await self._renew(settings)
        except Exception as error:  # noqa: BLE001 - of a program that the user names
            _logger.warning("cannot renew the credentials: %s", error)
