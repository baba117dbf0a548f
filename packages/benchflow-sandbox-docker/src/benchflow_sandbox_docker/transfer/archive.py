"""What an engine tells of the files of a container. It works on one that stands still."""

import base64
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from benchflow_contracts.errors import TransferError
from requests import Response

from benchflow_sandbox_docker.engine import Engine

_PIECE = 1 << 18
_GO_LINK = 1 << 27
"""The bit by which the engine, which is written in Go, marks a link."""


class Archive:
    """The files of one container.

    An engine that fails is no missing file: it is a plain `SandboxError`, as of `Engine.do`.
    """

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._api = api = engine.api
        self._url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"

    def is_link(self, path: str) -> bool:
        """Whether a link lies at `path`; raise `TransferError` when nothing does."""
        with self._engine.typed("archive"):
            answer = self._api.head(self._url, params={"path": path}, timeout=self._api.timeout)
        _expect(answer, path)
        seen = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
        return bool(seen["mode"] & _GO_LINK)

    @contextmanager
    def tar(self, path: str) -> Generator[Iterator[bytes]]:
        """Yield the pieces of a tar of what is at `path`, whose last part is not followed."""
        timeout = self._api.timeout
        with (
            self._engine.typed("archive"),
            self._api.get(self._url, params={"path": path}, timeout=timeout, stream=True) as answer,
        ):
            _expect(answer, path)
            yield answer.iter_content(_PIECE)


def _expect(answer: Response, path: str) -> None:
    if answer.status_code == 404:
        raise TransferError(f"there is no {path!r}")
    if answer.status_code != 200:
        raise TransferError(f"the engine does not read {path!r}: status {answer.status_code}")
