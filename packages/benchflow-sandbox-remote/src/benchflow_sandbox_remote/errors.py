"""Failures of a cloud's SDK and of commands as errors of the contracts."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    HostError,
    QuotaError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
)

from .cloud import UNREADABLE
from .rate_limit import retry_after

Convert = Callable[[str, Exception], SandboxError | None]


@contextmanager
def convert_errors(cloud: str, doing: str, convert: Convert) -> Generator[None]:
    """Replace errors of a cloud's SDK in the block by those that `convert` returns.

    `convert` gets the beginning of the message, and the error. It returns `None` for an error that
    is not the SDK's. That error passes through, or is a `HostError` if the answer was unreadable.
    """
    try:
        yield
    except Exception as error:
        typed = convert(f"{cloud}: cannot {doing}: ", error)
        if typed is None and isinstance(error, UNREADABLE):
            message = f"{cloud}: cannot {doing}: the answer is not one of its API: {error!r}"
            typed = HostError(message, hint="check the address of the server, or try again later")
        if typed is None:
            raise
        raise typed from error


def error_of_status(
    message: str,
    status: int,
    headers: Mapping[str, str] | None = None,
    *,
    login: str,
    remedy: str,
    missing: type[SandboxError] = SandboxLostError,
) -> SandboxError:
    """Return the error of an answer by HTTP. A resource that does not exist is `missing`.

    `login` is the hint for refused credentials, and `remedy` that for other refused requests.
    """
    if status == 429:
        return CapacityError(message, retry_after=retry_after(headers or {}))
    kinds: dict[int, tuple[type[SandboxError], str | None]] = {
        401: (CredentialsError, login),
        402: (QuotaError, None),
        403: (CredentialsError, login),
        404: (missing, None),
        410: (missing, None),
    }
    other = (SandboxUnsupportedError, remedy) if status < 500 else (HostError, "try again later")
    kind, hint = kinds.get(status, other)
    return kind(message, hint=hint)


def check_exit(command: str, code: int, output: str) -> None:
    """Check that a command inside a sandbox has ended with 0.

    Raises:
        SandboxError: It has not. The message has the end of `output`.
    """
    if code:
        raise SandboxError(f"{command[:80]!r} ended with {code}: {output.strip()[-500:]}")
