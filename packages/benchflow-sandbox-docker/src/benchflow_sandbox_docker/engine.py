"""Calls to the engine over its API. No call starts a program."""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar, cast

import requests
from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
)
from benchflow_sandbox_core.shield import finish
from docker import APIClient
from docker.errors import (
    APIError,
    DockerException,
    ImageNotFound,
    NotFound,
    create_api_error_from_http_exception,
)

T = TypeVar("T")

_THREADS = 8
_LONG_THREADS = 4
"""Threads for calls that may take minutes, so that other calls never wait for them."""
_TRIES = 10
"""Attempts to remove a container. The engine does not report when a removal can succeed."""

BYTES_A_SECOND = 8 << 20
"""The minimum speed of a copy by a busy engine."""

FULL = "no space left on device"
"""The kernel's message for a full disk, which the engine reports."""
BRIDGE = "bridge"
"""The engine's network with a route to the public."""
NOTHING = "none"
"""The engine's network without a route."""


class GoneError(SandboxError):
    """The engine does not have a resource with this name."""


class DockerEngine:
    """Calls one engine, each call in a thread. Cancellation waits for the end of a running call."""

    def __init__(self, api: APIClient, base: str) -> None:
        self._api = api
        self._base = base
        self._threads = ThreadPoolExecutor(_THREADS, "docker")
        self._long_threads = ThreadPoolExecutor(_LONG_THREADS, "docker-long")
        self._rootless: bool | None = None

    @classmethod
    async def connect(cls, socket: str, seconds: int) -> "DockerEngine":
        """Return the engine at a Unix socket. A call times out after `seconds`.

        Raises:
            SandboxUnsupportedError: No engine answers, or the engine is not supported.
            SandboxError: The engine failed.
        """
        try:
            # The SDK does not close the socket if the connection fails.
            _, writer = await asyncio.open_unix_connection(socket)
            writer.close()
        except OSError as error:
            raise SandboxUnsupportedError(
                f"no Docker engine answers at {socket!r}: {error}",
                hint="start dockerd, and add this user to the group of its socket",
            ) from error
        base = f"unix://{socket}"
        oldest = cls(_client(base, OLDEST, seconds), base)
        try:
            version = choose_api_version(await oldest.do("version", api_version=False))
        finally:
            oldest.close()
        return cls(_client(base, version, seconds), base)

    @property
    def api(self) -> APIClient:
        """The SDK's low-level client, for calls in the caller's thread."""
        return self._api

    def close(self) -> None:
        """Close the connection to the engine. Idempotent."""
        self._threads.shutdown(wait=False)
        self._long_threads.shutdown(wait=False)
        self._api.close()

    async def do(self, method: str, *args: object, **options: object) -> Any:  # noqa: ANN401 - the engine's JSON
        """Call a method of the SDK's low-level client.

        Raises:
            GoneError: The container, image or path does not exist.
            SandboxError: The engine refused or cannot be reached.
        """
        return await self.run(lambda api: getattr(api, method)(*args, **options), method)

    async def run(self, work: Callable[[APIClient], T], label: str) -> T:
        """Run several calls of the client in one thread. Raise as `do` does."""

        async def wait() -> T:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, self._api)

        with self.typed(label):
            return await finish(wait())

    async def do_long(self, method: str, seconds: int, *args: object, **options: object) -> Any:  # noqa: ANN401 - the engine's JSON
        """Call a method as `do` does, with a time limit and a separate connection.

        The connection is closed when the time is over. Some engines then stop the work.
        """

        def work() -> object:
            with closing(_client(self._base, self._api.api_version, seconds)) as api:
                return getattr(api, method)(*args, **options)

        async def wait() -> object:
            return await asyncio.get_running_loop().run_in_executor(self._long_threads, work)

        with self.typed(method, seconds):
            return await finish(wait())

    async def sized(self, container: str) -> Mapping[str, Any]:
        """Inspect a container, with the size of the files that the container wrote."""

        def ask(api: APIClient) -> Mapping[str, Any]:
            url = f"{api.base_url}/v{api.api_version}/containers/{container}/json"
            answer = api.get(url, params={"size": "1"}, timeout=api.timeout)
            _raise_for_status(answer)
            return cast("Mapping[str, Any]", answer.json())

        return await self.run(ask, "inspect_container")

    @contextmanager
    def saved_image(self, name: str, size: int = 0) -> Generator[requests.Response]:
        """Yield the response with the tar of an image of `size` bytes.

        The engine may write the whole image to its own disk before it sends the first byte.
        """
        api, seconds = self._api, self._api.timeout + size // BYTES_A_SECOND
        url = f"{api.base_url}/v{api.api_version}/images/{name}/get"
        with (
            self.typed("get_image", seconds),
            api.get(url, stream=True, timeout=seconds) as answer,
        ):
            _raise_for_status(answer)
            yield answer

    @contextmanager
    def typed(self, label: str, seconds: int | None = None) -> Generator[None]:
        """Convert errors of the block as `do` does. `seconds` is the time limit of the call."""
        try:
            yield
        except (ImageNotFound, NotFound) as error:
            raise GoneError(f"docker {label}: {error.explanation}") from error
        except APIError as error:
            if FULL in str(error.explanation):
                raise HostError(
                    f"docker {label}: {error.explanation}",
                    hint="free space on the engine's disk",
                ) from error
            retryable = error.is_server_error()
            raise SandboxError(
                f"docker {label}: {error.explanation}", retryable=retryable
            ) from error
        except requests.ReadTimeout as error:
            raise SandboxTimeoutError(
                f"docker {label}: the engine did not answer in {seconds or self._api.timeout} s",
                hint="is dockerd busy, or stuck?",
                retryable=True,
                caused_by="host",
            ) from error
        except (DockerException, requests.RequestException) as error:
            raise SandboxError(
                f"docker {label}: the engine cannot be reached: {error}",
                hint="is dockerd running?",
                retryable=True,
                caused_by="host",
            ) from error

    async def rootless(self) -> bool:
        """Return whether the engine runs in a user namespace. The first answer is cached."""
        if self._rootless is None:
            info = await self.do("info")
            self._rootless = "name=rootless" in (info.get("SecurityOptions") or ())
        return self._rootless

    async def has_network(self, name: str) -> bool:
        """Return whether the engine has a network with this name."""
        found = await self.do("networks", names=[name])
        return any(each["Name"] == name for each in found)

    async def remove(self, container: str) -> bool:
        """Kill and remove a container with its volumes. Return whether the container existed."""
        again = 0
        while True:
            try:
                await self.do("remove_container", container, v=True, force=True)
            except GoneError:
                return again > 0
            except SandboxTimeoutError:
                raise
            except SandboxError:
                # The engine may still release a container that just ended, or remove it already.
                if again == _TRIES - 1:
                    raise
                await asyncio.sleep(again / 20)
                again += 1
            else:
                return True

    async def labelled(self, kind: str, filters: Sequence[str]) -> list[Mapping[str, Any]]:
        """List `containers` or `images` that have all of these labels."""
        found = await self.do(kind, all=True, filters={"label": list(filters)})
        return cast("list[Mapping[str, Any]]", found)


