"""A task of BenchFlow as a `gymnasium.Env`: an action is a tool call, an observation its text.

Importing this module registers the id `benchflow/Task-v0`.
"""

# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from benchflow_contracts import BenchFlowError, Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import (
    SUBMIT,
    BlockingSession,
    BlockingSessions,
    Outcome,
    SessionLimits,
)

from .spaces import AnyText, ToolCallText

ENV_ID = "benchflow/Task-v0"
_ACTION_CHARS = 4 * 1024 * 1024
_SPARE_CHARS = 4096


class UnscoredError(BenchFlowError):
    """An episode has ended without a reward. It must not count as 0."""

    boundary = "reward"
    default_hint = 'make the environment with unscored="nan" to get `info["scored"]` instead'


class BenchFlowEnv(gymnasium.Env):
    """One task, or several of which the seed chooses one.

    An action is a tool call: `{"name": ..., "arguments": {...}}`, as JSON text or as a mapping. An
    observation is the text of the result, and the prompt after `reset`. The reward is 0.0 until the
    verdict. `terminated` is set by the verdict after `submit`, and `truncated` by a limit; the work
    until the limit is graded, too. A wrong action is an observation with `info["is_error"]`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}

    def __init__(
        self,
        tasks: str | Path | Task | Sequence[str | Path | Task],
        *,
        config: RunConfig | None = None,
        jobs_dir: str | Path | None = None,
        max_calls: int | None = None,
        max_sessions: int = 1,
        unscored: str = "raise",
        output_chars: int = 30_000,
        render_mode: str | None = None,
    ) -> None:
        """Read the tasks. Nothing is started before `reset`.

        Args:
            tasks: A task or its directory, or several.
            config: As for `benchflow.run`; its agent is replaced.
            jobs_dir: Where the rollouts are recorded.
            max_calls: The calls of an episode before it is truncated.
            max_sessions: The environments that one episode may have by `fork`.
            unscored: `raise` an `UnscoredError` for an episode without a verdict, or give it the
                reward `nan` and `info["scored"] = False`.
            output_chars: The characters of a result.
            render_mode: `ansi`: `render` returns the last action and observation as text.
        """
        if unscored not in {"raise", "nan"}:
            raise UsageError(f"unscored is {unscored!r}", hint="use 'raise' or 'nan'")
        self._config = config or RunConfig()
        options = self._config.adapter_options()
        several = [tasks] if isinstance(tasks, str | Path | Task) else list(tasks)
        self._tasks = [
            each if isinstance(each, Task) else runnable_task(each, options) for each in several
        ]
        if not self._tasks:
            raise UsageError("an environment without a task has no episode")
        self._jobs_dir = None if jobs_dir is None else Path(jobs_dir)
        self._limits = SessionLimits(
            calls=max_calls, output_chars=output_chars, sessions=max_sessions
        )
        self._unscored = unscored
        longest = max(len(task.instruction) for task in self._tasks)
        self.observation_space = AnyText(max(longest, output_chars) + _SPARE_CHARS, min_length=0)
        self.action_space = ToolCallText(_ACTION_CHARS, min_length=0)
        self.render_mode = render_mode
        self._sessions: BlockingSessions | None = None
        self._owns_sessions = True
        self._session: BlockingSession | None = None
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode. Return the prompt, and `info` with the tools and the rollout's id.

        The task is chosen by the seed, or by its id in `options["task"]`.
        """
        super().reset(seed=seed)
        self._end_session()
        if self._sessions is None:
            self._sessions = BlockingSessions(
                self._config, jobs_dir=self._jobs_dir, limits=self._limits
            )
        session = self._session = self._sessions.open(self._choose(options))
        tools = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)}
            for t in session.tools()
        ]
        self._shown = session.prompt
        info = {"task": session.session.task.id, "rollout": session.id, "tools": tools}
        return session.prompt, info

    def step(self, action: object) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make a tool call; see the class for the result.

        Raises:
            UnscoredError: The episode has ended without a verdict, and `unscored` is `raise`.
            SessionEndedError: The episode has ended before this step.
        """
        session = self._session
        if session is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        call = _call_of(action)
        if isinstance(call, str):
            return self._observe(action, call), 0.0, False, False, {"is_error": True}
        result = session.call(*call)
        observation = self._observe(action, result.text)
        info: dict[str, Any] = {"is_error": result.is_error, "output_truncated": result.truncated}
        if not result.finished:
            return observation, 0.0, False, False, info
        outcome = session.outcome()
        return (observation, *self._ending(outcome, info))

    def fork(self, n: int) -> "list[BenchFlowEnv]":
        """Return `n` environments that continue the episode from here, each with its own end.

        This environment needs `reset` then. The record is one tree with a leaf for each. Close this
        environment after its forks: their sandboxes end with it. `reset` of a fork begins an
        episode of its own.

        Raises:
            ResetNeeded: The environment has no episode.
            UsageError: `max_sessions` allows no fork.
        """
        session = self._session
        if session is None:
            raise gymnasium.error.ResetNeeded("call reset() before fork()")
        children = session.fork(n)
        self._session = None
        return [self._fork(child) for child in children]

    def _fork(self, session: BlockingSession) -> "BenchFlowEnv":
        env = copy.copy(self)
        env._session, env._owns_sessions = session, False  # noqa: SLF001 - of the same class
        return env

    def render(self) -> str | None:
        """Return the last action and observation."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the episode and delete its sandbox. Idempotent."""
        if self._sessions is not None and self._owns_sessions:
            self._sessions.close()
            self._sessions = self._session = None
        self._end_session()

    def _choose(self, options: dict[str, Any] | None) -> Task:
        wanted = (options or {}).get("task")
        if wanted is None:
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        for task in self._tasks:
            if task.id == wanted:
                return task
        ids = ", ".join(task.id for task in self._tasks)
        raise UsageError(f"the environment has no task {wanted!r}", hint=f"its tasks are {ids}")

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _observe(self, action: object, text: str) -> str:
        self._shown = f"{action}\n\n{text}"
        return text[: self.observation_space.max_length]

    def _ending(
        self, outcome: Outcome, info: dict[str, Any]
    ) -> tuple[float, bool, bool, dict[str, Any]]:
        self._end_session()
        info |= {"scored": outcome.reward is not None, "items": dict(outcome.items)}
        if outcome.ended_early is not None:
            info["ended_early"] = outcome.ended_early
        reward = outcome.reward
        if reward is None:
            if self._unscored == "raise":
                raise UnscoredError(f"the episode has no reward: {outcome.unscored}")
            reward, info["unscored"] = float("nan"), outcome.unscored
        return float(reward), not outcome.truncated, outcome.truncated, info


def _call_of(action: object) -> tuple[str, Mapping[str, Any]] | str:
    """Return the name and the arguments of a call, or why the action is not a call."""
    if isinstance(action, str):
        try:
            action = json.loads(action)
        except (ValueError, RecursionError) as error:
            return f"the action is not JSON: {error!s:.200}"
    if not isinstance(action, Mapping) or not isinstance(action.get("name"), str):
        return 'an action is {"name": TOOL, "arguments": {...}}'
    arguments = action.get("arguments", {})
    if not isinstance(arguments, Mapping) or set(action) - {"name", "arguments"}:
        return 'an action is {"name": TOOL, "arguments": {...}}'
    return action["name"], arguments


def submit(message: str = "") -> str:
    """Return the action that ends an episode."""
    return json.dumps({"name": SUBMIT, "arguments": {"message": message}})


if ENV_ID not in gymnasium.registry:
    gymnasium.register(id=ENV_ID, entry_point=f"{__name__}:BenchFlowEnv", nondeterministic=True)
