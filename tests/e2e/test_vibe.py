"""A real agent: Mistral Vibe, in a box whose only way out is a scripted model."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_agent_acp.builtin import mistral_vibe
from benchflow_agent_acp.logs import read_wire_log
from benchflow_agent_acp.steps import steps_from_wire
from benchflow_contracts import Answer, Ask, Door, Role, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from scripted_llm import ScriptedLlm, WriteOneFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Three ways out of the box; each must fail. The host's loopback is not the box's.
PROBE = """
import socket, sys
for target in [("192.0.2.1", 80), ("127.0.0.1", int(sys.argv[1]))]:
    try:
        socket.create_connection(target, timeout=2).close()
    except OSError:
        continue
    sys.exit(f"reached {target}")
interfaces = sorted(name for _, name in socket.if_nameindex())
sys.exit(0 if interfaces == ["lo"] else f"interfaces: {interfaces}")
"""


async def run_vibe(llm: ScriptedLlm, log_dir: Path, body: Any, **role_fields: Any) -> Any:
    role = Role(model="mock-model", timeout_sec=120, idle_timeout_sec=60, **role_fields)
    agent = mistral_vibe()
    needs = await agent.needs(role)
    spec = SandboxSpec(
        bundles=needs.bundles,
        network="model-only",
        doors=(Door(upstream=f"{llm.url}/v1", headers={"Authorization": "Bearer real-key"}),),
    )
    async with LocalProvider() as provider:
        sandbox = await provider.create(spec)
        try:
            return await body(agent, sandbox, role, log_dir)
        finally:
            await sandbox.teardown()


def test_vibe_writes_its_file_through_acp_with_no_network_but_the_model(tmp_path: Path) -> None:
    async def body(agent: Any, sandbox: Any, role: Role, log_dir: Path) -> Any:
        session = await agent.connect(sandbox, role, log_dir=log_dir)
        seen: list[Any] = []
        session.on_step(seen.append)
        assert await session.prompt("Write hello.txt for me.") == "end_turn"
        port = llm.url.rpartition(":")[2]
        alone = await sandbox.exec(["python3", "-I", "-c", PROBE, port])
        assert alone.ok, alone.stderr
        written = await sandbox.exec(["cat", "hello.txt"])
        owner = await sandbox.exec(["stat", "-c", "%U", "hello.txt"])
        running = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "vibe-acp" in running.stdout
        await session.aclose()
        running = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "vibe-acp" not in running.stdout
        assert seen == session.steps
        return session, written.stdout, owner.stdout

    with ScriptedLlm(WriteOneFile("hello.txt", "hello from vibe\n")) as llm:
        session, written, owner = asyncio.run(run_vibe(llm, tmp_path, body))

    assert written == "hello from vibe\n"
    assert owner == "agent\n"
    acting, closing = session.steps
    assert acting.prompt == "Write hello.txt for me."
    assert acting.message == "I will write the file."
    assert [(call.name, call.kind) for call in acting.tool_calls] == [("write_file", "edit")]
    assert acting.observations[0].status == "completed"
    assert closing.message.startswith("Done: ")
    assert closing.stop_reason == "end_turn"
    assert closing.usage is not None
    assert closing.usage.input_tokens == 22
    records = list(read_wire_log(tmp_path / "acp_wire.jsonl"))
    assert steps_from_wire(records) == session.steps
    assert [r.msg["method"] for r in records if r.dir == "out" and "method" in r.msg] == [
        "initialize",
        "session/new",
        "session/set_mode",
        "session/prompt",
    ]
    assert [call.wire for call in llm.requests] == ["chat", "chat"]
    assert all(call.stream and call.model == "mock-model" for call in llm.requests)
    # The box holds a placeholder; the relay on the host puts the real key in.
    assert {call.headers["Authorization"] for call in llm.requests} == {"Bearer real-key"}
    assert "real-key" not in (tmp_path / "acp_wire.jsonl").read_text()


def test_a_killed_vibe_goes_on_in_a_new_process_and_knows_what_was_said(tmp_path: Path) -> None:
    async def body(agent: Any, sandbox: Any, role: Role, log_dir: Path) -> Any:
        session = await agent.connect(sandbox, role, log_dir=log_dir / "first")
        await session.prompt("The secret is alpha-7.")
        snapshot = await session.snapshot()
        await session.aclose()
        again = await agent.connect(sandbox, role, resume=snapshot, log_dir=log_dir / "second")
        assert again.id == session.id
        await again.prompt("Go on.")
        await again.aclose()
        return session.steps, again.steps

    with ScriptedLlm(WriteOneFile("hello.txt", "hi\n")) as llm:
        before, after = asyncio.run(run_vibe(llm, tmp_path, body))
    assert [step.prompt for step in after if step.prompt] == ["Go on."]
    assert {step.id for step in before}.isdisjoint(step.id for step in after)
    assert "alpha-7" in str(llm.requests[-1].raw["messages"])


def test_vibe_finds_the_skills_of_its_role(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "booking"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: booking\ndescription: How to book a room in zebra hall.\n---\nBody.\n"
    )

    async def body(agent: Any, sandbox: Any, role: Role, log_dir: Path) -> None:
        await sandbox.upload(tmp_path / "skills", "/skills")
        session = await agent.connect(sandbox, role, log_dir=log_dir)
        await session.prompt("Write hello.txt for me.")
        await session.aclose()

    with ScriptedLlm(WriteOneFile("hello.txt", "hi\n")) as llm:
        asyncio.run(run_vibe(llm, tmp_path / "log", body, skills_dir="/skills"))
    assert "zebra hall" in str(llm.requests[0].raw)


def test_a_gate_of_vibe_reaches_the_user_as_a_permission(tmp_path: Path) -> None:
    asks: list[Ask] = []

    async def deny(ask: Ask) -> Answer:
        asks.append(ask)
        return Answer(outcome="declined")

    async def body(agent: Any, sandbox: Any, role: Role, log_dir: Path) -> Any:
        gated = type(agent)(agent.decl.model_copy(update={"mode": None}))
        session = await gated.connect(sandbox, role, log_dir=log_dir)
        session.on_ask_user(deny)
        await session.prompt("Write hello.txt for me.")
        await session.aclose()
        return await sandbox.exec("test -e hello.txt")

    with ScriptedLlm(WriteOneFile("hello.txt", "hi\n")) as llm:
        exists = asyncio.run(run_vibe(llm, tmp_path, body))
    assert exists.exit_code == 1
    assert [(ask.kind, ask.channel) for ask in asks] == [("permission", "permission")]
