"""Images of the Docker engine of this host, through its API."""

import asyncio
import http.client
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.thread import StopFlag, run

from .layout import saved_key, take_in
from .store import ImageStore

_SOCKET = "unix:///var/run/docker.sock"
_SECONDS = 30
_CHUNK = 1 << 20


class EngineImages:
    """Copies images from an engine, each once."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self.absence = "no Docker engine answers here"
        """Why the last image was not found."""
        self._taken: dict[str, Path] = {}

    async def find(self, image: str) -> Path | None:
        """Return the record of an engine's image; `None` when there is none.

        Raises:
            SandboxError: The engine failed, or the image is malformed.
        """
        try:
            details = await asyncio.to_thread(_inspect, image)
        except (OSError, http.client.HTTPException):
            self.absence = "no Docker engine answers here"
            return None
        if details is None:
            self.absence = "the Docker engine does not have it"
            return None
        name = str(details["Id"])
        if name not in self._taken or not self._taken[name].is_file():
            self._taken[name] = await self._take(name, details)
        return self._taken[name]

    async def _take(self, name: str, details: dict[str, Any]) -> Path:
        known = self._known(details)
        if known.is_file():
            return known
        self._store.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._store.directory, prefix=".engine-") as place:
            archive = Path(place, "image.tar")
            try:
                await run(lambda stop: _export(name, archive, stop))
            except (OSError, http.client.HTTPException) as error:
                raise SandboxError(
                    f"the Docker engine did not export {name!r}: {error}", retryable=True
                ) from error
            record = await take_in(archive, self._store, None)
        if record is None:
            raise SandboxError(f"the Docker engine exported no image {name!r}")
        return record

    def _known(self, details: dict[str, Any]) -> Path:
        """Return the path of the image's record. It exists if the image was copied before."""
        root = cast("dict[str, Any]", details.get("RootFS") or {})
        layers = cast("list[str]", root.get("Layers") or [])
        return self._store.record(saved_key(layers, details.get("Config") or {}))


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connect() -> _Connection:
    named = os.environ.get("DOCKER_HOST") or _SOCKET
    if not named.startswith("unix://"):
        raise OSError(f"$DOCKER_HOST is {named!r}, not a Unix socket")
    return _Connection(named.removeprefix("unix://"))


def _inspect(image: str) -> dict[str, Any] | None:
    connection = _connect()
    try:
        connection.request("GET", f"/images/{quote(image)}/json")
        response = connection.getresponse()
        body = response.read(_CHUNK)
    finally:
        connection.close()
    return (
        cast("dict[str, Any]", json.loads(body)) if response.status == http.HTTPStatus.OK else None
    )


def _export(name: str, to: Path, stop: StopFlag) -> None:
    connection = _connect()
    try:
        connection.request("GET", f"/images/{quote(name)}/get")
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"status {response.status}")
        with to.open("xb") as file:
            while chunk := response.read(_CHUNK):
                stop.check()
                file.write(chunk)
    finally:
        connection.close()
