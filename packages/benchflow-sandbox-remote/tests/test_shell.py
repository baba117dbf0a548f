"""The parts for clouds that only run commands, and the proof that a network is closed."""

import asyncio

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    HostError,
    QuotaError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import (
    AnswerError,
    ErrorRow,
    ErrorTable,
    OutputTail,
    answer_rows,
    check_exit,
    convert_errors,
    error_of_status,
    matches,
    network_proof,
    prove_closed,
    shell,
    wait_for_start,
)

HINTS = {"login": "a key", "remedy": "an image"}


class LocalBox:
    """The files and commands of a local sandbox."""

    def __init__(self, sandbox):
        self.sandbox = sandbox

    async def put(self, path, content, mode):
        command = ["sh", "-c", 'mkdir -p /.benchflow; cat > "$0"; chmod "$1" "$0"', path]
        await self.run([*command, f"{mode:o}"], content)

    async def run(self, argv, stdin=b""):
        result = await self.sandbox.exec(argv, user="root", cwd="/", stdin=stdin)
        check_exit(argv[0], result.exit_code, result.stderr)


def run_in(test):
    async def main():
        async with LocalProvider() as local:
            return await test(local)

    return asyncio.run(main())


def test_a_network_is_closed_only_if_the_other_sandbox_reaches_the_address(monkeypatch):
    monkeypatch.setattr(network_proof, "_TRIES", 1)
    door = Door(name="api", upstream="http://127.0.0.1:9", port=6443, serves="http")

    async def test(local):
        with_door = SandboxSpec(network="model-only", doors=(door,))
        opened = LocalBox(await local.create(with_door))
        closed = LocalBox(await local.create(SandboxSpec()))
        address = "127.0.0.1 6443"
        assert await prove_closed(opened, closed, address) is None
        assert "nothing is proven" in await prove_closed(closed, closed, address)
        assert "reaches 127.0.0.1 6443" in await prove_closed(opened, opened, address)
        # Only the failure of the connection proves something: this is not an address.
        closed.run = ends_with_0
        assert "reaches no address" in await prove_closed(closed, opened, "no address")
        await opened.sandbox.teardown()
        with pytest.raises(SandboxError):
            await prove_closed(opened, closed, address)

    async def ends_with_0(argv, stdin=b""):
        """Run nothing, as if the command ended with 0."""

    run_in(test)


def test_a_sandbox_that_does_not_start_in_time_is_a_lack_of_capacity():
    answers = iter([False, False, True])

    async def is_running():
        return next(answers)

    async def never():
        return False

    asyncio.run(wait_for_start(is_running, 30, hint="wait"))
    assert list(answers) == []
    with pytest.raises(CapacityError, match=r"within 0\.2 s") as error:
        asyncio.run(wait_for_start(never, 0.2, hint="read the events"))
    assert error.value.hint == "read the events"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, SandboxUnsupportedError),
        (401, CredentialsError),
        (402, QuotaError),
        (403, CredentialsError),
        (404, SandboxLostError),
        (410, SandboxLostError),
        (503, HostError),
    ],
)
def test_an_answer_has_the_error_of_its_status(status, kind):
    error = error_of_status("no", status, **HINTS)
    assert type(error) is kind
    hints = {CredentialsError: "a key", SandboxUnsupportedError: "an image"}
    assert error.hint == hints.get(kind, error.hint)


def test_a_limit_of_the_rate_has_the_pause_of_the_cloud():
    error = error_of_status("slow", 429, {"Retry-After": "7"}, **HINTS)
    assert (type(error), error.retry_after) == (CapacityError, 7)


def test_only_errors_of_the_sdk_are_converted():
    def convert(start, error):
        return HostError(f"{start}{error}") if isinstance(error, OSError) else None

    with (
        pytest.raises(HostError, match="Cloud: cannot make it: gone"),
        convert_errors("Cloud", "make it", convert),
    ):
        raise OSError("gone")
    with pytest.raises(ZeroDivisionError), convert_errors("Cloud", "make it", convert):
        raise ZeroDivisionError


def test_the_output_of_a_command_is_limited_and_only_its_end_is_kept():
    output = OutputTail("sync")
    for _ in range(16):
        output.add("x" * 65_535 + "y")
    assert output.text == "x" * 499 + "y"
    with pytest.raises(SandboxError, match="'sync' has written more than 1048576") as error:
        output.add("z")
    assert error.value.caused_by == "inside"


class SdkError(Exception):
    """An error of an SDK, with a status."""

    status_code = 400


TABLE = ErrorTable(
    "Cloud",
    "CLOUD_URL",
    ErrorRow(HostError, matches(SdkError, 400, text="^try later"), hint="wait"),
    ErrorRow(None, matches(SdkError, 404), lambda error: str(error) == "gone"),
    ErrorRow(SandboxUnsupportedError, SdkError, hint="another image"),
    *answer_rows("a key", "see the manual", denied="no right"),
    read=lambda error: (
        AnswerError.of_body(str(error), 403, {}, reason="no reason")
        if isinstance(error, EOFError)
        else error
    ),
)


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (SdkError("Try later, please"), HostError, "wait"),
        (SdkError("please, try later"), SandboxUnsupportedError, "a remedy"),
        (SdkError("gone"), QuotaError, QuotaError.default_hint),
        (EOFError('{"message": "no right here"}'), CredentialsError, "a key"),
        (EOFError('{"message": "a rule"}'), SandboxUnsupportedError, "a remedy"),
        (EOFError("not JSON"), SandboxUnsupportedError, "a remedy"),
        (AnswerError("slow", 429, {"retry-after": "7"}), CapacityError, CapacityError.default_hint),
        (LookupError("a page of a proxy"), HostError, "check CLOUD_URL, or try again later"),
    ],
)
def test_the_first_row_that_fits_gives_the_error_and_the_block_its_remedy(error, kind, hint):
    block = TABLE("try", missing=QuotaError, remedy="a remedy")
    with pytest.raises(SandboxError, match=r"^Cloud: cannot try: ") as caught, block:
        raise error
    assert (type(caught.value), caught.value.hint) == (kind, hint)
    assert getattr(caught.value, "retry_after", None) == (7 if "slow" in str(error) else None)


def test_a_command_that_never_reports_its_end_is_given_up(monkeypatch):
    monkeypatch.setattr(shell, "_RUN_SECONDS", 0.05)

    class SilentCloud:
        async def is_running(self, sandbox):
            return True

        async def start_command(self, sandbox, argv):
            return SilentCommand()

    class SilentCommand:
        is_closed = False

        async def finish(self, stdin):
            await asyncio.Event().wait()

        async def aclose(self):
            SilentCommand.is_closed = True

    with pytest.raises(HostError, match=r"within 0.05 s: run 'true'"):
        asyncio.run(shell.ShellSandbox(SilentCloud(), "pod").run(["true"]))
    assert SilentCommand.is_closed
