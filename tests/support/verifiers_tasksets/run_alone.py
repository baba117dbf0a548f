# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Run rollouts of an environment of verifiers 0.3 as verifiers does; print their rewards.

`python run_alone.py ENV INDEX URL [COUNT ARGUMENTS]`: the model is at URL. With a COUNT, the
rollouts are a group.
"""

import asyncio
import json
import os
import sys

import verifiers as vf

ident, index, url = sys.argv[1:4]
count, arguments = sys.argv[4:] or ("1", "{}")
os.environ["KEY"] = "none"
env = vf.load_environment(ident, **json.loads(arguments))
client = vf.ClientConfig(api_base_url=url, api_key_var="KEY")
row = env.get_dataset()[int(index)]
if len(sys.argv) == 4:
    outputs = [asyncio.run(env.run_rollout(row, client, "scripted", {}))]
else:
    outputs = asyncio.run(env.run_group([row] * int(count), client, "scripted", {}))
print(json.dumps([{"reward": each["reward"], "metrics": each["metrics"]} for each in outputs]))
