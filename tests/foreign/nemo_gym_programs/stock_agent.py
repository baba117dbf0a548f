"""A stock agent of NeMo Gym, mini-swe-agent 2, works in a sandbox that a configuration names."""

import json
import sys

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output
from nemo_gym.sandbox import resolve_provider_config

CONFIG = json.loads(sys.argv[1])
COMMANDS = (
    "git init -q . && printf 'one\\n' > a.txt && git add a.txt",
    "printf 'two\\n' >> a.txt && cat a.txt",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff",
)

environment = get_environment(
    {
        "environment_class": "responses_api_agents.mini_swe_agent_2.sandbox_environment"
        ".MiniSWESandboxEnvironment",
        "image": "host",
        "cwd": "/testbed",
        "provider": resolve_provider_config("sandbox", {"sandbox": CONFIG}),
        "spec": {"ttl_s": 300, "provider_options": {"user": "root"}},
        "instance_id": "instance-1",
    }
)
try:
    model = DeterministicModel(outputs=[make_output("", [{"command": each}]) for each in COMMANDS])
    agent = DefaultAgent(
        model, environment, system_template="You work.", instance_template="{{task}}"
    )
    result = agent.run("Change a.txt")
finally:
    environment.cleanup()
print(json.dumps({"result": result, "observations": [m["content"] for m in agent.messages]}))