def _client(base: str, version: str, seconds: int) -> APIClient:
    client = APIClient(base, version=version, timeout=seconds)
    # A socket does not need a proxy or a credential. By default, each call looks for both.
    client.trust_env = False
    return client


def _raise_for_status(answer: requests.Response) -> None:
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


OLDEST = "1.41"
"""The API version of Docker 20.10. Newer engines are used with their oldest version."""


def choose_api_version(version: Mapping[str, Any]) -> str:
    """Return the API version to use, from the engine's answer to `version`.

    Raises:
        SandboxUnsupportedError: The engine is not a Docker engine, or it is too old.
    """
    try:
        newest = str(version["ApiVersion"])
        oldest = str(version.get("MinAPIVersion") or OLDEST)
        # Podman names itself here. Its other answers resemble those of Docker.
        names = [str(part["Name"]) for part in version.get("Components") or ()]
        too_old = _ordered(newest) < _ordered(OLDEST)
        chosen = max(OLDEST, oldest, key=_ordered)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SandboxUnsupportedError(
            f"not a Docker engine: unexpected answer to `version`: {error!r}",
            hint="point $DOCKER_HOST at the socket of dockerd",
        ) from error
    if any("podman" in name.lower() for name in names):
        raise SandboxUnsupportedError(
            "the engine is Podman, which is not supported",
            hint="point $DOCKER_HOST at the socket of dockerd",
        )
    if too_old:
        raise SandboxUnsupportedError(
            f"the engine is too old: its newest API version is {newest}",
            hint="Docker 20.10 or later is needed",
        )
    return chosen


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
