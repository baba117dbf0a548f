"""The descriptor of a session, and its signed name."""

import pytest
from benchflow_adapters_nemo_gym.descriptor import (
    McpAccess,
    SandboxPlacement,
    SandboxReference,
    SessionDescriptor,
    SessionSigner,
    Topology,
)
from benchflow_contracts import RolloutIdentity, SandboxSpec, UsageError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

IDENTITY = RolloutIdentity(rollout="rollout-1")
SPEC = SandboxPlacement(spec=SandboxSpec())
LIVE = SandboxPlacement(ref=SandboxReference(broker="http://127.0.0.1:1", ref="secret-reference"))
SIGNER = SessionSigner(b"a secret of tests only")


@pytest.mark.parametrize(
    ("topology", "sandbox"),
    [
        ("none", None),
        ("env-sandboxed", None),
        ("env-sandboxed", SPEC),
        ("agent-in-env", SPEC),
        ("agent-in-env", LIVE),
        ("whole-interaction", SPEC),
    ],
)
def test_a_descriptor_is_the_same_after_json(
    topology: Topology, sandbox: SandboxPlacement | None
) -> None:
    descriptor = SessionDescriptor(topology=topology, identity=IDENTITY, sandbox=sandbox)
    assert SessionDescriptor.model_validate_json(descriptor.model_dump_json()) == descriptor
    assert "secret-reference" not in repr(descriptor)


@pytest.mark.parametrize(
    ("topology", "sandbox"),
    [
        ("none", SPEC),
        ("agent-in-env", None),
        ("whole-interaction", None),
        ("whole-interaction", LIVE),
        ("env-sandboxed", LIVE),
    ],
)
def test_a_sandbox_that_does_not_fit_the_topology_is_refused(
    topology: Topology, sandbox: SandboxPlacement | None
) -> None:
    with pytest.raises(ValidationError, match="topology"):
        SessionDescriptor(topology=topology, identity=IDENTITY, sandbox=sandbox)


@pytest.mark.parametrize(
    ("topology", "shown", "sandbox"),
    [
        ("none", set[str](), set[str]()),
        ("env-sandboxed", {"mcp"}, set[str]()),
        ("agent-in-env", {"mcp", "sandbox_access", "sandbox_handle"}, {"spec", "ref"}),
        ("whole-interaction", set[str](), {"spec"}),
    ],
)
def test_each_topology_shows_of_the_same_parts_what_its_agent_may_have(
    topology: Topology, shown: set[str], sandbox: set[str]
) -> None:
    mcp = McpAccess(server_name="tasks")
    placed = SessionDescriptor.place(topology, IDENTITY, spec=SPEC.spec, ref=LIVE.ref, mcp=mcp)
    reply = placed.seed_reply()
    assert set(reply) == {"benchflow"} | shown
    parts = reply["benchflow"]["sandbox"] or {}
    assert {name for name, part in parts.items() if part is not None} == sandbox


def test_a_session_without_a_rollout_is_refused() -> None:
    with pytest.raises(ValidationError, match="rollout"):
        SessionDescriptor(topology="none", identity=RolloutIdentity())


def test_the_seed_reply_has_the_fields_that_nemo_gym_reads() -> None:
    mcp = McpAccess(server_name="tasks", headers={"X-NeMo-Gym-Session-Token": "t"})
    descriptor = SessionDescriptor(
        topology="agent-in-env", identity=IDENTITY, sandbox=LIVE, mcp=mcp
    )
    reply = descriptor.seed_reply()
    assert reply["mcp"] == {
        "server_name": "tasks",
        "url_path": "/mcp",
        "transport": "http",
        "headers": {"X-NeMo-Gym-Session-Token": "t"},
    }
    assert reply["sandbox_handle"] == "secret-reference"
    assert SessionDescriptor.model_validate(reply["benchflow"]) == descriptor
    bare = SessionDescriptor(topology="none", identity=IDENTITY).seed_reply()
    assert set(bare) == {"benchflow"}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_signed_name_is_read_for_its_use_alone(rollout: str) -> None:
    cookie = SIGNER.sign(rollout, "cookie")
    assert cookie.isascii()
    assert SIGNER.read(cookie, "cookie") == rollout
    assert SIGNER.read(cookie, "mcp") is None
    assert SessionSigner(b"another secret of tests").read(cookie, "cookie") is None


@given(st.text())
def test_a_forged_name_is_not_read(forged: str) -> None:
    assert SIGNER.read(forged, "mcp") is None


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(UsageError, match="16 bytes"):
        SessionSigner(b"short")
