"""`bench sandbox prune --images` as a process, against our server. Nothing here runs on E2B."""

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

from benchflow_contracts.sandbox import SandboxSpec

BENCH = Path(sys.executable).with_name("bench")


def test_the_command_lists_and_deletes_the_templates_of_a_runner_that_is_gone(with_provider):
    async def test(provider, server):
        url = provider._cloud._connection["api_url"]
        variables = {"E2B_API_KEY": "e2b_test", "E2B_API_URL": url, "E2B_SANDBOX_URL": url}

        async def prune(*words):
            command = (
                str(BENCH),
                "sandbox",
                "prune",
                "--sandbox",
                "e2b",
                "--images",
                "--json",
                *words,
            )
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **variables}, stdout=pipe, stderr=pipe
            )
            output, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()
            return [each["id"][:10] for each in json.loads(output)["sandboxes"]]

        sandbox = await provider.create(SandboxSpec(image="debian:12"))
        (build,) = server.templates.builds
        build.used -= timedelta(days=2)
        assert await prune("--dry-run") == ["benchflow-"]
        assert await prune() == ["benchflow-"]
        assert await prune() == []
        assert (await sandbox.exec("true")).ok  # of a runner that lives

    with_provider(test)
