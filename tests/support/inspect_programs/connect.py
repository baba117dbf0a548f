"""Open the shells of a Docker sandbox by the commands of `connection()`: `connect.py IMAGE`.

Print what each shell says of its user and directory, and the outcomes of commands as users.
"""

import asyncio
import json
import os
import pty
import re
import shlex
import subprocess
import sys

from benchflow_adapters_inspect.sandbox.environment import BenchflowSandboxEnvironment as Provider
from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig
from inspect_ai.util import SandboxEnvironment


def shell(command: str) -> list[str]:
    """Return the lines that a shell prints on a terminal for `id -un` and `pwd`."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        shlex.split(command), stdin=follower, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        os.write(leader, b"echo user=$(id -un) dir=$(pwd); exit\n")
        text = b""
        while True:
            try:
                data = os.read(leader, 4096)
            except OSError:
                break
            if not data:
                break
            text += data
        process.wait(60)
    os.close(leader)
    # The terminal also shows what was typed, and a prompt.
    return re.findall(r"user=\w+ dir=/\S*", text.decode())


async def docker(*args: str) -> str:
    """Return the output of a command of Docker."""
    process = await asyncio.create_subprocess_exec("docker", *args, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


async def outcome(environment: SandboxEnvironment, user: str) -> list[object]:
    """Return the exit code and the output of `id -un` as `user`."""
    done = await environment.exec(["id", "-un"], user=user)
    return [done.returncode, done.stdout.strip()]


async def main(image: str) -> dict[str, object]:
    config = BenchflowSandboxConfig(image=image, workdir="/var/tmp")
    await Provider.task_init("connect", config)
    environments = await Provider.sample_init("connect", config, {})
    environment = environments["default"]
    facts: dict[str, object] = {}
    try:
        for user in (None, "nobody"):
            connection = await environment.connection(user=user)
            facts[f"shell {user}"] = await asyncio.to_thread(shell, connection.command)
            facts["container"] = connection.container
        name = str(facts["container"])
        facts["running"] = await docker("inspect", "--format", "{{.State.Running}}", name)
        for user in ("root", "nobody", "absent"):
            facts[f"exec {user}"] = await outcome(environment, user)
    finally:
        await Provider.sample_cleanup("connect", config, environments, False)
        await Provider.task_cleanup("connect", config, True)
    return {**facts, "left": await docker("ps", "-aq", "--filter", f"name={name}")}


print(json.dumps(asyncio.run(main(sys.argv[1]))))
