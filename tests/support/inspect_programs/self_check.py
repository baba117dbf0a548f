"""Run Inspect's own checks of a sandbox provider on ours: `self_check.py CONFIG...`.

Print a JSON object: the outcome of each check, `passed` or the failure.
"""

import asyncio
import json
import sys

from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv


async def main(config: BenchflowSandboxConfig) -> dict[str, str]:
    provider = registry_find_sandboxenv("benchflow")
    await provider.task_init("self-check", config)
    environments = await provider.sample_init("self-check", config, {})
    outcomes = {}
    try:
        for name in self_check.__all__:
            try:
                await getattr(self_check, name)(environments["default"])
                outcomes[name] = "passed"
            except (Exception, AssertionError) as error:
                outcomes[name] = f"{type(error).__name__}: {error}"[:400]
    finally:
        await provider.sample_cleanup("self-check", config, environments, False)
        await provider.task_cleanup("self-check", config, True)
    return outcomes


print(json.dumps(asyncio.run(main(BenchflowSandboxConfig(**json.loads(sys.argv[1]))))))
