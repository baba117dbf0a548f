# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN201, ARG002 - the signatures of verifiers
# pyright: basic, reportMissingImports=false
"""Tasksets of verifiers 0.4: each episode runs in verifiers' own environment and harness loop."""

import itertools
import json
import os
import secrets
import sys
import time
import types
from contextlib import AsyncExitStack
from typing import Any

import httpx
from aiohttp import web
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from .exchange import STOP, Exchange, UnsupportedError, Verdict
from .scoring import TraceScorer

_HARNESS = "benchflow_agent_harness"
_AGENT_SEC = 24 * 3600.0
"""Seconds that a model call waits for the agent, whose own limits are shorter."""
_LARGEST_REWARD = 1e6
_KEY = "BENCHFLOW_EXCHANGE_KEY"


_exchanges: dict[str, Exchange] = {}
"""The exchanges of the episodes that run, by the name of their model."""


class AgentHarness(Harness[HarnessConfig]):
    """The loop of verifiers' `null` harness, without a process of its own."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        """Let the model act until it answers without a tool call."""
        exchange = _exchanges[ctx.model]
        exchange.rollout = exchange.rollout or trace.id
        if exchange.rollout != trace.id:
            return ProgramResult(1, "", "the environment runs its agent more than once")
        system, prompt = self.resolve_prompt(data)
        messages = [] if not system else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(each) for each in prompt or ()]
        timeout = self.config.tool_timeout
        named = {name: {"url": url, "timeout": timeout} for name, url in mcp_urls.items()}
        headers = {"Authorization": f"Bearer {secret}"}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=_AGENT_SEC))
            tools, dispatch, servers = await connect_mcp({"mcpServers": named}, stack)
            while True:
                body = {"model": ctx.model, "messages": messages}
                if tools:
                    body["tools"] = tools
                answer = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if answer.status_code >= 400:
                    # A harness that ends well after a failed call has handled it: the user of the
                    # environment gets no answer, and the episode is scored as it is.
                    return ProgramResult(0 if exchange.is_stopped else 1, "", answer.text)
                message = answer.json()["choices"][0]["message"]
                messages.append({k: v for k, v in message.items() if v is not None})
                if not message.get("tool_calls"):
                    return ProgramResult(0, "", "")
                for call in message["tool_calls"]:
                    name, given = call["function"]["name"], call["function"]["arguments"]
                    content = await call_mcp(servers, dispatch, name, json.loads(given))
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": content}
                    )


class V1Worlds:
    """One taskset, and its episodes."""

    scores_groups = False

    def __init__(self, ident: str, arguments: dict[str, Any]) -> None:
        module = types.ModuleType(_HARNESS)
        vars(module).update(AgentHarness=AgentHarness, __all__=["AgentHarness"])
        sys.modules[_HARNESS] = module
        taskset = {"taskset": {"id": ident, **arguments}}
        role = _only_role(ident, resolve_env_config(taskset))
        agent = {"harness": {"id": _HARNESS}, "runtime": {"type": "subprocess"}}
        self._env = load_environment(resolve_env_config({**taskset, role: agent}))
        self.speaks = type(self._env).run is not SingleAgentEnv.run
        """Whether the environment has a user that answers the agent."""
        self._scorer = TraceScorer(self._env)
        self._stack = AsyncExitStack()
        self._url = ""

    def splits(self) -> dict[str, int | None]:
        """Return the one split of a taskset. Its size is not known before it was read."""
        if not self._env.taskset.bounded:
            return {"all": None}
        return {"all": sum(1 for _ in self._env.taskset)}

    def tasks(self, split: str | None, start: int, limit: int) -> list[dict[str, Any]]:
        """Return the data of tasks, with the text of the prompt."""
        if split not in {None, "all"}:
            raise ValueError(f"the taskset has no split {split!r}, but only 'all'")
        found = list(itertools.islice(iter(self._env.taskset), start, start + limit))
        for task in found:
            self._check(task)
        return [
            {
                "data": task.data.model_dump(mode="json", exclude_none=True),
                "prompt": task.data.prompt_text,
            }
            for task in found
        ]

    def _check(self, task) -> None:
        data = task.data
        wanted = {
            "NEEDS_CONTAINER": task.NEEDS_CONTAINER,
            "data.image": data.image,
            "data.agent_user": data.agent_user,
            "data.network_allow": data.network_allow != ["*"],
            "data.network_block": data.network_block,
            "data.skills": data.skills,
        }
        for field in filter(wanted.get, wanted):
            raise UnsupportedError(
                f"the task {data.id or data.idx!r} sets {field}, and a world runs on this machine"
                " without a container",
                f"task.{field}",
            )
        if data.prompt is None and not self.speaks:
            problem = f"the task {data.id or data.idx!r} has neither a prompt nor a user"
            raise UnsupportedError(problem, "task.data.prompt")

    def reward_range(self) -> tuple[float, float]:
        """Return the range of the reward if each function is between 0 and 1.

        An environment with code of its own may record any reward.
        """
        own = type(self._env)
        if own.run is not SingleAgentEnv.run or own.finalize is not SingleAgentEnv.finalize:
            return -_LARGEST_REWARD, _LARGEST_REWARD
        kind = type(self._env.taskset).task_type()
        weights = [
            getattr(each, "_vf_weight", 1.0)
            for each in (getattr(kind, name, None) for name in dir(kind))
            if getattr(each, "reward", False) is True
        ]
        low = sum(weight for weight in weights if weight < 0)
        return low, max(sum(weight for weight in weights if weight > 0), low + 1.0)

    async def run(self, data: dict[str, Any], exchange: Exchange, session: str) -> Verdict:
        """Run one episode as verifiers does, with the agent of the exchange as its model."""
        await self._serve()
        task = self._task(data)
        _exchanges[session] = exchange
        context = ModelContext(
            client=EvalClientConfig(base_url=self._url, api_key_var=_KEY),
            model=session,
            sampling=SamplingConfig(),
        )
        try:
            episode = await self._env.run_episode(task, context)
        finally:
            del _exchanges[session]
        errors = [*episode.errors, *(error for t in episode.traces for error in t.errors)]
        if not episode.ok or len(episode.traces) != 1:
            return Verdict(error=errors[-1].message[-2000:] if errors else "the episode failed")
        [trace] = episode.traces
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing:
            return Verdict(error=f"the reward function {missing[0]!r} did not run")
        parts = {name: float(reward.score) for name, reward in trace.rewards.items()}
        numbers = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return Verdict(reward=float(trace.reward), parts={**numbers, **parts})

    async def score_group(self, *_: object) -> list[Verdict]:
        """Refuse: this version scores each episode alone."""
        raise UnsupportedError("verifiers 0.4 scores each episode alone", "taskset")

    async def score(
        self, data: dict[str, Any] | None, digest: str | None, messages: list[dict[str, Any]]
    ) -> Verdict:
        """Score messages by the rewards of a task, which `data` or its hash names.

        Both must name the same task, if both are given.
        """
        found = self._scorer.find(digest or "") if data is None else self._task(data)
        if found is None:
            return Verdict(error=f"the taskset does not have the task with the hash {digest}")
        self._scorer.check(found)
        if digest and found.hash != digest:
            return Verdict(error=f"the trace is of the task {digest}, and not of {found.hash}")
        return await self._scorer.score(found, messages)

    def _task(self, data: dict[str, Any]) -> Any:  # noqa: ANN401 - a class of verifiers
        kind = type(self._env.taskset).task_type()
        return kind(kind.data_type().model_validate(data), self._env.config.taskset.task)

    async def _serve(self) -> None:
        """Start the model endpoint of the exchanges, and what all episodes share."""
        if self._url:
            return
        os.environ[_KEY] = key = secrets.token_urlsafe(32)

        async def complete(request: web.Request) -> web.Response:
            body = await request.json()
            exchange = _exchanges.get(body.get("model"))
            if request.headers.get("Authorization") != f"Bearer {key}" or exchange is None:
                return web.Response(status=401)
            tools = [each["function"] for each in body.get("tools") or ()]
            action = await exchange.ask(body["messages"], tools)
            if action == STOP:
                return web.Response(status=400, text="the agent has ended")
            return web.json_response(_completion(body["model"], action, len(body["messages"])))

        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await self._stack.enter_async_context(self._env.serving())
        host, port = runner.addresses[0][:2]
        self._url = f"http://{host}:{port}/v1"

    async def aclose(self) -> None:
        """Stop the endpoint and the shared servers."""
        await self._stack.aclose()


def _only_role(ident: str, config: Any) -> str:  # noqa: ANN401 - a class of verifiers
    """Return the name of the agent of an environment."""
    roles = list(agent_config_fields(config))
    if len(roles) != 1:
        raise UnsupportedError(
            f"the environment of {ident!r} has the agents {', '.join(roles)}, and BenchFlow runs"
            " one agent in it",
            f"env.{roles[-1]}",
        )
    [role] = roles
    return role


def _completion(model: str, action: dict[str, Any], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": action.get("content", "")}
    if "tool" in action:
        function = {"name": action["tool"], "arguments": json.dumps(action["arguments"])}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    reason = "tool_calls" if "tool" in action else "stop"
    return {
        "id": f"agent-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
