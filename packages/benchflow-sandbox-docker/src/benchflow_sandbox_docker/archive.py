"""Read the files of a container through the engine. The container may be paused."""

import base64
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from benchflow_contracts.errors import SandboxLimitError, TransferError
from requests import Response

from .engine import DockerEngine

_PIECE = 1 << 18
_GO_LINK = 1 << 27
"""The bit of a Go file mode that marks a symbolic link."""
_GO_KINDS = _GO_LINK | 1 << 31 | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""The mode bits of everything but a regular file: directory, device, pipe, socket, link."""
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_MAX_ACCOUNTS = 16 << 20


class ContainerArchive:
    """Reads the files of one container.

    A failure of the engine is not reported as a missing file. It raises `SandboxError`, as
    `DockerEngine.do` does.
    """

    def __init__(self, engine: DockerEngine, container: str) -> None:
        self._engine = engine
        self._api = api = engine.api
        self._url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"

    def is_link(self, path: str) -> bool:
        """Return whether `path` is a symbolic link. Raise `TransferError` if it does not exist."""
        answer = self._ask(path)
        _expect(answer, path)
        return bool(_stat(answer)["mode"] & _GO_LINK)

    def require_accounts(self) -> None:
        """Require that the engine can read the account files of a snapshot.

        The engine opens them for each container that it starts. If one is a pipe, the engine
        waits forever. It then does not answer about that container and does not remove images.

        Raises:
            SandboxLimitError: A file is not a regular file, or it is too large.
        """
        for path in _ACCOUNTS:
            answer = self._ask(path)
            if answer.status_code == 200 and _stat(answer)["mode"] & _GO_LINK:
                answer = self._ask(_stat(answer)["linkTarget"])
            if answer.status_code == 404:
                continue
            _expect(answer, path)
            stat = _stat(answer)
            if stat["mode"] & _GO_KINDS or stat["size"] > _MAX_ACCOUNTS:
                raise SandboxLimitError(
                    f"a snapshot could not start: {path!r} is not a regular file of at most "
                    f"{_MAX_ACCOUNTS >> 20} MB"
                )

    def _ask(self, path: str) -> Response:
        with self._engine.typed("archive"):
            return self._api.head(self._url, params={"path": path}, timeout=self._api.timeout)

    @contextmanager
    def tar(self, path: str) -> Generator[Iterator[bytes]]:
        """Yield a tar of `path` in pieces. A link at `path` itself is not followed."""
        timeout = self._api.timeout
        with (
            self._engine.typed("archive"),
            self._api.get(self._url, params={"path": path}, timeout=timeout, stream=True) as answer,
        ):
            _expect(answer, path)
            yield answer.iter_content(_PIECE)


def _stat(answer: Response) -> dict[str, Any]:
    header = base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"])
    return cast("dict[str, Any]", json.loads(header))


def _expect(answer: Response, path: str) -> None:
    if answer.status_code == 404:
        raise TransferError(f"{path!r} does not exist")
    if answer.status_code != 200:
        raise TransferError(f"the engine cannot read {path!r}: HTTP status {answer.status_code}")
