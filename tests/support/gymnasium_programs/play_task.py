"""Play tasks of BenchFlow through `gymnasium.make`, in all ways that a user has. Prints JSON."""

# pyright: basic, reportMissingImports=false

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
from benchflow_adapters_gymnasium.envs import ENV_ID, UnscoredError, submit
from benchflow_engine.scaffold import write_task
from benchflow_tool_sessions import SessionEndedError
from guide_code import run_guide
from gymnasium.utils.env_checker import check_env
from session_parts import config as quick_config

HOME = Path.cwd()
RIGHT = "hello, world\n"
GREET = {"name": "bash", "arguments": {"command": "echo hello, world > greeting.txt"}}


def make(**more: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(ENV_ID, tasks=str(HOME / "task"), jobs_dir=HOME / "jobs", **more)


def play_one() -> dict[str, Any]:
    env = make(render_mode="ansi")
    prompt, info = env.reset(seed=1)
    steps = [env.step(action) for action in ("[", {"name": "nothing"}, json.dumps(GREET))]
    shown = env.render()
    last = env.step(submit("done"))
    try:
        env.step(submit())
        after = "a step"
    except (SessionEndedError, gymnasium.error.ResetNeeded) as error:
        after = type(error).__name__
    env.close()
    tools = [tool["name"] for tool in info["tools"]]
    return {
        "prompt": prompt, "tools": tools, "rollout": info["rollout"], "shown": shown,
        "steps": steps, "last": last, "after": after,
    }  # fmt: skip


def play_to_the_limit() -> Any:
    env = make(max_calls=2)
    env.reset()
    env.step(GREET)
    ended = env.step(GREET)
    env.close()
    return ended


def play_without_a_verdict() -> dict[str, Any]:
    (HOME / "broken/tests").mkdir(parents=True)
    for name in ("task.toml", "instruction.md"):
        (HOME / "broken" / name).write_text((HOME / "task" / name).read_text())
    (HOME / "broken/tests/test.sh").write_text("#!/bin/sh\nexit 1\n")
    raising = gymnasium.make(ENV_ID, tasks=str(HOME / "broken"))
    raising.reset()
    try:
        raising.step(submit())
        error = None
    except UnscoredError as raised:
        error = str(raised)
    raising.close()
    counting = gymnasium.make(ENV_ID, tasks=str(HOME / "broken"), unscored="nan")
    counting.reset()
    _, reward, terminated, truncated, info = counting.step(submit())
    counting.close()
    ending = [str(reward), terminated, truncated, info["scored"], info["unscored"]]
    return {"error": error, "ending": ending}


def check() -> list[str]:
    env = gymnasium.make(ENV_ID, tasks=str(HOME / "task"), config=quick_config())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check_env(env.unwrapped)
    env.close()
    return [str(each.message) for each in seen]


def in_processes(count: int) -> Any:
    # Gymnasium's shared memory knows only the characters of `spaces.Text`.
    return gymnasium.vector.AsyncVectorEnv([make] * count, shared_memory=False)


def play_vector(vector: Any, texts: Sequence[str]) -> Any:
    prompts, _ = vector.reset(seed=3)
    actions = [
        json.dumps({"name": "write_file", "arguments": {"path": "greeting.txt", "content": text}})
        for text in texts
    ]
    vector.step(tuple(actions))
    _, rewards, terminated, truncated, _ = vector.step((submit(),) * len(texts))
    vector.close()
    return [len(prompts), rewards.tolist(), terminated.tolist(), truncated.tolist()]


def fork_one() -> list[Any]:
    env = make(max_sessions=3).unwrapped
    env.reset()
    right, wrong, closed = env.fork(3)  # type: ignore[attr-defined]
    right.step(GREET)
    ends = [each.step(submit())[1:4] for each in (wrong, right)]
    closed.close()
    env.close()
    return ends


def choose_tasks() -> list[str]:
    write_task(HOME / "other")
    both = [str(HOME / "task"), str(HOME / "other")]
    env = gymnasium.make(ENV_ID, tasks=both, config=quick_config())
    chosen = [env.reset(seed=seed)[1]["task"] for seed in (1, 2, 3, 4, 1, 2, 3, 4)]
    named = env.reset(options={"task": "other"})[1]["task"]
    env.close()
    return [*chosen, named]


write_task(HOME / "task")
write_task(HOME / "greet")
guide = run_guide("gymnasium.md")
result = {
    "one": play_one(),
    "limit": play_to_the_limit(),
    "unscored": play_without_a_verdict(),
    "warnings": check(),
    "three": play_vector(gymnasium.vector.SyncVectorEnv([make] * 3), [RIGHT, "no", RIGHT]),
    "processes": play_vector(in_processes(2), [RIGHT, "no"]),
    "forked": fork_one(),
    "chosen": choose_tasks(),
    "guide": [guide["reward"], guide["rewards"]],
}
sys.stdout.write(json.dumps(result) + "\n")
