"""Sandboxes on other machines, through one link that survives cut connections."""

from .cloud import (
    UNREADABLE,
    Cloud,
    CloudRecord,
    CloudSandbox,
    HasImage,
    HasSize,
    SnapshotCloud,
    SnapshotSandbox,
    SupportsBuilds,
    start_link,
)
from .egress import HasPlaceholders
from .errors import check_exit, convert_errors, error_of_status
from .image_builds import BuildLog, ImageBuilds, ImagePlan, ImagePlanner
from .network_proof import prove_closed, with_open_network
from .plain_dockerfile import PlainDockerfile, stage_context
from .provider import LINK_CAPABILITIES, RemoteOptions, RemoteProvider, options_of
from .rate_limit import RateLimiter, account_file, retry_after
from .records import LinkProtocolError
from .sandbox import RemoteSandbox
from .shell import (
    ShellCloud,
    ShellCommand,
    ShellSandbox,
    lifetime_command,
    seconds_left,
    wait_for_start,
)
from .ssh.provider import SshProvider
from .tags import labels_of, tags_of
from .terms import TERMS_VARIABLE, BoxSize, CloudTerms, Prices, Rate, load_terms
from .transport import (
    PROGRAM,
    Dial,
    LineTransport,
    ProcessTransport,
    QueuedTransport,
    Transport,
)
from .websocket import Locate, WebSocketDialer, WebSocketListener, WebSocketTransport

__all__ = [
    "LINK_CAPABILITIES",
    "PROGRAM",
    "TERMS_VARIABLE",
    "UNREADABLE",
    "BoxSize",
    "BuildLog",
    "Cloud",
    "CloudRecord",
    "CloudSandbox",
    "CloudTerms",
    "Dial",
    "HasImage",
    "HasPlaceholders",
    "HasSize",
    "ImageBuilds",
    "ImagePlan",
    "ImagePlanner",
    "LineTransport",
    "LinkProtocolError",
    "Locate",
    "PlainDockerfile",
    "Prices",
    "ProcessTransport",
    "QueuedTransport",
    "Rate",
    "RateLimiter",
    "RemoteOptions",
    "RemoteProvider",
    "RemoteSandbox",
    "ShellCloud",
    "ShellCommand",
    "ShellSandbox",
    "SnapshotCloud",
    "SnapshotSandbox",
    "SshProvider",
    "SupportsBuilds",
    "Transport",
    "WebSocketDialer",
    "WebSocketListener",
    "WebSocketTransport",
    "account_file",
    "check_exit",
    "convert_errors",
    "error_of_status",
    "labels_of",
    "lifetime_command",
    "load_terms",
    "options_of",
    "prove_closed",
    "retry_after",
    "seconds_left",
    "stage_context",
    "start_link",
    "tags_of",
    "wait_for_start",
    "with_open_network",
]
