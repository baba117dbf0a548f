# mypy: ignore-errors
# ruff: noqa: ANN001
# pyright: basic, reportMissingImports=false
"""The rewards of a task of verifiers 0.4 over a trace that ended elsewhere."""

import inspect
from typing import Any

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.state import State, state_cls
from verifiers.v1.task import Task
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

from .exchange import UnsupportedError, Verdict

_HOOKS = ("setup", "finalize", "stage_verifier")
_MOST_TASKS = 100_000
"""Tasks of a taskset that are searched for one that is named by its hash."""


class TraceScorer:
    """Scores traces by the rewards of the tasks of one environment."""

    def __init__(self, env) -> None:
        self._env = env
        self._tasks: dict[str, Task] | None = None

    def find(self, digest: str) -> Task | None:
        """Return the task of the taskset whose content has this hash."""
        if self._tasks is None:
            tasks = self._env.taskset.take(_MOST_TASKS)
            self._tasks = {task.hash: task for task in tasks}
        return self._tasks.get(digest)

    def check(self, task: Task) -> None:
        """Refuse a task whose rewards would silently differ from those of a live episode.

        Raises:
            UnsupportedError: A reward needs more than the messages.
        """
        _check(self._env, task)

    async def score(self, task: Task, messages: list[dict[str, Any]]) -> Verdict:
        """Return the verdict about messages, as `Task.score` without a sandbox gives it."""
        trace = _trace(task, messages)
        await task.score(trace)
        if missing := [name for name, reward in trace.rewards.items() if reward is None]:
            return Verdict(error=f"the reward function {missing[0]!r} did not run")
        if not trace.rewards:
            return Verdict(error="the task has no reward function")
        parts = {name: float(reward.score) for name, reward in trace.rewards.items()}
        numbers = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return Verdict(reward=float(trace.reward), parts={**numbers, **parts})


def _trace(task: Task, messages: list[dict[str, Any]]) -> Trace:
    """Return a trace of one branch. The model has said the messages of the assistant."""
    nodes = [
        {
            "parent": at - 1 if at else None,
            "message": message,
            "sampled": message["role"] == "assistant",
        }
        for at, message in enumerate(messages)
    ]
    seen = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = AgentInfo(config=WireAgentConfig.model_validate({"harness": {"id": "benchflow"}}))
    trace = Trace[type(task).data_type(), State, WireAgentConfig](
        task=seen, agent=agent, nodes=nodes, ok=True
    )
    trace.stop("agent_completed")
    return trace


def _check(env, task: Task) -> None:
    kind = type(task)
    if state_cls(kind) is not State:
        _refuse("the state of a live episode, and an ended trace has none", "task.state")
    for name in _HOOKS:
        if getattr(kind, name) is not getattr(Task, name):
            _refuse(f"what {name!r} of the task does in a sandbox", f"task.{name}")
    own = type(env)
    for name in ("run", "finalize"):
        if getattr(own, name) is not getattr(SingleAgentEnv, name):
            _refuse(f"what {name!r} of the environment records", f"env.{name}")
    judges = {judge.reward_name: judge.score for judge in task.plugged_judges()}
    functions = {fn.__name__: fn for fn in task.hooks("reward")} | judges
    for name, function in functions.items():
        runtime = inspect.signature(function).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            _refuse(f"the sandbox of the episode, in {name!r}", f"task.{name}")


def _refuse(need: str, field: str) -> None:
    raise UnsupportedError(f"the rewards need {need}", field)
