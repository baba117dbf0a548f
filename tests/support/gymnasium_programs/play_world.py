"""Play an episode of a Gymnasium environment in a rollout by fixed actions, with forks.

Arguments: the environment's id, the seed, the options as JSON, the actions as JSON, and where the
rollouts are recorded. Prints the record as JSON.
"""

# pyright: basic, reportMissingImports=false

import asyncio
import json
import sys
from pathlib import Path

from benchflow_adapters_gymnasium.tasks import episode_task
from benchflow_engine.data_tasks import write_data_task
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse


def main() -> None:
    env_id, seed, options, actions, home = sys.argv[1:]
    moves = json.loads(actions)

    def act(request: ModelRequest) -> ModelReply:
        done = len(request.tool_results)
        if done == len(moves):
            return ModelReply(text="Done.")
        return ModelReply(tools=(ToolUse("mcp__world__step", {"action": moves[done]}),))

    task = write_data_task(episode_task(env_id, int(seed), **json.loads(options)), Path(home))
    with ScriptedLlm(act) as llm:
        config = run_config(
            agent="policy",
            base_url=f"{llm.url}/v1",
            model="scripted",
            branch="group",
            branch_at_call=2,
            branch_n=2,
            capture_state="none",
        )
        result = asyncio.run(run(task, config=config, jobs_dir=home))
    leaves = [
        {
            "reward": leaf.reward,
            "events": [(event.value, event.step_id) for event in leaf.results["reward"].events],
            "steps": [step.id for step in leaf.steps],
            "texts": [seen.content for step in leaf.steps for seen in step.observations],
            "error": leaf.results["reward"].error,
        }
        for leaf in result.tree.leaves
    ]
    prompt = next(node.step.prompt for node in result.tree.nodes if node.step is not None)
    sys.stdout.write(
        json.dumps({"leaves": leaves, "prompt": prompt, "status": result.record.status}) + "\n"
    )


main()
