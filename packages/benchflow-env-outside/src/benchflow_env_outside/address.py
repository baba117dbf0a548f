"""The address of a foreign environment, which a task may name."""

import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

from benchflow_contracts import TaskError

HOSTS: Final = "BENCHFLOW_WORLD_HOSTS"
"""The operator's variable: the hosts that tasks may name, separated by commas (default: all)."""


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


def _is_refused(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_link_local or address.is_multicast or address.is_unspecified
