"""An outer program in NeMo Gym's process: it runs a composite agent in the sandbox of a session.

Arguments: the configuration of the sandbox, and the name of the rollout.
"""

import asyncio
import json
import sys
from pathlib import Path

from nemo_gym.sandbox import AsyncSandbox, SandboxSpec, resolve_provider_config
from nemo_gym.sandbox.providers.base import SandboxCreateError

CONFIG, ROLLOUT = json.loads(sys.argv[1]), sys.argv[2]
SPEC = SandboxSpec(metadata={"rollout_id": ROLLOUT}, provider_options={"name": "main"})
AGENT = """\
# One part plans, and another one works: both are processes of this sandbox.
echo 'hello, world' > plan
sh -c 'cat plan > greeting.txt'
cat /proc/self/environ | tr '\\0' '\\n'
"""


async def main() -> dict[str, object]:
    """Upload the agent, run it to its end, and give the sandbox back."""
    provider = resolve_provider_config("sandbox", {"sandbox": CONFIG})
    async with AsyncSandbox(provider, SPEC) as sandbox:
        await sandbox.start()
        await sandbox.upload("agent.sh", "agent.sh")
        done = await sandbox.exec("sh agent.sh")
        await sandbox.download("greeting.txt", "greeting.txt")
    seen = {"code": done.return_code, "environment": done.stdout, "errors": done.stderr}
    unknown = SandboxSpec(metadata={"rollout_id": "unknown"}, provider_options={"name": "main"})
    try:
        await AsyncSandbox(provider, unknown).start()
    except SandboxCreateError as error:
        seen["unknown"] = str(error)
    return seen


Path("agent.sh").write_text(AGENT)
results = asyncio.run(main())
print(json.dumps(results | {"greeting": Path("greeting.txt").read_text()}))
