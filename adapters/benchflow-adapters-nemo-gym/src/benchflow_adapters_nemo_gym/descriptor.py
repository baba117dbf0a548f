"""The descriptor of a session: where the agent and the world run, as data that crosses processes.

NeMo Gym 0.4.0 has no such type: its seed reply has MCP access alone. Version 0.7.0 has
`SandboxAccess`, an access to a sandbox that another component owns. `seed_reply` and
`episode_reply` render both.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from benchflow_contracts import Model, NetworkMode, RolloutIdentity, SandboxSpec, UsageError
from pydantic import Field, model_validator

Topology = Literal["none", "env-sandboxed", "agent-in-env", "whole-interaction"]
"""`none` (A): nothing is isolated; the agent answers, and the answer is graded. `env-sandboxed`
(B): the world is in a sandbox, and the agent outside acts by tools. `agent-in-env` (C): the world
and the agent are in one sandbox. `whole-interaction` (D): an outer program runs all of it in one
sandbox, of which neither has a reference."""

MCP_TOKEN_HEADER: Final = "X-NeMo-Gym-Session-Token"  # noqa: S105 - the name of a header


SessionUse = Literal["cookie", "mcp", "broker"]
"""What a signed name is for: the cookie, the MCP token, or the token of the rollout at a broker."""


class SandboxReference(Model):
    """A live sandbox of a broker."""

    broker: str
    """The URL of the broker."""
    ref: str = Field(repr=False)
    sandbox: str = ""
    """The id of the sandbox at its provider."""
    workdir: str = ""
    token: str | None = Field(default=None, repr=False)
    """A token of the broker for the sandboxes of this rollout alone. Without it, a process uses a
    token of its own."""


class SandboxPlacement(Model):
    """The sandbox of a session: a spec to start it from, or a live one, or both."""

    spec: SandboxSpec | None = None
    ref: SandboxReference | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.spec is None and self.ref is None:
            raise ValueError("a sandbox has a spec or a reference")
        return self


class McpAccess(Model):
    """Access to the tools of a session by MCP, as of NeMo Gym's `MCPServerMetadata`."""

    server_name: str
    url_path: str = "/mcp"
    transport: str = "http"
    headers: Mapping[str, str] = Field(default={}, repr=False)


class ModelEgress(Model):
    """What the sandbox may reach. Credentials are added outside, so the descriptor has none."""

    network: NetworkMode = "none"
    allowed_hosts: tuple[str, ...] = ()
    model_url: str | None = None
    """The base URL at which an agent inside reaches its model."""


