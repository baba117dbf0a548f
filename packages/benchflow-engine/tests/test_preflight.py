"""A run that cannot work is refused before anything is started."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from benchflow_contracts import (
    BaseAgent,
    BaseProvider,
    Endpoint,
    Role,
    Sandbox,
    SandboxCapabilities,
    SandboxSpec,
    SandboxUnsupportedError,
    Session,
    UsageError,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.model_endpoint import ModelEndpointError, reach
from benchflow_engine.planes import assemble
from benchflow_engine.preflight import check_agent, check_provider
from benchflow_engine.preview import dry_run
from benchflow_engine.rollout import run, run_in
from benchflow_engine.scaffold import write_task
from benchflow_kernel import load_task
from benchflow_kernel.errors import FidelityError

TASK = Path(__file__).parents[3] / "benchmarks/clawsbench/tasks/archive-newsletters"


@contextmanager
def listener(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Listen on loopback; say `answer` to whoever asks, or nothing."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                link, _ = server.accept()
            except OSError:
                return
            with link:
                heard.append(link.recv(65536))
                if answer is not None:
                    link.sendall(answer)
                else:
                    link.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}/v1"


@pytest.mark.parametrize("status", ["200 OK", "401 No", "404 No", "501 No"])
def test_any_answer_of_the_endpoint_will_do_and_no_key_is_sent(status: str) -> None:
    with listener(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()) as (url, heard):
        endpoint = Endpoint(url=url, headers={"Authorization": "Bearer sk-real"})
        asyncio.run(reach(endpoint))
    [request] = heard
    assert request.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"sk-real" not in request


def test_an_endpoint_that_nobody_serves_is_named() -> None:
    url = closed_port()
    with pytest.raises(ModelEndpointError, match=url) as caught:
        asyncio.run(reach(Endpoint(url=url)))
    assert "--base-url" in caught.value.hint


@contextmanager
def server(routes: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Serve a status for each `METHOD PATH`, and 404 for others; keep the requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            line = f"{self.command} {self.path}"
            requests.append(line)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(routes.get(line, 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    for method in ("GET", "POST"):
        setattr(Handler, f"do_{method}", Handler.answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", requests
        finally:
            http.shutdown()
            thread.join(10)


@pytest.mark.parametrize(
    ("wire", "path"),
    [
        ("openai-chat", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
        ("anthropic", "/v1/messages"),
    ],
)
@pytest.mark.parametrize("base", ["", "/v1"])
def test_an_endpoint_without_a_list_of_models_is_asked_for_the_model_route(
    wire: str, path: str, base: str
) -> None:
    with server({f"POST {path}": 401}) as (url, requests):
        asyncio.run(reach(Endpoint(url=url + base), wire=wire))
    assert requests[0] == f"GET {base}/models"
    assert requests[-1] == f"POST {path}"


def test_an_endpoint_that_answers_404_to_the_model_route_fails() -> None:
    with server({}) as (url, _), pytest.raises(ModelEndpointError, match="gives 404") as caught:
        asyncio.run(reach(Endpoint(url=f"{url}/api"), wire="openai-chat"))
    assert f"{url}/api has no model route: /chat/completions" in str(caught.value)
    assert "--base-url" in caught.value.hint


def test_a_run_whose_endpoint_has_no_model_route_makes_no_directory(tmp_path: Path) -> None:
    with server({}) as (url, _):
        options = run_config(agent="policy", base_url=url, model="m")
        with pytest.raises(ModelEndpointError, match="no model route"):
            asyncio.run(run(TASK, config=options, jobs_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [b"SSH-2.0-nonsense\r\n", b""])
def test_an_endpoint_that_speaks_no_http_is_named(answer: bytes) -> None:
    with listener(answer) as (url, _), pytest.raises(ModelEndpointError, match=url):
        asyncio.run(reach(Endpoint(url=url)))


def test_a_silent_endpoint_is_waited_for_no_longer_than_three_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchflow_engine.model_endpoint._ANSWER_SEC", 0.2)
    with listener(None) as (url, _), pytest.raises(ModelEndpointError, match=url):
        asyncio.run(reach(Endpoint(url=url)))


def test_a_name_that_resolves_for_ever_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    monkeypatch.setattr("benchflow_engine.model_endpoint._ANSWER_SEC", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60))
    started = time.monotonic()
    try:
        with pytest.raises(ModelEndpointError, match=r"nowhere\.example"):
            asyncio.run(reach(Endpoint(url="http://nowhere.example/v1")))
        assert time.monotonic() - started < 30
    finally:
        released.set()


def test_a_credential_in_the_url_is_not_told() -> None:
    url = closed_port().replace("http://", "http://me:secret-word@")
    with pytest.raises(ModelEndpointError) as caught:
        asyncio.run(reach(Endpoint(url=f"{url}?key=other-secret")))
    assert "secret" not in str(caught.value)


def test_a_run_whose_endpoint_is_away_makes_no_directory(tmp_path: Path) -> None:
    options = run_config(agent="policy", base_url=closed_port(), model="m")
    with pytest.raises(ModelEndpointError):
        asyncio.run(run(TASK, config=options, jobs_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


def options_of(agent: str, **more: object) -> RunConfig:
    base = {"agent": agent, "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    return run_config(**{**base, **more})


@pytest.mark.parametrize(
    ("agent", "upstream"),
    [("claude-agent-acp", "openai"), ("codex-acp", "vllm"), ("mistral-vibe", "anthropic")],
)
def test_an_upstream_of_another_wire_needs_the_gateway(agent: str, upstream: str) -> None:
    check_agent(options_of(agent, upstream=upstream))
    with pytest.raises(UsageError, match="nothing translates"):
        check_agent(options_of(agent, upstream=upstream, gateway=False))


def test_what_speaks_the_agents_own_wire_needs_no_gateway() -> None:
    check_agent(options_of("mistral-vibe", upstream="vllm", gateway=False))
    check_agent(options_of("claude-agent-acp", gateway=False))
    with pytest.raises(UsageError, match="where Google takes it"):
        check_agent(options_of("gemini", gateway=False))


def test_an_agent_without_tools_is_not_given_one() -> None:
    with pytest.raises(UsageError, match="takes no tools"):
        check_agent(options_of("qwen", agent_env={"BENCHFLOW_ASK_MCP": "1"}))


def test_children_are_not_forked_at_questions_either_when_the_agent_asks_none() -> None:
    with pytest.raises(UsageError, match="asks no questions"):
        check_agent(options_of("codex-acp", branch="group", branch_then="ask-user"))


class Small(BaseProvider):
    """A provider of nothing but files and commands."""

    name = "small"

    def __init__(self, **can: object) -> None:
        super().__init__()
        self._can = SandboxCapabilities.model_validate({"isolation": "container", **can})

    async def capabilities(self) -> SandboxCapabilities:
        return self._can

    async def create(self, spec: SandboxSpec, **_: object) -> Sandbox:
        raise NotImplementedError(spec)


NETWORKS = {"network_modes": {"none", "public"}}
GRADES = {**NETWORKS, "kill_all": True}
INSTANT = {"snapshot_levels": {"filesystem"}, "snapshot_consistency": "instant"}


def checked(task: Path, provider: Small, **options: object) -> None:
    chosen, loaded = run_config(**options), load_task(task)
    asyncio.run(check_provider(chosen, loaded, assemble(chosen, loaded, provider)))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    write_task(tmp_path / "task")
    return tmp_path / "task"


def test_a_sandbox_that_cannot_grade_is_refused_before_the_agent(task: Path) -> None:
    checked(task, Small(**GRADES))
    checked(task, Small(**NETWORKS, freeze="guest"))
    with pytest.raises(SandboxUnsupportedError, match="cannot grade"):
        checked(task, Small(**NETWORKS))
    for can in ({**GRADES, "freeze": "kernel"}, {**GRADES, **INSTANT}):
        with pytest.raises(SandboxUnsupportedError, match="no twin"):
            checked(task, Small(**can), isolation="twin")
    checked(task, Small(**GRADES, **INSTANT, freeze="kernel"), isolation="twin")


@pytest.mark.parametrize(
    ("can", "options", "message"),
    [
        (INSTANT, {"branch_require": "live"}, "has no live snapshots"),
        ({}, {}, "cannot take filesystem snapshots"),
        ({**INSTANT, "snapshot_consistency": "crash_consistent"}, {}, "of one instant"),
    ],
)
def test_forks_that_the_sandbox_lacks_are_refused_before_anything_is_written(
    task: Path, can: dict[str, object], options: dict[str, object], message: str
) -> None:
    chosen = run_config(**{"branch": "group", **options})
    started = run_in(Small(**GRADES, **can), load_task(task), chosen, directory=task / "record")
    with pytest.raises(FidelityError, match=message) as raised:
        asyncio.run(started)
    assert raised.value.hint
    assert not (task / "record").exists()


SIGNAL = '[[verifier.rewards]]\nkind = "memory"\ndirectory = "/memory"\nweight = 0\n'
HOOK = '[[verifier.collect]]\ncommand = "pg_dump > /workspace/dump"\n'


def test_a_signal_that_ends_processes_which_the_verifier_needs_is_refused(task: Path) -> None:
    file = task / "task.toml"
    file.write_text(f"{file.read_text()}\n{SIGNAL}")
    checked(task, Small(**GRADES))
    file.write_text(f"{file.read_text()}\n{HOOK}")
    checked(task, Small(**GRADES, freeze="guest"))
    with pytest.raises(SandboxUnsupportedError, match="reward 'memory' reads its files") as raised:
        checked(task, Small(**GRADES))
    assert "reward 'reward' needs its processes afterwards" in str(raised.value)
    assert "--sandbox docker" in raised.value.hint


def test_a_dry_run_refuses_grading_that_ends_needed_processes(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def small(_: RunConfig) -> AsyncGenerator[Small]:
        yield Small(**GRADES)

    monkeypatch.setattr("benchflow_engine.preview.open_provider", small)
    file = task / "task.toml"
    file.write_text(f"{file.read_text()}\n{SIGNAL}\n{HOOK}")
    with pytest.raises(SandboxUnsupportedError, match="needs its processes afterwards"):
        asyncio.run(dry_run(task, run_config(agent="nop")))


def test_an_agent_with_a_model_needs_a_sandbox_with_doors(task: Path) -> None:
    options = {"agent": "policy", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    can = {**GRADES, "network_modes": {"none", "model-only"}}
    with pytest.raises(SandboxUnsupportedError, match="doors, and the agent needs 'model'"):
        checked(task, Small(**can), **options)
    checked(task, Small(**can, doors="tunnel"), **options)


def test_an_agent_that_is_a_process_needs_a_sandbox_with_processes(task: Path) -> None:
    with pytest.raises(SandboxUnsupportedError, match="`spawn`, which agent 'claude-agent-acp'"):
        checked(task, Small(**GRADES, spawn=False), agent="claude-agent-acp")
    checked(task, Small(**GRADES, spawn=False), agent="nop")


def test_the_oracle_needs_no_sandbox_with_processes_for_a_solution_script(task: Path) -> None:
    checked(task, Small(**GRADES, spawn=False), agent="oracle")


def test_the_oracle_needs_a_sandbox_with_processes_for_a_script_toml(task: Path) -> None:
    (task / "solution" / "script.toml").write_text("")
    checked(task, Small(**GRADES), agent="oracle")
    checked(task, Small(**GRADES, spawn=False), agent="nop")
    with pytest.raises(SandboxUnsupportedError, match="agent 'oracle' with the solution's 'scr"):
        checked(task, Small(**GRADES, spawn=False), agent="oracle")


def test_the_oracle_needs_a_sandbox_with_processes_for_one_script_of_any_step(task: Path) -> None:
    (task / "instruction.md").unlink()
    with (task / "task.toml").open("a") as file:
        file.write('\n[[steps]]\nname = "first"\n\n[[steps]]\nname = "second"\n')
    for name in ("first", "second"):
        (task / "steps" / name / "solution").mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text("Write the greeting.")
    can = {**GRADES, "freeze": "guest", "spawn": False}
    checked(task, Small(**can), agent="oracle")
    (task / "steps" / "second" / "solution" / "script.toml").write_text("")
    with pytest.raises(SandboxUnsupportedError, match="agent 'oracle' with the solution's 'scr"):
        checked(task, Small(**can), agent="oracle")


SERVICES = """
[environment]
name = "office"
base_image = "office-base"
owns_lifecycle = false
[[environment.services]]
name = "mail"
command = "mail-service"
port = 9001
"""


def test_an_environment_with_services_needs_a_sandbox_with_processes(task: Path) -> None:
    (task / "environment").mkdir(exist_ok=True)
    manifest = task / "environment" / "environment.toml"
    manifest.write_text('[environment]\nname = "files"\nimage = "office"\n')
    checked(task, Small(**GRADES, spawn=False), agent="nop")
    manifest.write_text(SERVICES)
    checked(task, Small(**GRADES), agent="nop")
    with pytest.raises(SandboxUnsupportedError, match="`spawn`, which environment 'office'"):
        checked(task, Small(**GRADES, spawn=False), agent="nop")


@pytest.mark.parametrize("name", ["environment/environment.toml", "solution/script.toml"])
def test_a_dry_run_refuses_processes_that_the_sandbox_lacks(
    task: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    @asynccontextmanager
    async def small(_: RunConfig) -> AsyncGenerator[Small]:
        yield Small(**GRADES, spawn=False)

    monkeypatch.setattr("benchflow_engine.preview.open_provider", small)
    assert asyncio.run(dry_run(task, run_config(agent="oracle"))).error is None
    (task / name).parent.mkdir(exist_ok=True)
    (task / name).write_text(SERVICES)
    with pytest.raises(SandboxUnsupportedError, match="does not support `spawn`"):
        asyncio.run(dry_run(task, run_config(agent="oracle")))


def test_a_task_that_changes_its_network_needs_a_sandbox_that_can(task: Path) -> None:
    file = task / "task.toml"
    file.write_text(f'{file.read_text()}\n[agent]\nnetwork = "public"\n')
    with pytest.raises(SandboxUnsupportedError, match="the change of network to 'public'"):
        checked(task, Small(**GRADES))
    checked(task, Small(**GRADES, network_switch=True))


class Thinker(BaseAgent):
    """An agent that could act by a model of its own."""

    name = "thinker"

    async def connect(self, sandbox: Sandbox, role: Role, **_: object) -> Session:
        raise NotImplementedError(sandbox, role)


@pytest.mark.parametrize("limit", ['other_limits = ["working_limit = 60"]', "max_tokens = 100"])
def test_a_limit_on_a_model_outside_of_the_run_is_refused_by_its_name(
    task: Path, limit: str
) -> None:
    file = task / "task.toml"
    file.write_text(f"{file.read_text()}\n[agent]\n{limit}\n")
    for agent in ("nop", "oracle", "scripted"):
        checked(task, Small(**GRADES), agent=agent)
    named = limit.partition("= [")[2].strip('"]') or limit
    with pytest.raises(UsageError, match=f"the task has {named}"):
        checked(task, Small(**GRADES), agent_import_path=f"{__name__}:Thinker")
