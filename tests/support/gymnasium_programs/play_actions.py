"""Play scripts by `gymnasium.make`, and again in the world of a rollout.

Arguments: the directory of the task, the scripts, and where the rollouts are recorded. A script is
a list of tool calls. Prints the rewards of both.
"""

# pyright: basic, reportMissingImports=false

import asyncio
import json
import sys
from pathlib import Path

import gymnasium
from benchflow_adapters_gymnasium.envs import ENV_ID
from benchflow_adapters_gymnasium.tasks import episode_task
from benchflow_engine.data_tasks import write_data_task
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

TASK, HOME = Path(sys.argv[1]), Path(sys.argv[3])
SCRIPTS = [
    [json.dumps({"name": name, "arguments": given}) for name, given in script]
    for script in json.loads(sys.argv[2])
]
SERVED = "BenchFlow/Served-v0"


def play(actions: list[str]) -> float:
    """Return the reward that Gymnasium's own loop gets."""
    env = gymnasium.make(ENV_ID, tasks=TASK, jobs_dir=HOME / "jobs")
    env.reset(seed=1)
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
    env.close()
    assert terminated
    assert not truncated
    return float(reward)


def consume(actions: list[str], home: Path) -> float | None:
    """Return the reward of a rollout whose world is the environment."""

    def act(request: ModelRequest) -> ModelReply:
        done = len(request.tool_results)
        if done == len(actions):
            return ModelReply(text="Done.")
        return ModelReply(tools=(ToolUse("mcp__world__step", {"action": actions[done]}),))

    task = write_data_task(episode_task(SERVED, 1), home)
    with ScriptedLlm(act) as llm:
        config = run_config(
            agent="policy", base_url=f"{llm.url}/v1", model="scripted", capture_state="none"
        )
        return asyncio.run(run(task, config=config, jobs_dir=home)).reward


# A task names an id and no path, so the operator registers the environment of a task.
gymnasium.register(
    id=SERVED,
    entry_point="benchflow_adapters_gymnasium.envs:BenchFlowEnv",
    kwargs={"tasks": TASK, "jobs_dir": HOME / "jobs"},
    nondeterministic=True,
)
rewards = [
    [play(each) for each in SCRIPTS],
    [consume(each, HOME / f"outer-{number}") for number, each in enumerate(SCRIPTS)],
]
sys.stdout.write(json.dumps(rewards) + "\n")
