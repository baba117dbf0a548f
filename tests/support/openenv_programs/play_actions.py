"""Play tool calls by OpenEnv's generic client: `play_actions.py URL ACTIONS`. Prints the reward."""

# pyright: basic, reportMissingImports=false

import json
import sys

from openenv.core.generic_client import GenericEnvClient


def main() -> None:
    url, actions = sys.argv[1], json.loads(sys.argv[2])
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset(seed=0)
        for name, arguments in actions:
            call = {"type": "call_tool", "tool_name": name, "arguments": arguments}
            last = env.step(call)
    assert last.done
    sys.stdout.write(json.dumps(last.reward) + "\n")


main()
