"""The engine, over its API: no program is started for any call."""

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

from .api_version import OLDEST, dialect

T = TypeVar("T")

_THREADS = 8
_LONG_THREADS = 4
"""Of calls that may take minutes: others never wait for those."""
_TRIES = 10
"""Of a removal. The engine tells of no end of what keeps it from one."""

BYTES_A_SECOND = 8 << 20
"""What a busy engine copies at least."""

FULL = "no space left on device"
"""What the kernel says through the engine."""
BRIDGE = "bridge"
"""The engine's network that leads to the public."""
NOTHING = "none"
"""The engine's network that leads nowhere."""


class GoneError(SandboxError):
    """The engine knows nothing of that name."""


class DockerEngine:
    """Calls to one engine, each in a thread. A call that has begun is never cut in the middle."""

    def __init__(self, api: APIClient, base: str) -> None:
        self._api = api
        self._base = base
        self._threads = ThreadPoolExecutor(_THREADS, "docker")
        self._long_threads = ThreadPoolExecutor(_LONG_THREADS, "docker-long")
        self._rootless: bool | None = None

    @classmethod
    async def connect(cls, socket: str, seconds: int) -> "DockerEngine":
        """Return the engine that listens at a Unix socket; a call may take so many seconds.

        Raises:
            SandboxUnsupportedError: Nothing there answers, or not what we speak.
            SandboxError: It failed.
        """
        try:
            # The SDK does not close a socket that nobody listens at.
            _, writer = await asyncio.open_unix_connection(socket)
            writer.close()
        except OSError as error:
            raise SandboxUnsupportedError(
                f"no Docker engine answers at {socket!r}: {error}",
                hint="start dockerd, and let this user into the group of its socket",
            ) from error
        base = f"unix://{socket}"
        asked = cls(_client(base, OLDEST, seconds), base)
        try:
            spoken = dialect(await asked.do("version", api_version=False))
        finally:
            asked.close()
        return cls(_client(base, spoken, seconds), base)

    @property
    def api(self) -> APIClient:
        """The SDK's low-level client, for a thread of the caller's own."""
        return self._api

    def close(self) -> None:
        """Let go of the engine. Idempotent."""
        self._threads.shutdown(wait=False)
        self._long_threads.shutdown(wait=False)
        self._api.close()

    async def do(self, method: str, *args: object, **options: object) -> Any:  # noqa: ANN401 - the engine's JSON
        """Call a method of the SDK's low-level client.

        Raises:
            GoneError: There is no such container, image or path.
            SandboxError: The engine refused or cannot be reached.
        """
        return await self.run(lambda api: getattr(api, method)(*args, **options), method)

    async def run(self, work: Callable[[APIClient], T], what: str) -> T:
        """Do several things with the client in one thread; raise as `do` does."""

        async def wait() -> T:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, self._api)

        with self.typed(what):
            return await finish(wait())

    async def do_long(self, method: str, seconds: int, *args: object, **options: object) -> Any:  # noqa: ANN401 - the engine's JSON
        """Call a method as `do` does, with a time limit and a connection of its own.

        The connection is closed when the time is over, which ends the engine's work where the
        engine heeds that.
        """

        def work() -> object:
            with closing(_client(self._base, self._api.api_version, seconds)) as api:
                return getattr(api, method)(*args, **options)

        async def wait() -> object:
            return await asyncio.get_running_loop().run_in_executor(self._long_threads, work)

        with self.typed(method, seconds):
            return await finish(wait())

    async def sized(self, container: str) -> Mapping[str, Any]:
        """Inspect a container, and have the engine count what the container wrote."""

        def ask(api: APIClient) -> Mapping[str, Any]:
            url = f"{api.base_url}/v{api.api_version}/containers/{container}/json"
            answer = api.get(url, params={"size": "1"}, timeout=api.timeout)
            _raise_for_status(answer)
            return cast("Mapping[str, Any]", answer.json())

        return await self.run(ask, "inspect_container")

    @contextmanager
    def saved_image(self, name: str, size: int = 0) -> Generator[requests.Response]:
        """Yield the response that has the tar of an image of `size` bytes.

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
    def typed(self, what: str, seconds: int | None = None) -> Generator[None]:
        """Raise as `do` does when a call of the block fails, which may take `seconds`."""
        try:
            yield
        except (ImageNotFound, NotFound) as error:
            raise GoneError(f"docker {what}: {error.explanation}") from error
        except APIError as error:
            if FULL in str(error.explanation):
                raise HostError(
                    f"docker {what}: {error.explanation}",
                    hint="free space where the engine keeps its containers",
                ) from error
            retryable = error.is_server_error()
            raise SandboxError(
                f"docker {what}: {error.explanation}", retryable=retryable
            ) from error
        except requests.ReadTimeout as error:
            raise SandboxTimeoutError(
                f"docker {what}: the engine did not answer in {seconds or self._api.timeout} s",
                hint="is dockerd busy, or stuck?",
                retryable=True,
                caused_by="host",
            ) from error
        except (DockerException, requests.RequestException) as error:
            raise SandboxError(
                f"docker {what}: the engine cannot be reached: {error}",
                hint="is dockerd running?",
                retryable=True,
                caused_by="host",
            ) from error

    async def rootless(self) -> bool:
        """Whether it runs in a user namespace of its own, as it said when it was first asked."""
        if self._rootless is None:
            told = await self.do("info")
            self._rootless = "name=rootless" in (told.get("SecurityOptions") or ())
        return self._rootless

    async def has_network(self, name: str) -> bool:
        """Whether there is a network of that name."""
        found = await self.do("networks", names=[name])
        return any(each["Name"] == name for each in found)

    async def remove(self, container: str) -> bool:
        """Kill a container and remove it with its volumes; say whether it was there."""
        again = 0
        while True:
            try:
                await self.do("remove_container", container, v=True, force=True)
            except GoneError:
                return again > 0
            except SandboxTimeoutError:
                raise
            except SandboxError:
                # One that just ended may still be let go of, or be removed already.
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
    # No proxy or credential of the environment is for a socket; each call would look for both.
    client.trust_env = False
    return client


def _raise_for_status(answer: requests.Response) -> None:
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)
