"""Modal's outbound policy, which is experimental there."""

from typing import Any

from modal_proto import api_pb2 as pb

from .egress import Headers, with_headers

_MAX_REPLACEMENTS = 25
BLOCKED = pb.NetworkAccess.NetworkAccessType.BLOCKED
"""The network of a sandbox without one."""
OPEN = pb.NetworkAccess.NetworkAccessType.OPEN


def policy_problems(given: Any) -> dict[str, object]:  # noqa: ANN401
    """Return what Modal would refuse of an outbound policy, and whether it applies."""
    policy = given.experimental_outbound_policy
    every = list(policy.header_replacements)
    has_policy = given.HasField("experimental_outbound_policy")
    return {
        "an outbound policy needs an open network": has_policy
        and given.network_access.network_access_type != OPEN,
        "more than 25 header replacements": sum(len(each.headers) for each in every)
        > _MAX_REPLACEMENTS,
        "this server has no named secrets": any(each.secret_id for each in every),
        "a replacement without a domain or headers": not all(e.domain and e.headers for e in every),
    }


def rewrite(replacements: list[Any], host: str, headers: Headers) -> Headers:
    """Return headers with those of each replacement for the domain, the last one last."""
    for each in replacements:
        domain, name = each.domain.removeprefix("*"), f".{host}"
        if each.domain in {"*", host} or (domain != each.domain and name.endswith(domain)):
            headers = with_headers(headers, each.headers)
    return headers
