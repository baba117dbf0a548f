"""Pull images through the engine, with the credentials of Docker's own client."""

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

import requests
from benchflow_contracts.errors import HostError, SandboxError
from docker import APIClient, auth
from docker.errors import DockerException, create_api_error_from_http_exception
from docker.utils import parse_repository_tag
from docker.utils.json_stream import json_stream

from .engine import FULL, DockerEngine, GoneError

_REFUSED = re.compile(
    r"no basic auth credentials|\bunauthorized\b|authentication required|access denied"
    r"|authorization failed|incorrect username",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"not found|manifest unknown|no matching manifest|name unknown", re.IGNORECASE)


async def fetch(engine: DockerEngine, image: str) -> None:
    """Pull an image: `name`, `name:tag`, or `name@digest`.

    Raises:
        GoneError: The registry does not have the image.
        HostError: The engine's disk is full.
        SandboxTimeoutError: No data arrived for the time limit of a call.
        SandboxError: The pull failed. Retryable, unless the registry requires credentials.
    """
    repository, tag = parse_repository_tag(image)
    registry, _ = auth.resolve_repository_name(repository)
    with _classify_errors(registry):
        await engine.run(lambda api: _fetch(api, repository, tag or "latest", registry), "pull")


def _fetch(api: APIClient, repository: str, tag: str, registry: str) -> None:
    try:
        header: bytes | None = cast("Any", auth).get_config_header(api, registry)
    except DockerException as error:
        raise SandboxError(
            f"cannot read the credentials for {registry!r}: {error}",
            hint="install the credential helper of Docker's config.json on PATH",
        ) from error
    # The `pull` of the SDK does not have a time limit.
    response = api.post(
        f"{api.base_url}/v{api.api_version}/images/create",
        params={"fromImage": repository, "tag": tag},
        headers={"X-Registry-Auth": header} if header else {},
        stream=True,
        timeout=api.timeout,
    )
    with response:
        try:
            response.raise_for_status()
        except requests.HTTPError as error:
            create_api_error_from_http_exception(error)
        events = json_stream(response.iter_content(None))
        for event in cast("Iterable[Mapping[str, Any]]", events):
            # A pull that breaks off has status 200.
            if "error" in event:
                raise SandboxError(f"docker pull: {event['error']}", retryable=True)


@contextmanager
def _classify_errors(registry: str) -> Generator[None]:
    """Classify failures by their message, because the status is not specific."""
    try:
        yield
    except HostError:
        raise
    except SandboxError as error:
        message = str(error)
        if FULL in message:
            raise HostError(message, hint="free space for the engine's images") from error
        if _REFUSED.search(message):
            raise SandboxError(
                message, hint=f"run `docker login {registry}`, or correct the name"
            ) from error
        if isinstance(error, GoneError) or _ABSENT.search(message):
            raise GoneError(message, hint="correct the name, or push the image") from error
        raise
