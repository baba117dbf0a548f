"""NeMo Gym's own sandbox API calls our provider, which its configuration names."""

import asyncio
import json
import sys
from pathlib import Path

from nemo_gym.sandbox import AsyncSandbox, SandboxSpec, resolve_provider_config
from nemo_gym.sandbox.providers.base import SandboxCreateError
from nemo_gym.sandbox.providers.registry import list_providers

CONFIG = json.loads(sys.argv[1])


async def main() -> dict[str, object]:
    """Call each method once and print what came back."""
    provider = resolve_provider_config("sandbox", {"sandbox": CONFIG})
    seen: dict[str, object] = {"names": list_providers()}
    spec = SandboxSpec(
        ttl_s=300,
        ready_timeout_s=60,
        workdir="/work",
        env={"GREETING": "hello"},
        files={"/work/given.txt": "given"},
        metadata={"rollout_id": "rollout-1"},
        resources={"cpu": 1, "memory_mib": 256},
    )
    async with AsyncSandbox(provider, spec) as sandbox:
        await sandbox.start()
        seen["status"] = await sandbox.status()
        seen["exec"] = vars(
            await sandbox.exec(
                "echo $GREETING $EXTRA; pwd; cat given.txt; exit 3", env={"EXTRA": "you"}
            )
        )
        seen["root"] = (await sandbox.exec("id -u", user=0)).stdout
        seen["timeout"] = vars(await sandbox.exec("sleep 60", timeout_s=0.2))
        await sandbox.upload("up", "new/parents/up")
        await sandbox.exec("ln -s up new/parents/link")
        await sandbox.download("/work/new/parents/up", "down")

        try:
            await sandbox.download("/work/new/parents/link", "link")
        except Exception as error:
            seen["link"] = type(error).__name__
    seen["stopped"] = await sandbox.status()
    try:
        await AsyncSandbox(provider, SandboxSpec(resources={"gpu": 1})).start()
    except SandboxCreateError as error:
        seen["gpu"] = str(error)
    return seen


Path("up").write_bytes(b"\x00\xff up")
results = asyncio.run(main())
results["same"] = Path("down").read_bytes() == b"\x00\xff up"
print(json.dumps(results))
