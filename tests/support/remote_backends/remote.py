"""Another host by a real ssh and sshd. The host is this machine, with a server of its own."""

import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_sandbox_remote import SshProvider
from benchflow_sandbox_remote.ssh.cloud import RemoteHost, SshCloud
from benchflow_testing_clouds.sshd import HOST, ssh_command


class CountingCloud(SshCloud):
    """Counts the sandboxes of the host."""

    def __init__(self, host):
        super().__init__(host)
        self.creations, self.made = 0, {}

    async def create(self, spec, **options):
        sandbox = await super().create(spec, **options)
        self.creations += 1
        self.made[sandbox.id] = sandbox
        return sandbox

    async def delete(self, sandbox):
        await super().delete(sandbox)
        self.made.pop(sandbox, None)

    async def remove(self, sandbox):
        """Delete a sandbox that this process did not want to lose."""
        await self.delete(sandbox)


@asynccontextmanager
async def account(local, images):
    del local, images  # the other host has a provider and images of its own
    with tempfile.TemporaryDirectory() as directory:
        variables = f"BENCHFLOW_REMOTE_STATE={directory} BENCHFLOW_REMOTE_IDLE=2"
        python = f"env {variables} {sys.executable}"
        with tempfile.TemporaryDirectory() as keys:
            host = RemoteHost(name=HOST, python=python, ssh=ssh_command(Path(keys)))
            cloud = CountingCloud(host)
            async with SshProvider(host=host, cloud=cloud) as provider:
                yield provider, cloud
