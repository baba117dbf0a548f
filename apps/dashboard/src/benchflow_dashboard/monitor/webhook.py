"""Send alerts to a webhook: signed, and again until the receiver takes them."""

import hashlib
import hmac
import os
import time
from collections.abc import Callable
from typing import Final

import httpx

from .config import WebhookTable
from .database import MonitorDatabase
from .work_thread import WorkThread

SIGNATURE_HEADER: Final = "X-BenchFlow-Signature"
_FIRST_WAIT: Final = 2.0
_LONGEST_WAIT: Final = 3600.0


def sign(key: str, timestamp: int, body: str) -> str:
    """Return the value of the signature header: `t=SECONDS,v1=HMAC-SHA256 of "SECONDS.BODY"`.

    A receiver computes the same value, and refuses an old timestamp.
    """
    mac = hmac.new(key.encode(), f"{timestamp}.{body}".encode(), hashlib.sha256)
    return f"t={timestamp},v1={mac.hexdigest()}"


class WebhookSender:
    """Sends what `AlertManager` queued. A delivery survives a restart of the server.

    A server that is killed after the receiver took a delivery, and before that is noted, sends it
    again. Its body has the same `id` and `event`.
    """

    def __init__(
        self,
        database: MonitorDatabase,
        table: WebhookTable,
        clock: Callable[[], float] = time.time,
        thread: WorkThread | None = None,
    ) -> None:
        self._thread = thread or WorkThread()
        self._database = database
        self._table = table
        self._clock = clock
        self._key = os.environ.get(table.key_env, "")

    async def send_due(self) -> int:
        """Send each delivery that is due, once. Return the number that the receiver took."""
        sql = "SELECT alert, event, body, tries FROM monitor_deliveries WHERE next_try <= ?"
        due = await self._thread.run(
            self._database.query, f"{sql} ORDER BY next_try LIMIT 100", (self._clock(),)
        )
        taken = 0
        async with httpx.AsyncClient(timeout=10.0, follow_redirects=False) as client:
            for alert, event, body, tries in due:
                error = await self._post(client, body)
                await self._thread.run(self._note, alert, event, tries + 1, error)
                taken += error is None
        return taken

    async def _post(self, client: httpx.AsyncClient, body: str) -> str | None:
        headers = {"content-type": "application/json"}
        if self._key:
            headers[SIGNATURE_HEADER] = sign(self._key, int(self._clock()), body)
        try:
            response = await client.post(self._table.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"[:500]
        return None if response.is_success else f"status {response.status_code}"

    def _note(self, alert: str, event: str, tries: int, error: str | None) -> None:
        done = error is None or tries >= self._table.max_tries
        with self._database.transaction() as database:
            if done:
                sql = "DELETE FROM monitor_deliveries WHERE alert = ? AND event = ?"
                database.query(sql, (alert, event))
                return
            wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (tries - 1))
            sql = "UPDATE monitor_deliveries SET tries = ?, next_try = ?, error = ?"
            values = (tries, self._clock() + wait, error, alert, event)
            database.query(f"{sql} WHERE alert = ? AND event = ?", values)
