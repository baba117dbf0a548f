"""A consumer of a broker in NeMo Gym's process: it makes a sandbox, or connects to one."""

import asyncio
import json
import os
import sys

from nemo_gym.sandbox import SandboxSpec, resolve_provider_config
from nemo_gym.sandbox.providers.registry import create_provider

CONFIG, DESCRIPTOR = (json.loads(each) for each in sys.argv[1:3])


async def main() -> dict[str, object]:
    """Use a sandbox and return what the next consumer needs."""
    provider = create_provider(resolve_provider_config("sandbox", {"sandbox": CONFIG}))
    if DESCRIPTOR is not None:
        handle = await provider.connect(DESCRIPTOR)
        result = await provider.exec(handle, "cat /tmp/f")
        return {"stdout": result.stdout}
    spec = SandboxSpec(
        metadata={"rollout_id": "rollout-1"}, provider_options={"name": "main", "user": "root"}
    )
    handle = await provider.create(spec)
    await provider.exec(handle, "date +%N >> /tmp/f")
    text = (await provider.exec(handle, "cat /tmp/f")).stdout
    return {"stdout": text, "descriptor": await provider.serialize_handle(handle)}


print(json.dumps(asyncio.run(main())), flush=True)
# The consumer dies without a word to the broker.
os._exit(0)
