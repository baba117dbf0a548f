"""Play tasks of BenchFlow through OpenEnv, and serve a stock environment of OpenEnv.

Prints one line of JSON, then serves the tasks and the stock environment until the input ends.
"""

# pyright: basic, reportMissingImports=false

import json
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from benchflow_adapters_openenv.server import OpenEnvServer
from benchflow_adapters_openenv.sessions import (
    AgentSessionFactory,
    IncompleteTraceError,
    TaskSessionFactory,
)
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_serve.security import HostPolicy, TokenVerifier, token_digest
from benchflow_serve.task_process import AccessGate
from benchflow_tool_sessions import SessionLimits
from guide_code import run_guide
from openenv.cli.commands.init import init
from openenv.core.env_server.http_server import create_app
from openenv.core.generic_client import GenericEnvClient
from openenv.core.harness import LoopOwningSession, TrainableSession
from openenv.core.harness.training import TrainingTrace
from scripted_llm import ScriptedLlm, WriteOneFile

HOME = Path.cwd()
TOKEN = "a-token-of-the-operator"


def serve(app: Any) -> int:
    """Serve an application on a thread; return its port."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
    threading.Thread(target=server.run, args=([bound],), daemon=True).start()
    return int(bound.getsockname()[1])


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


def play_server() -> dict[str, Any]:
    server = OpenEnvServer([HOME / "task"], jobs_dir=HOME / "jobs")
    verifier = TokenVerifier([token_digest(TOKEN)])
    gate = AccessGate(server.app, HostPolicy(["127.0.0.1"]), verifier=verifier)
    url = f"http://127.0.0.1:{serve(gate)}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with GenericEnvClient(base_url=url, headers=headers).sync() as env:
        first = env.reset(seed=1)
        wrong = env.step(call("nothing"))
        env.step(call("bash", command="echo hello, world > greeting.txt"))
        listed = env.step({"type": "list_tools"})
        state = env.state()
        last = env.step(call("submit", message="done"))
        after = "a step"
        try:
            env.step(call("bash", command="true"))
        except RuntimeError as error:
            after = str(error)
        again = env.reset()
    answers = {
        path: httpx.get(f"{url}/{path}", headers=headers, timeout=60).json()
        for path in ("health", "metadata", "schema", "state", "benchflow/splits")
    }
    tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answers["mcp"] = httpx.post(f"{url}/mcp", json=tools, headers=headers, timeout=60).json()
    answers["reset"] = httpx.post(f"{url}/reset", json={}, headers=headers, timeout=60).json()
    return {
        "url": url,
        "without_token": httpx.get(f"{url}/schema").status_code,
        "prompt": first.observation["prompt"],
        "wrong": wrong.observation["result"]["is_error"],
        "listed": [tool["name"] for tool in listed.observation["tools"]],
        "state": state,
        "last": [last.reward, last.done, last.metadata],
        "after": after,
        "again": again.observation["prompt"],
        "answers": answers,
    }


def play_guide() -> dict[str, Any]:
    """Run the code of the guide against a server whose sessions may be forked."""
    limits = SessionLimits(sessions=2)
    server = OpenEnvServer([HOME / "greet"], jobs_dir=HOME / "guide", limits=limits)
    url = f"http://127.0.0.1:{serve(server.app)}"
    code = run_guide("openenv.md", **{"http://127.0.0.1:8000": url})
    gone = httpx.post(
        f"{url}/benchflow/fork", json={"rollout": code["rollout"], "n": 2}, timeout=60
    )
    repeated = [fork_twice(url, server) for _ in range(2)]
    server.close()
    error = gone.json()["error"]
    return {
        "last": code["last"].reward,
        "rewards": code["rewards"],
        "gone": error["type"],
        "repeated": repeated,
    }


def fork_twice(url: str, server: OpenEnvServer) -> list[Any]:
    """Repeat a fork by its key; end the children. Return whether the replies are equal, and how
    many ids of children the server has then."""
    with GenericEnvClient(base_url=url).sync() as env:
        rollout = env.reset(task="greet").metadata["rollout"]
        body, key = {"rollout": rollout, "n": 2}, {"Idempotency-Key": rollout}
        first, again = (
            httpx.post(f"{url}/benchflow/fork", json=body, headers=key, timeout=60).json()
            for _ in range(2)
        )
    kept = len(server._children)
    for child in first["rollouts"]:
        server._opened().find(child).close()
    return [first == again, kept]


def play_session() -> dict[str, Any]:
    factory = TaskSessionFactory(jobs_dir=HOME / "jobs")
    session = factory.create(HOME / "task", episode_id="episode-1")
    messages = session.initial_messages()
    tools = [tool.name for tool in session.list_tools()]
    failed = session.call_tool("read_file", {"path": "/none"})
    arguments = {"path": "greeting.txt", "content": "hello, world\n"}
    session.call_tool("write_file", arguments)
    verdict = session.verify([*messages, {"role": "assistant", "content": "I wrote it."}])
    session.close()
    broken = factory.create(HOME / "broken")
    unscored = broken.verify([])
    factory.close()
    return {
        "messages": messages,
        "tools": tools,
        "failed": failed.error,
        "verdict": [verdict.env_reward, verdict.done, verdict.artifacts["rollout"]],
        "unscored": [unscored.env_reward, unscored.artifacts["unscored"]],
    }


def play_agent() -> dict[str, Any]:
    with ScriptedLlm(WriteOneFile("greeting.txt", "hello, world\n")) as llm:
        flags = {"agent": "policy", "base_url": f"{llm.url}/v1", "model": "scripted"}
        factory = AgentSessionFactory(
            run_config(**flags, upstream="vllm", capture_state="none"), jobs_dir=HOME / "jobs"
        )
        session = factory.create(HOME / "task", seed=7)
        assert isinstance(session, TrainableSession)
        assert not isinstance(session, LoopOwningSession)
        code = session.wait_for_completion(120)
        trace = session.fetch_training_trace()
        verdict = session.verify([])
        session.close()
        other = AgentSessionFactory(
            run_config(**flags, upstream="vllm", capture_state="none"),
            jobs_dir=HOME / "jobs",
            sampling={"temperature": 0.5},
        ).create(HOME / "task", seed=7, episode_id="second")
        other.wait_for_completion(120)
        first = [each.turns[0].request for each in (trace, other.fetch_training_trace())]
        other.close()
        inexact = AgentSessionFactory(
            run_config(**flags, upstream="openai", capture_state="none"), jobs_dir=HOME / "jobs"
        ).create(HOME / "task")
        inexact.wait_for_completion(120)
        refused = None
        try:
            inexact.fetch_training_trace()
        except IncompleteTraceError as error:
            refused = str(error)
        inexact.close()
    again = TrainingTrace.from_entries(trace.to_trace_entries())
    tokens = [
        [(t.node_id, t.prompt_token_ids, t.completion_token_ids, t.per_token_logps) for t in each]
        for each in (trace.turns, again.turns)
    ]
    return {
        "code": code,
        "turns": len(trace.turns),
        "trained": [sum(turn.loss_mask) == len(turn.completion_token_ids) for turn in trace.turns],
        "equal": tokens[0] == tokens[1],
        "reward": verdict.env_reward,
        "refused": refused,
        "seeds": len({request["seed"] for request in first}),
        "temperatures": [request.get("temperature") for request in first],
    }


def serve_stock() -> int:
    """Serve the environment that `openenv init` writes, for several sessions."""
    # Without uv, which would fetch packages, the command skips its lock file.
    os.environ["PATH"] = ""
    # The command ends by `typer.Exit`, or returns.
    with suppress(SystemExit):
        init("stock_env", str(HOME))
    sys.path.insert(0, str(HOME))
    from stock_env.models import StockAction, StockObservation  # noqa: PLC0415
    from stock_env.server.stock_env_environment import StockEnvironment  # noqa: PLC0415

    app = create_app(
        StockEnvironment, StockAction, StockObservation, env_name="stock", max_concurrent_envs=8
    )
    return serve(app)


def write_broken() -> None:
    (HOME / "broken/tests").mkdir(parents=True)
    for name in ("task.toml", "instruction.md"):
        (HOME / "broken" / name).write_text((HOME / "task" / name).read_text())
    (HOME / "broken/tests/test.sh").write_text("#!/bin/sh\nexit 1\n")


write_task(HOME / "task")
write_task(HOME / "greet")
write_broken()
report: dict[str, Any] = {"server": play_server(), "session": play_session(), "agent": play_agent()}
report["guide"] = play_guide()
report["port"] = serve_stock()
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
sys.stdin.read()
