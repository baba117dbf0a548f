"""An episode of a Gymnasium environment as the world of a rollout: `[environment] provider`.

The agent acts by the tool `step`. The return is the sum of the rewards. A fork repeats the actions
in another episode with the same seed.
"""

# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
from benchflow_contracts import EnvironmentFactory, Model, Task, TaskError
from benchflow_env_outside import WorldAnswer, WorldTool, outside_environment, read_options
from gymnasium import spaces
from pydantic import Field

NAME = "gymnasium"
_T = TypeVar("_T")
_MOST_NUMBERS = 4096
"""A larger array is described and not written out."""
_SAFE_TEXT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class GymnasiumSettings(Model):
    """`[environment.options]` of a task."""

    id: str
    """The id of a registered environment. A module to import, as in `module:Env-v0`, is refused."""
    kwargs: Mapping[str, bool | int | float | str] = {}
    """Arguments of `gymnasium.make`. A text is a short word: a task does not choose paths here."""
    max_episode_steps: int | None = Field(default=None, gt=0)
    """Steps before the episode is truncated; `None`: as the environment is registered."""
    num_envs: int | None = Field(default=None, gt=0, le=64)
    """Copies in a `VectorEnv`. An action has a part for each copy, and the episode ends when each
    copy has ended once. `None`: one environment."""


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a task.

    Raises:
        TaskError: The settings are malformed, or the id is not registered here.
    """
    del manifest
    settings = _settings_of(task)
    spec = gymnasium.spec(settings.id)
    return outside_environment(
        task,
        NAME,
        lambda: GymnasiumClient(settings),
        snapshots="none" if spec.nondeterministic else "replay",
    )


def _settings_of(task: Task) -> GymnasiumSettings:
    settings = read_options(
        GymnasiumSettings, task, hint='write [environment.options] with id = "CartPole-v1"'
    )
    for name, value in settings.kwargs.items():
        if isinstance(value, str) and not _SAFE_TEXT.fullmatch(value):
            raise TaskError(f"task {task.id!r}: kwargs.{name} is not a short word: {value!r:.80}")
    if settings.id not in gymnasium.registry:
        raise TaskError(
            f"task {task.id!r}: the environment {settings.id!r:.80} is not registered",
            hint="install and import the package that registers it, and write the full id",
        )
    return settings


class GymnasiumClient:
    """One episode. All calls of the environment run on one thread of its own."""

    def __init__(self, settings: GymnasiumSettings) -> None:
        self._settings = settings
        self._env: gymnasium.Env[Any, Any] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gymnasium")

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        """Make the environment, and reset it with the seed."""
        del task
        return await self._run(partial(self._open, seed))

    async def tools(self) -> Sequence[WorldTool]:
        """Return the tool `step`."""
        space = self._opened.action_space
        schema = {
            "type": "object",
            "properties": {"action": schema_of(space)},
            "required": ["action"],
        }
        return [WorldTool("step", f"Take one action in the environment: {space}.", schema)]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        """Take an action."""
        del name
        if "action" not in arguments:
            return WorldAnswer("`action` is missing", failed=True)
        try:
            action = action_of(self._opened.action_space, arguments["action"])
        except ActionError as error:
            return WorldAnswer(str(error), failed=True)
        return await self._run(partial(self._step, action))

    async def close(self) -> None:
        """Close the environment. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            await self._run(env.close)
        self._thread.shutdown(wait=False)

    @property
    def _opened(self) -> "gymnasium.Env[Any, Any]":
        assert self._env is not None, "the world opens its client first"
        return self._env

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self, seed: int) -> WorldAnswer:
        settings = self._settings
        more: dict[str, Any] = {}
        if settings.max_episode_steps is not None:
            more["max_episode_steps"] = settings.max_episode_steps
        if settings.num_envs is None:
            env, copies = gymnasium.make(settings.id, **more, **settings.kwargs), ""
        else:
            copies = f"{settings.num_envs} copies of "
            env = FirstEpisodes(
                gymnasium.make_vec(settings.id, settings.num_envs, **more, **settings.kwargs)
            )
        self._env = env
        observation, _ = env.reset(seed=seed)
        return WorldAnswer(
            f"You act in {copies}the Gymnasium environment {settings.id} by the tool `step`.\n"
            f"Actions: {env.action_space}. Observations: {env.observation_space}.\n"
            f"Collect as much reward as you can until the episode ends.\n"
            f"Observation: {text_of(env.observation_space, observation)}"
        )

    def _step(self, action: object) -> WorldAnswer:
        env = self._opened
        observation, reward, terminated, truncated, _ = env.step(action)
        end = ", ".join(
            word for word, is_so in (("terminated", terminated), ("truncated", truncated)) if is_so
        )
        text = f"Observation: {text_of(env.observation_space, observation)}\nReward: {reward:g}"
        return WorldAnswer(
            f"{text}\nThe episode has ended: {end}." if end else text,
            reward=float(reward),
            parts={"terminated": float(terminated), "truncated": float(truncated)} if end else {},
            finished=bool(terminated or truncated),
        )


