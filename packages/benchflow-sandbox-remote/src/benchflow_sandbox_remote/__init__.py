"""Sandboxes on other machines, through one link that survives cut connections."""

from .cloud import (
    UNREADABLE,
    Cloud,
    CloudImage,
    CloudRecord,
    CloudSandbox,
    CreateOptions,
    HasImage,
    HasSize,
    Lease,
    SnapshotCloud,
    SnapshotSandbox,
    SupportsBuilds,
    SupportsConnect,
)
from .dockerfile_steps import (
    BuildStep,
    CopyStep,
    EnvStep,
    ImageSteps,
    RunStep,
    WorkdirStep,
)
from .egress import HasPlaceholders, open_hosts
from .errors import (
    AnswerError,
    ErrorRow,
    ErrorTable,
    OutputTail,
    answer_rows,
    check_exit,
    convert_errors,
    error_of_status,
    matches,
)
from .image_builds import (
    BuildLog,
    BuiltImages,
    ImagePlan,
)
from .network_proof import prove_closed
from .provider import RemoteOptions, RemoteProvider, options_of
from .rate_limit import RateLimiter, account_file, retry_after
from .records import LinkProtocolError
from .renewal import Renewal
from .sandbox import RemoteSandbox
from .sdk_sandbox import SdkSandbox
from .shell import (
    ShellCloud,
    ShellCommand,
    ShellSandbox,
    lifetime_command,
    seconds_left,
    wait_for_start,
    whole_seconds,
)
from .ssh.provider import SshProvider
from .tags import labels_of, tags_of
from .terms import (
    LINK_CAPABILITIES,
    TERMS_VARIABLE,
    BoxSize,
    CloudTerms,
    Prices,
    Rate,
    load_terms,
)
from .transport import (
    PROGRAM,
    Dial,
    LineTransport,
    ProcessTransport,
    PushedOutput,
    QueuedTransport,
    Transport,
)
from .websocket import Locate, WebSocketDialer, WebSocketListener, WebSocketTransport

__all__ = [
    "LINK_CAPABILITIES",
    "PROGRAM",
    "TERMS_VARIABLE",
    "UNREADABLE",
    "AnswerError",
    "BoxSize",
    "BuildLog",
    "BuildStep",
    "BuiltImages",
    "Cloud",
    "CloudImage",
    "CloudRecord",
    "CloudSandbox",
    "CloudTerms",
    "CopyStep",
    "CreateOptions",
    "Dial",
    "EnvStep",
    "ErrorRow",
    "ErrorTable",
    "HasImage",
    "HasPlaceholders",
    "HasSize",
    "ImagePlan",
    "ImageSteps",
    "Lease",
    "LineTransport",
    "LinkProtocolError",
    "Locate",
    "OutputTail",
    "Prices",
    "ProcessTransport",
    "PushedOutput",
    "QueuedTransport",
    "Rate",
    "RateLimiter",
    "RemoteOptions",
    "RemoteProvider",
    "RemoteSandbox",
    "Renewal",
    "RunStep",
    "SdkSandbox",
    "ShellCloud",
    "ShellCommand",
    "ShellSandbox",
    "SnapshotCloud",
    "SnapshotSandbox",
    "SshProvider",
    "SupportsBuilds",
    "SupportsConnect",
    "Transport",
    "WebSocketDialer",
    "WebSocketListener",
    "WebSocketTransport",
    "WorkdirStep",
    "account_file",
    "answer_rows",
    "check_exit",
    "convert_errors",
    "error_of_status",
    "labels_of",
    "lifetime_command",
    "load_terms",
    "matches",
    "open_hosts",
    "options_of",
    "prove_closed",
    "retry_after",
    "seconds_left",
    "tags_of",
    "wait_for_start",
    "whole_seconds",
]