class SessionDescriptor(Model):
    """What an agent server must know to take part in a session. JSON, with its secrets hidden."""

    version: Literal[1] = 1
    topology: Topology
    identity: RolloutIdentity
    """Its `rollout` is the one name of the session: of cookie, MCP token, sandboxes and reaper."""
    sandbox: SandboxPlacement | None = None
    mcp: McpAccess | None = None
    egress: ModelEgress = ModelEgress()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.identity.rollout is None:
            raise ValueError("the identity of a session has a rollout")
        placement = self.sandbox
        if self.topology == "none" and placement is not None:
            raise ValueError("the topology `none` has no sandbox")
        if self.topology == "agent-in-env" and placement is None:
            raise ValueError("the topology `agent-in-env` needs a sandbox")
        if self.topology == "whole-interaction" and (placement is None or placement.spec is None):
            raise ValueError("the topology `whole-interaction` needs the spec of a sandbox")
        is_apart = self.topology in {"env-sandboxed", "whole-interaction"}
        if is_apart and placement is not None and placement.ref is not None:
            raise ValueError(f"in the topology `{self.topology}` no agent has a reference")
        return self

    @property
    def rollout(self) -> str:
        """The name of the session."""
        return self.identity.rollout or ""

    @classmethod
    def place(
        cls,
        topology: Topology,
        identity: RolloutIdentity,
        *,
        spec: SandboxSpec | None = None,
        ref: SandboxReference | None = None,
        mcp: McpAccess | None = None,
        egress: ModelEgress | None = None,
    ) -> Self:
        """Return the descriptor of a session with those of the parts that the topology shows.

        Raises:
            ValidationError: The topology needs a part that is missing.
        """
        is_inside = topology in {"agent-in-env", "whole-interaction"}
        live = ref if topology == "agent-in-env" else None
        shown = spec if is_inside else None
        return cls(
            topology=topology,
            identity=identity,
            sandbox=SandboxPlacement(spec=shown, ref=live) if shown or live else None,
            mcp=mcp if topology in {"env-sandboxed", "agent-in-env"} else None,
            egress=egress or _egress_of(shown),
        )

    def seed_reply(self, provider_config: str = "sandbox") -> dict[str, Any]:
        """Return the fields of a `/seed_session` reply of NeMo Gym.

        `mcp` is as of 0.4.0, `sandbox_handle` as of the servers of later versions that have one,
        and `sandbox_access` as of 0.7.0. `benchflow` is the whole descriptor, which other agent
        servers ignore.
        """
        reply: dict[str, Any] = {"benchflow": self.model_dump(mode="json")}
        if self.mcp is not None:
            reply["mcp"] = self.mcp.model_dump(mode="json")
        if (access := self.sandbox_access(provider_config)) is not None:
            reply["sandbox_access"] = access
            reply["sandbox_handle"] = access["connection"]["descriptor"]["ref"]
        return reply

    def episode_reply(self, session: str, provider_config: str) -> dict[str, Any]:
        """Return a `ResourcesSeedSessionResponse` of NeMo Gym 0.7.0, which has no other fields."""
        return {
            "resources_session_id": session,
            "resources_tools": None if self.mcp is None else self.mcp.model_dump(mode="json"),
            "sandbox_access": self.sandbox_access(provider_config),
        }

    def sandbox_access(self, provider_config: str) -> dict[str, Any] | None:
        """Return a `SandboxAccess` of NeMo Gym 0.7.0; None if the agent gets no live sandbox.

        `provider_config` is the block of NeMo Gym's configuration that has our provider. The
        descriptor inside is for `BenchFlowProvider.connect`.
        """
        reference = None if self.sandbox is None else self.sandbox.ref
        if reference is None:
            return None
        descriptor = {
            "provider": "benchflow",
            "sandbox_id": reference.sandbox,
            "ref": reference.ref,
            "workdir": reference.workdir,
            **({} if reference.token is None else {"token": reference.token}),
        }
        return {
            "connection": {
                "kind": "direct",
                "provider_config_ref": provider_config,
                "descriptor": descriptor,
            },
            "workdir": reference.workdir,
        }


def _egress_of(spec: SandboxSpec | None) -> ModelEgress:
    if spec is None:
        return ModelEgress()
    return ModelEgress(network=spec.network, allowed_hosts=spec.allowed_hosts)


class SessionSigner:
    """Signs the name of a session, so that cookie and MCP token both prove the same identity.

    A name that is signed for one use is not accepted for another one.
    """

    def __init__(self, secret: bytes) -> None:
        """Take the secret, which all workers of one server share.

        Raises:
            UsageError: The secret has fewer than 16 bytes.
        """
        if len(secret) < 16:
            raise UsageError("the secret of sessions has fewer than 16 bytes")
        self._secret = secret

    def sign(self, rollout: str, use: SessionUse) -> str:
        """Return the signed name, in characters that a cookie and a header may have."""
        name = base64.urlsafe_b64encode(rollout.encode()).decode().rstrip("=")
        return f"{name}.{self._mac(name, use)}"

    def read(self, signed: str, use: SessionUse) -> str | None:
        """Return the name of a session, or None if the signature is wrong."""
        name, _, mac = signed.partition(".")
        if not mac.isascii() or not hmac.compare_digest(mac, self._mac(name, use)):
            return None
        return base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()

    def _mac(self, name: str, use: str) -> str:
        message = f"{use}\0{name}".encode("utf-8", "surrogateescape")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
