"""Play scripts by OpenEnv's generic client: `play_actions.py URL SCRIPTS`. Prints the rewards.

A script is a list of tool calls, each a name and its arguments.
"""

# pyright: basic, reportMissingImports=false

import json
import sys

from openenv.core.generic_client import GenericEnvClient


def main() -> None:
    url, scripts = sys.argv[1], json.loads(sys.argv[2])
    rewards = []
    with GenericEnvClient(base_url=url).sync() as env:
        for actions in scripts:
            env.reset(seed=0)
            for name, arguments in actions:
                call = {"type": "call_tool", "tool_name": name, "arguments": arguments}
                last = env.step(call)
            assert last.done
            rewards.append(last.reward)
    sys.stdout.write(json.dumps(rewards) + "\n")


main()
