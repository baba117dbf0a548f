# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Run one rollout of an environment of verifiers 0.3 as verifiers does; print its reward.

`python run_alone.py ENV INDEX URL`: the model is at URL.
"""

import asyncio
import json
import os
import sys

import verifiers as vf

ident, index, url = sys.argv[1:]
os.environ["KEY"] = "none"
env = vf.load_environment(ident)
client = vf.ClientConfig(api_base_url=url, api_key_var="KEY")
output = asyncio.run(env.run_rollout(env.get_dataset()[int(index)], client, "scripted", {}))
print(json.dumps({"reward": output["reward"], "metrics": output["metrics"]}))
