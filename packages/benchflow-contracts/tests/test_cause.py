"""Who caused a failure."""

import errno
import tempfile
from pathlib import Path

import pytest

from benchflow_contracts import (
    AccountError,
    AgentError,
    CapacityError,
    Cause,
    CostLimitError,
    CredentialsError,
    EnvironmentError_,
    HostError,
    QuotaError,
    RewardError,
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    TaskError,
    TransferError,
    blame,
    caused_outside,
    host_error,
    host_is_short,
)


def caused(error: Exception, by: BaseException) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "by"),
    [
        (HostError("no descriptor is left"), "host"),
        (AgentError("it said nonsense"), "unknown"),
        (caused(AgentError("it did not start"), OSError(errno.EMFILE, "no file")), "host"),
        (RuntimeError("can't start new thread"), "host"),
        (TaskError("no test.sh"), "task"),
        (SandboxLimitError("no process is left"), "agent"),
        (TransferError("a link"), "agent"),
        (SandboxError("it broke"), "unknown"),
        (ValueError("what?"), "unknown"),
        (OSError(errno.EMFILE, "Too many open files"), "host"),
        (BlockingIOError(errno.EAGAIN, "fork"), "host"),
        (MemoryError(), "host"),
        (OSError(errno.ENOENT, "No such file"), "unknown"),
        (caused(EnvironmentError_("no state"), SandboxLimitError("no memory")), "agent"),
        (caused(SandboxError("no file"), OSError(errno.ENOSPC, "full")), "host"),
    ],
)
def test_a_failure_has_one_culprit_by_the_first_error_that_knows_it(error: Exception, by: str):
    assert blame(error, inside="agent").by == by


def test_what_happens_in_a_sandbox_is_its_tenants():
    assert blame(SandboxLimitError("no memory"), inside="task").by == "task"


def test_an_error_may_name_its_culprit_itself():
    assert blame(SandboxLimitError("full", caused_by="host"), inside="agent").by == "host"


def test_a_host_error_may_pass_and_says_what_could_not_be_done():
    error = host_error("download '/out'", OSError(errno.ENOSPC, "No space left on device"))
    assert error.retryable
    assert str(error) == "cannot download '/out': No space left on device (on the host)"


def test_a_cause_reads_as_one_line():
    assert str(Cause(by="agent", what="out of memory")) == "agent: out of memory"


def test_an_error_that_was_raised_from_itself_has_a_cause() -> None:
    error = RewardError("the tests hung")
    error.__cause__ = error
    assert blame(error, inside="agent").by == "unknown"


def test_a_file_that_is_missing_in_a_directory_of_ours_is_no_loss_of_the_host() -> None:
    with tempfile.TemporaryDirectory(prefix="bf-") as scratch:
        with pytest.raises(FileNotFoundError) as missing:
            Path(scratch, "absent").read_bytes()
        assert not host_is_short(missing.value)
    assert host_is_short(missing.value)


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        (CapacityError, "host"),
        (SandboxLostError, "host"),
        (QuotaError, "host"),
        (CostLimitError, "host"),
        (CredentialsError, "operator"),
    ],
)
def test_what_the_provider_refuses_is_never_blamed_on_the_agent(kind: type[SandboxError], by: str):
    wrapped = caused(RewardError("the tests failed", caused_by="agent"), kind("boom"))
    cause = blame(caused(SandboxLimitError("full"), wrapped), inside="agent")
    assert (cause.by, cause.what, cause.hint) == (by, "boom", kind.default_hint)
    assert cause.stops_job is issubclass(kind, AccountError)
    assert cause.is_temporary is issubclass(kind, HostError)
    assert caused_outside(wrapped)


def test_a_lack_of_capacity_says_when_to_try_again():
    error = caused(RewardError("no sandbox"), CapacityError("busy", retry_after=12.5))
    assert blame(error, inside="agent").retry_after == 12.5


@pytest.mark.parametrize("outside", [QuotaError("used up"), CapacityError("full")])
def test_an_outside_error_in_a_group_that_an_error_was_raised_from_decides(outside):
    group = ExceptionGroup("two calls", [ValueError("other"), ExceptionGroup("inner", [outside])])
    try:
        raise SandboxLimitError("the sandbox is at its limit") from group
    except SandboxLimitError as error:
        cause = blame(error, inside="agent")
    assert (cause.by, cause.what) == ("host", str(outside))
    assert cause.stops_job == isinstance(outside, QuotaError)
