"""Failures of a cloud's SDK and of commands as errors of the contracts."""

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Self

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

_MOST_OUTPUT, _TAIL = 1 << 20, 500
ErrorTest = type[Exception] | Callable[[Exception], object]
"""A class of errors, or a function that returns whether a row is for an error."""
Convert = Callable[[str, Exception], SandboxError | None]


@contextmanager
def convert_errors(
    cloud: str, doing: str, convert: Convert, *, address: str = "the address of the server"
) -> Generator[None]:
    """Replace errors of a cloud's SDK in the block by those that `convert` returns.

    `convert` gets the beginning of the message, and the error. It returns `None` for an error that
    is not the SDK's. That error passes through, or is a `HostError` if the answer was unreadable;
    its hint names `address`.
    """
    try:
        yield
    except Exception as error:
        typed = convert(f"{cloud}: cannot {doing}: ", error)
        if typed is None and isinstance(error, UNREADABLE):
            message = f"{cloud}: cannot {doing}: the answer is not one of its API: {error!r}"
            typed = HostError(message, hint=f"check {address}, or try again later")
        if typed is None:
            raise
        raise typed from error


class ErrorRow:
    """Errors of an SDK, and the error of the contracts for them."""

    def __init__(
        self, kind: type[SandboxError] | None, *tests: ErrorTest, hint: str | None = None
    ) -> None:
        """Use `kind=None` if a resource does not exist: each block has its own error for it."""
        self.kind, self.hint = kind, hint
        self._tests = tests

    def fits(self, error: Exception) -> bool:
        """Return whether one of the tests holds."""
        return any(
            isinstance(error, test) if isinstance(test, type) else test(error)
            for test in self._tests
        )

    def convert(
        self,
        message: str,
        error: Exception,
        missing: type[SandboxError],
        remedy: str | None = None,
    ) -> SandboxError:
        """Return the error of the contracts; see `ErrorTable`."""
        kind = self.kind or missing
        if kind is CapacityError:
            wait = retry_after(getattr(error, "headers", None) or {})
            return CapacityError(message, hint=self.hint, retry_after=wait)
        is_refused = kind is SandboxUnsupportedError
        return kind(message, hint=(remedy if is_refused else None) or self.hint)


class AnswerError(Exception):
    """An answer of a server, for SDKs whose errors do not have its parts as attributes."""

    def __init__(self, text: str, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status_code, self.headers = status, headers or {}

    @classmethod
    def of_body(
        cls, body: str | bytes, status: int, headers: Mapping[str, str] | None, *, reason: str
    ) -> Self:
        """Return the answer with the `message` of a JSON body; `reason` counts without one."""
        try:
            text = str(json.loads(body)["message"])
        except UNREADABLE:
            text = reason
        return cls(text, status, headers)


def answer_rows(
    login: str, remedy: str, *, denied: str = "", gone: str = ""
) -> tuple[ErrorRow, ...]:
    """Return rows for every `AnswerError`. Rows for special texts go before them.

    `login` is the hint for refused credentials, and `remedy` that for other refused requests.
    `denied` and `gone` are patterns of the texts of 403 and 404, if a cloud has these statuses also
    for requests that it refuses for another reason.
    """
    return (
        ErrorRow(CapacityError, matches(AnswerError, 429)),
        ErrorRow(CredentialsError, matches(AnswerError, 401), hint=login),
        ErrorRow(CredentialsError, matches(AnswerError, 403, text=denied), hint=login),
        ErrorRow(QuotaError, matches(AnswerError, 402)),
        ErrorRow(None, matches(AnswerError, 404, text=gone), matches(AnswerError, 410)),
        ErrorRow(SandboxUnsupportedError, matches(AnswerError, *range(500)), hint=remedy),
        ErrorRow(HostError, AnswerError, hint="try again later"),
    )


def matches(kind: type[Exception], *statuses: int, text: str = "") -> ErrorTest:
    """Return a test for errors of a kind, with one of `statuses`, by a pattern of their text.

    Without statuses, each status fits, which is the attribute `status_code`.
    """
    pattern = re.compile(text, re.IGNORECASE)

    def test(error: Exception) -> bool:
        status = getattr(error, "status_code", None)
        fits = isinstance(error, kind) and (not statuses or status in statuses)
        return fits and pattern.search(str(error)) is not None

    return test


class ErrorTable:
    """Replaces errors of a cloud's SDK in a block, by the first row that fits.

    An error without a row passes through, or is a `HostError` if the answer was unreadable.
    """

    def __init__(
        self,
        cloud: str,
        address: str,
        *rows: ErrorRow,
        read: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        """`address` names the setting with the address of the server.

        `read` may replace an error by the `AnswerError` that the rows test.
        """
        self._cloud, self._address, self._rows = cloud, address, rows
        self._read = read

    def __call__(
        self,
        doing: str,
        *,
        missing: type[SandboxError] = SandboxLostError,
        remedy: str | None = None,
    ) -> AbstractContextManager[None]:
        """Return the block. `doing` says what it does.

        A resource that does not exist is `missing`. `remedy` is the hint for a refused request, in
        place of that of the row.
        """

        def convert(start: str, error: Exception) -> SandboxError | None:
            error = self._read(error)
            row = next((row for row in self._rows if row.fits(error)), None)
            message = f"{start}{str(error) or repr(error)}"
            return None if row is None else row.convert(message, error, missing, remedy)

        return convert_errors(self._cloud, doing, convert, address=self._address)


@contextmanager
def connection_errors(table: ErrorTable, doing: str) -> Generator[None]:
    """Raise `HostError`: the end of a connection does not mean that its sandbox is lost."""
    try:
        with table(doing):
            yield
    except SandboxError as error:
        raise HostError(str(error)) from error


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
    error = AnswerError(message, status, headers)
    row = next(row for row in answer_rows(login, remedy) if row.fits(error))
    return row.convert(message, error, missing)


class OutputTail:
    """The end of the output of a command, which a process of the sandbox may make endless."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._left = _MOST_OUTPUT
        self.text = ""

    def add(self, text: str) -> None:
        """Add output.

        Raises:
            SandboxError: The command has written too much.
        """
        self._left -= len(text)
        if self._left < 0:
            raise SandboxError(
                f"{self._command[:80]!r} has written more than {_MOST_OUTPUT} characters",
                hint="a process of the sandbox replaced the program",
                caused_by="inside",
            )
        self.text = (self.text + text)[-_TAIL:]


def check_exit(command: str, code: int, output: str) -> None:
    """Check that a command inside a sandbox has ended with 0.

    Raises:
        SandboxError: It has not. The message has the end of `output`.
    """
    if code:
        raise SandboxError(f"{command[:80]!r} ended with {code}: {output.strip()[-_TAIL:]}")
