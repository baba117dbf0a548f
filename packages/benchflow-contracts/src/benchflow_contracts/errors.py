"""The errors of BenchFlow. Other packages define further subclasses.

BenchFlowError
├── UsageError               the operator asked for something impossible
├── TaskError                a task directory is malformed
├── ManifestError            an environment.toml is malformed
├── SandboxError             the substrate failed
│   ├── SandboxUnsupportedError  the machine or provider lacks a capability
│   ├── SandboxTimeoutError      a call ran out of time; its processes were killed
│   ├── SandboxFrozenError       the caller itself has frozen the sandbox
│   ├── SandboxLimitError        a process inside reached a limit of the sandbox
│   ├── TransferError            a file or directory cannot be transferred
│   ├── HostError                the host could not do its part; a retry may succeed
│   │   ├── CapacityError            the provider does not have room for it now
│   │   └── SandboxLostError         the host took the sandbox away, or cannot reach it again
│   └── AccountError             the account at the provider does not allow it; the job stops
│       ├── QuotaError               a quota of the account is used up
│       ├── CostLimitError           a cost limit is reached
│       └── CredentialsError         credentials are missing or refused
├── AgentError               the agent or its protocol failed
│   ├── AgentTimeoutError        no reply in time, or idle for too long
│   ├── AgentExitError           the agent's own program failed in a turn
│   └── AgentProtocolError       the agent sent something that the protocol forbids
├── EnvironmentError_        the stateful world failed
│   └── ReadinessError           the world did not become healthy in time
├── RewardError              scoring failed; the node does not get a reward
│   └── EvidenceMissingError     the reward needs a live world or a task
├── SnapshotError            a checkpoint, restore or fork failed
│   └── ReplayDivergedError      an agent did not repeat the model calls on record
└── StoreError               a record could not be written or read

A failed rollout is data: the kernel attributes each failure to exactly one boundary
(`BenchFlowError.boundary`) and records it. Extensions may raise plain errors. The kernel wraps them
at the boundary at which they surface.
"""

from typing import ClassVar, Literal

Culprit = Literal["agent", "task", "host", "operator", "unknown"]
"""Who caused a failure. The host is the machine, the engine, the provider or BenchFlow itself."""

Boundary = Literal[
    "usage",
    "task",
    "manifest",
    "sandbox",
    "agent",
    "environment",
    "reward",
    "snapshot",
    "store",
    "internal",
]
"""Where a failure belongs. `internal` is a defect of BenchFlow."""


