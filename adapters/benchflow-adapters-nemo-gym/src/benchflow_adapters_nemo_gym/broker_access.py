"""Who may use a broker over HTTP: by a token of the broker, or by one of a single rollout."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from benchflow_contracts import SandboxLostError, UsageError
from benchflow_serve.security import TokenVerifier, token_digest
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from .descriptor import SessionSigner

if TYPE_CHECKING:
    from .broker import SandboxBroker

_MIN_TOKEN: Final = 16


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Knows the tokens of a broker: those of the whole broker, and those of one rollout."""

    tokens: TokenVerifier
    signer: SessionSigner | None = None

    @classmethod
    def of(cls, tokens: Iterable[str], signer: SessionSigner | None) -> Self:
        """Return the access by tokens.

        Raises:
            UsageError: A token is too short, or there is none and no signer.
        """
        known = list(tokens)
        if (not known and signer is None) or any(len(token) < _MIN_TOKEN for token in known):
            raise UsageError(f"a broker needs tokens of at least {_MIN_TOKEN} characters")
        return cls(TokenVerifier([token_digest(token) for token in known]), signer)

    def rollout_of(self, authorization: str) -> str | None:
        """Return the rollout of a header's token; None for a token of the whole broker.

        Raises:
            NotAuthorizedException: The header has no valid token.
        """
        if self.tokens.allows(authorization):
            return None
        scheme, _, token = authorization.partition(" ")
        rollout = None if self.signer is None else self.signer.read(token, "broker")
        if rollout is None or scheme.lower() != "bearer":
            raise NotAuthorizedException(
                "the request has no valid bearer token", headers={"WWW-Authenticate": "Bearer"}
            )
        return rollout


def check_access(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Allow a token of the broker everything, and one of a rollout the rollout's sandboxes.

    A reference of another rollout is as unknown as one that does not exist.
    """
    if handler.opt.get("is_public"):
        return
    state = connection.app.state
    access: BrokerAccess = state["broker_access"]
    rollout = access.rollout_of(connection.headers.get("authorization", ""))
    if rollout is None:
        return
    broker: SandboxBroker = state["broker"]
    ref = connection.path_params.get("ref")
    if ref is None:
        raise PermissionDeniedException("the token of a rollout cannot make or delete sandboxes")
    if broker.rollout_of(ref) != rollout:
        raise SandboxLostError(
            "the reference of the sandbox is unknown",
            hint="the sandbox was released, or it is not of the rollout of this token",
        )
