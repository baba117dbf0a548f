"""What an engine tells of the files of a container. It works on one that stands still."""

import base64
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from benchflow_contracts.errors import SandboxLimitError, TransferError
from requests import Response

from benchflow_sandbox_docker.engine import DockerEngine

_PIECE = 1 << 18
_GO_LINK = 1 << 27
"""The bit by which the engine, which is written in Go, marks a link."""
_GO_KINDS = _GO_LINK | 1 << 31 | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""The bits of all that is not a regular file: a directory, a device, a pipe, a socket."""
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_MAX_ACCOUNTS = 16 << 20


class ContainerArchive:
    """The files of one container.

    An engine that fails is no missing file: it is a plain `SandboxError`, as of `Engine.do`.
    """

    def __init__(self, engine: DockerEngine, container: str) -> None:
        self._engine = engine
        self._api = api = engine.api
        self._url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"

    def is_link(self, path: str) -> bool:
        """Whether a link lies at `path`; raise `TransferError` when nothing does."""
        answer = self._ask(path)
        _expect(answer, path)
        return bool(_told(answer)["mode"] & _GO_LINK)

    def require_accounts(self) -> None:
        """Require that the engine can read the accounts of a copy.

        The engine opens them for each container that it starts, and waits at a pipe without end:
        it then answers nobody about that container, and removes no image any more.

        Raises:
            SandboxLimitError: One is not a regular file, or it is too large.
        """
        for path in _ACCOUNTS:
            answer = self._ask(path)
            if answer.status_code == 200 and _told(answer)["mode"] & _GO_LINK:
                answer = self._ask(_told(answer)["linkTarget"])
            if answer.status_code == 404:
                continue
            _expect(answer, path)
            told = _told(answer)
            if told["mode"] & _GO_KINDS or told["size"] > _MAX_ACCOUNTS:
                raise SandboxLimitError(
                    f"no snapshot can be started: {path!r} is not a regular file of at most "
                    f"{_MAX_ACCOUNTS >> 20} MB"
                )

    def _ask(self, path: str) -> Response:
        with self._engine.typed("archive"):
            return self._api.head(self._url, params={"path": path}, timeout=self._api.timeout)

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


def _told(answer: Response) -> dict[str, Any]:
    header = base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"])
    return cast("dict[str, Any]", json.loads(header))


def _expect(answer: Response, path: str) -> None:
    if answer.status_code == 404:
        raise TransferError(f"there is no {path!r}")
    if answer.status_code != 200:
        raise TransferError(f"the engine does not read {path!r}: status {answer.status_code}")
