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

from .layout import saved_key, unpack_image
from .store import ImageStore

_SOCKET = "unix:///var/run/docker.sock"
_SECONDS = 30
_CHUNK = 1 << 20


class EngineImages:
    """Copies images from an engine, each once."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self.absence = "no Docker engine responds here"
        """The reason why the last image was not found."""
        self._records: dict[str, Path] = {}

    async def find(self, image: str) -> Path | None:
        """Copy an engine's image into the store; return its record, or `None` if it is missing.

        Raises:
            SandboxError: The engine failed, or the image is malformed.
        """
        try:
            details = await asyncio.to_thread(_inspect, image)
        except (OSError, http.client.HTTPException):
            self.absence = "no Docker engine responds here"
            return None
        if details is None:
            self.absence = "the Docker engine does not have it"
            return None
        name = str(details["Id"])
        if name not in self._records or not self._records[name].is_file():
            self._records[name] = await self._copy(name, details)
        return self._records[name]

    async def _copy(self, name: str, details: dict[str, Any]) -> Path:
        path = self._record_path(details)
        if path.is_file():
            return path
        self._store.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._store.directory, prefix=".engine-") as place:
            archive = Path(place, "image.tar")
            try:
                await run(lambda stop: _export(name, archive, stop))
            except (OSError, http.client.HTTPException) as error:
                raise SandboxError(
                    f"the Docker engine did not export {name!r}: {error}", retryable=True
                ) from error
            record = await unpack_image(archive, self._store, None)
        if record is None:
            raise SandboxError(f"the Docker engine's export of {name!r} does not contain an image")
        return record

    def _record_path(self, details: dict[str, Any]) -> Path:
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
    address = os.environ.get("DOCKER_HOST") or _SOCKET
    if not address.startswith("unix://"):
        raise OSError(f"$DOCKER_HOST is {address!r}, not a Unix socket")
    return _Connection(address.removeprefix("unix://"))


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