class FirstEpisodes(gymnasium.Env[Any, Any]):
    """The first episode of each copy in a `VectorEnv`, as one episode.

    The reward is the sum over the copies that have not ended. The vector resets a copy that has
    ended; its later rewards do not count.
    """

    def __init__(self, vector: "gymnasium.vector.VectorEnv[Any, Any, Any]") -> None:
        self._vector = vector
        self.action_space, self.observation_space = vector.action_space, vector.observation_space
        self._ended = np.zeros(vector.num_envs, dtype=bool)
        self._was_truncated = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies. Copy n has the seed plus n."""
        self._ended[:] = False
        self._was_truncated = False
        observation, info = self._vector.reset(seed=seed, options=options)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - the signature of Gymnasium
        """Step all copies. The end is truncated if a copy was truncated."""
        observation, rewards, terminated, truncated, info = self._vector.step(action)
        reward = float(rewards[~self._ended].sum())
        self._was_truncated |= bool((truncated & ~self._ended).any())
        self._ended |= terminated | truncated
        done, was_truncated = bool(self._ended.all()), self._was_truncated
        return observation, reward, done and not was_truncated, done and was_truncated, info

    def close(self) -> None:
        """Close all copies."""
        self._vector.close()


class ActionError(Exception):
    """A JSON value is not an action of the space."""


def action_of(space: "spaces.Space[Any]", value: object) -> object:
    """Return the action that `value` is in the form of `Space.to_jsonable`.

    Raises:
        ActionError: The value is not in the space.
    """
    _expect_whole_numbers(space, value)
    try:
        (action,) = space.from_jsonable([value])
        if space.contains(action):
            return action
    except Exception as error:
        raise ActionError(f"the action is not in {space}: {error!s:.200}") from error
    raise ActionError(f"the action is not in {space}")


def _expect_whole_numbers(space: "spaces.Space[Any]", value: object) -> None:
    """Refuse numbers that a space of integers would round."""
    if isinstance(value, list):
        for each in value:
            _expect_whole_numbers(space, each)
        return
    is_whole = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    if is_whole and (isinstance(value, bool) or not isinstance(value, int)):
        raise ActionError(f"the action is not in {space}: it needs integers")


def schema_of(space: "spaces.Space[Any]") -> dict[str, Any]:
    """Return a JSON schema of the actions of a space, as narrow as the space is simple."""
    match space:
        case spaces.Discrete():
            first = int(space.start)
            return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}
        case spaces.Text():
            return {"type": "string"}
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return {"type": "array", "description": str(space)}
        case spaces.Dict():
            names = list(space.spaces)
            inner = {name: schema_of(each) for name, each in space.spaces.items()}
            return {"type": "object", "properties": inner, "required": names}
        case _:
            return {"description": str(space)}


def text_of(space: "spaces.Space[Any]", observation: object) -> str:
    """Return an observation as JSON. A large array is described."""
    if isinstance(observation, np.ndarray) and observation.size > _MOST_NUMBERS:
        low, high = observation.min(), observation.max()
        return f"array of shape {observation.shape}, {observation.dtype}, from {low} to {high}"
    try:
        jsonable = space.to_jsonable([observation])
        value = jsonable[0] if isinstance(jsonable, list) else jsonable
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError):
        return str(observation)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
