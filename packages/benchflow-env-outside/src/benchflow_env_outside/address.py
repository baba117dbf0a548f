"""The address of a foreign environment, which a task may name."""

import ipaddress
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchflow_contracts import TaskError, UsageError

HOSTS: Final = "BENCHFLOW_WORLD_HOSTS"
"""The operator's variable: the hosts that tasks may name, separated by commas (default: all)."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SECRET_BYTES: Final = 16 * 1024


def world_url(url: object, *, where: str = "task.toml:environment.options.url") -> str:
    """Return the base URL of a foreign environment, without a slash at the end.

    The client connects from the host of the run. So an address of the link, where clouds serve
    credentials, is refused, and the operator can limit the hosts by `BENCHFLOW_WORLD_HOSTS`. A name
    is not resolved here.

    Raises:
        TaskError: It is not a plain http or https URL, or the host is not allowed.
    """
    if not isinstance(url, str) or len(url) > 2000 or not url.isprintable():
        raise TaskError(f"{url!r:.80} is not a URL", where=where, hint="give http://HOST:PORT")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise TaskError(f"{url!r:.80} is not a URL: {error}", where=where) from error
    plain = parts.scheme in {"http", "https"} and host and "@" not in parts.netloc and port != 0
    if not plain or parts.query or parts.fragment:
        raise TaskError(
            f"{parts.scheme}://{host} is not a plain http or https URL",
            where=where,
            hint="leave out credentials, query and fragment; adapters read keys from variables",
        )
    if _is_refused(host):
        raise TaskError(f"an environment may not be at {host}", where=where, hint="name its server")
    allowed = os.environ.get(HOSTS)
    if allowed is not None and host not in {name.strip().lower() for name in allowed.split(",")}:
        raise TaskError(
            f"the host {host!r} of the environment is not in ${HOSTS}",
            where=where,
            hint=f"add it to ${HOSTS}, if you trust this server",
        )
    return url.rstrip("/")


def secret_for(url: str, variable: str) -> str | None:
    """Return the operator's secret for a server, or None without one.

    The secret is the value of `$VARIABLE`, else the first line of the file that `$VARIABLE_FILE`
    names; empty lines and lines that begin with `#` are skipped. A host that only a task has chosen
    does not get the secret: another host than this machine must be in `$BENCHFLOW_WORLD_HOSTS`. No
    error has the secret.

    Raises:
        UsageError: The host is not trusted, or the file has no secret that a header can carry.
    """
    secret, named = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if not secret and not named:
        return None
    expect_trusted(url, variable)
    if not secret:
        secret = _first_line(str(named), f"{variable}_FILE")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise UsageError(f"the secret of ${variable} has characters that a header cannot carry")
    return secret


def expect_trusted(url: str, variable: str) -> None:
    """Raise before a secret goes to a host that only a task has chosen.

    Raises:
        UsageError: The host is not this machine, and `$BENCHFLOW_WORLD_HOSTS` is not set.
    """
    host = urlsplit(url).hostname or ""
    if host not in _LOOPBACK and not os.environ.get(HOSTS):
        raise UsageError(
            f"${variable} would be sent to {host!r}, which a task has named",
            hint=f"name the hosts that you trust in ${HOSTS}",
        )


def _first_line(path: str, variable: str) -> str:
    try:
        with Path(path).open("rb") as file:
            lines = file.read(_SECRET_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read ${variable}, {path!r:.200}: {reason}") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise UsageError(f"the file of ${variable}, {path!r:.200}, has no secret")
    return found[0]


def _is_refused(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_link_local or address.is_multicast or address.is_unspecified
