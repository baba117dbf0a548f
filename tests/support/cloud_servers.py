"""Serve our servers of every cloud, and a host for ssh, until the standard input ends.

The first line of output is JSON: for each sandbox provider, the variables that lead to its server.
Each line of input is answered by a line with the number of sandboxes that each server has.
"""

import asyncio
import json
import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.daytona import DaytonaAccount, daytona_server
from benchflow_testing_clouds.e2b import e2b_server
from benchflow_testing_clouds.kubernetes import ClusterState, kubernetes_server
from benchflow_testing_clouds.modal import TOKEN_ID, TOKEN_SECRET, modal_server
from benchflow_testing_clouds.sshd import ssh_command
from remote_backends.kubernetes import DEFAULT, POLICIES, kubeconfig


def other_host(directory):
    """Return the variables of another host, which is this machine."""
    for name in ("ssh", "state"):
        (directory / name).mkdir()
    state = f"env BENCHFLOW_REMOTE_STATE={directory}/state BENCHFLOW_REMOTE_IDLE=2"
    return {
        "BENCHFLOW_REMOTE_SSH": shlex.join(ssh_command(directory / "ssh")),
        "BENCHFLOW_REMOTE_PYTHON": f"{state} {sys.executable}",
    }


async def main(directory):
    cluster = ClusterState(images={DEFAULT: SandboxSpec()}, policies=POLICIES)
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(LocalProvider())
        servers = {
            "e2b": e2b_server(local),
            "daytona": daytona_server(local, DaytonaAccount()),
            "modal": modal_server(local),
            "kubernetes": kubernetes_server(local, cluster, token="test"),
        }
        opened = {name: await stack.enter_async_context(each) for name, each in servers.items()}
        url = {name: address for name, (_, address) in opened.items()}
        (directory / "kubeconfig").write_text(kubeconfig(url["kubernetes"], "test"))
        variables = {
            "e2b": {
                "E2B_API_KEY": "e2b_test",
                "E2B_API_URL": url["e2b"],
                "E2B_SANDBOX_URL": url["e2b"],
            },
            "daytona": {"DAYTONA_API_KEY": "dtn_test", "DAYTONA_API_URL": url["daytona"]},
            "modal": {
                "MODAL_SERVER_URL": url["modal"],
                "MODAL_TOKEN_ID": TOKEN_ID,
                "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            },
            "kubernetes": {"KUBECONFIG": str(directory / "kubeconfig")},
            "remote": other_host(directory),
        }
        print(json.dumps(variables), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            counts = {name: len(server.made) for name, (server, _) in opened.items()}
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