class BenchFlowError(Exception):
    """The root. `str(error)` says what happened and to which identifier.

    Attributes:
        hint: One line that says what to do about it.
        retryable: Whether the same call may succeed when repeated unchanged.
        where: `file:line` or `file:key` of the wrong input, if there is one.
        caused_by: Who caused it. `inside`: the last tenant of the sandbox that failed. Only the
            caller knows the tenant; see `blame`.
    """

    boundary: ClassVar[Boundary] = "internal"
    default_culprit: ClassVar[Culprit | Literal["inside"]] = "unknown"
    default_hint: ClassVar[str] = "run again with --debug and report the traceback"
    default_retryable: ClassVar[bool] = False
    stops_job: ClassVar[bool] = False
    """Whether every other rollout of the job would fail in the same way."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        retryable: bool | None = None,
        where: str | None = None,
        caused_by: Culprit | Literal["inside"] | None = None,
    ) -> None:
        super().__init__(message)
        self.caused_by: Culprit | Literal["inside"] = caused_by or self.default_culprit
        self.hint = hint or self.default_hint
        self.retryable = self.default_retryable if retryable is None else retryable
        self.where = where

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.where}: {message}" if self.where else message


class UsageError(BenchFlowError):
    """The operator asked for something impossible."""

    boundary = "usage"
    default_hint = "see `bench --help`"


class TaskError(BenchFlowError):
    """A task directory is malformed."""

    boundary = "task"
    default_culprit = "task"
    default_hint = "correct the task, and check it with `bench tasks check DIR`"


class ManifestError(BenchFlowError):
    """An environment manifest is malformed."""

    boundary = "manifest"
    default_culprit = "task"
    default_hint = "run `bench env check FILE`"


class SandboxError(BenchFlowError):
    """The sandbox failed."""

    boundary = "sandbox"
    default_hint = "run `bench doctor`"


class SandboxUnsupportedError(SandboxError):
    """This machine or provider does not support the request."""


class SandboxTimeoutError(SandboxError):
    """A call ran out of time. Its whole process group was killed before."""

    default_hint = "raise the timeout"


class SandboxFrozenError(SandboxError):
    """The caller has frozen the sandbox, so its command would never run."""

    default_hint = "leave the freeze() block first"


class SandboxLimitError(SandboxError):
    """A process inside reached a limit of the sandbox. A shortage of the host is a `HostError`."""

    default_culprit = "inside"
    default_hint = "raise the limit in the task's [environment] table"


class TransferError(SandboxError):
    """A file or directory cannot be transferred: a link, a device, a missing or too large file.

    Nothing partial is left. A failure of the host is a `HostError`. For an upload, `caused_by` is
    `unknown`, because nobody inside is to blame.
    """

    default_culprit = "inside"
    default_hint = "only regular files and directories can be transferred"


class HostError(SandboxError):
    """The host could not do its part: no space, descriptors, memory or processes were left.

    Nothing inside the sandbox caused it, so it never becomes a score.
    """

    default_culprit = "host"
    default_hint = "free space, memory, processes or open files on this machine"
    default_retryable = True


class CapacityError(HostError):
    """The provider does not have room for the sandbox or the snapshot now.

    A limit on the rate of calls, or on sandboxes at one time, is a lack of capacity too.

    Attributes:
        retry_after: Seconds until the next try, if the provider says so.
    """

    default_hint = "run fewer rollouts at one time, or try again later"

    def __init__(
        self, message: str, *, retry_after: float | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class SandboxLostError(HostError):
    """The host took the sandbox away, or the connection to it is gone for good.

    A sandbox that a process inside ended is not lost; raise a plain `SandboxError` for it.
    """

    default_hint = "read the log of the provider: it may say why the sandbox ended"


class AccountError(SandboxError):
    """The account at the provider does not allow the call, and a retry does not help.

    The rollout does not get a reward, and its job does not start further rollouts.
    """

    default_culprit: ClassVar[Culprit | Literal["inside"]] = "host"
    default_hint = "check the account at the provider, then run the job again"
    stops_job = True


class QuotaError(AccountError):
    """A quota of the account is used up. A limit that passes by itself is a `CapacityError`."""

    default_hint = "raise the quota, or delete what uses it, then run the job again"


class CostLimitError(AccountError):
    """A cost limit of the account or of the operator is reached."""

    default_hint = "raise the cost limit, then run the job again"


class CredentialsError(AccountError):
    """The provider's credentials are missing, expired or refused."""

    default_culprit = "operator"
    default_hint = "set the credentials that the message names, then run the job again"


class AgentError(BenchFlowError):
    """The agent failed."""

    boundary = "agent"
    default_hint = "read agent/stderr.txt of the rollout, or run `bench agent probe`"


class AgentTimeoutError(AgentError):
    """The agent did not answer in time, or was idle for too long."""


class AgentExitError(AgentError):
    """The agent's own program failed in a turn. Its work until then is graded."""


class AgentProtocolError(AgentError):
    """The agent sent bytes that its protocol forbids. The session has ended."""


class EnvironmentError_(BenchFlowError):  # noqa: N801, N818 - a builtin has the plain name
    """The stateful world failed."""

    boundary = "environment"
    default_hint = "run `bench env check FILE`"


class ReadinessError(EnvironmentError_):
    """The world did not become healthy in time. The agent was never started."""


class RewardError(BenchFlowError):
    """Scoring failed. The node stays unscored; no fault yields a reward.

    `retryable` if the failure of a sandbox was temporary: the whole rollout may be run again.
    """

    boundary = "reward"
    default_hint = "read verifier/test-stdout.txt of the rollout"


class EvidenceMissingError(RewardError):
    """The reward needs evidence that is missing, such as a live world or the task."""

    default_hint = "score the node with the evidence that the message names"


class SnapshotError(BenchFlowError):
    """A checkpoint, restore or fork failed. Nothing partial is visible."""

    boundary = "snapshot"
    default_hint = "run `bench doctor` to see which snapshot levels work here"


class ReplayDivergedError(SnapshotError):
    """An agent in a replay made a model call that differs from the recorded one.

    Its work after the call says nothing about the record, so it is not scored.
    """

    default_hint = (
        "branch at `state` or `live` fidelity; `bench gateway show` names the call that differs"
    )


class StoreError(BenchFlowError):
    """A record could not be written or read."""

    boundary = "store"
    default_culprit = "host"
    default_hint = "check the free space and the permissions of the jobs directory"
