"""A real server of OpenSSH, on this machine, for tests of sandboxes on another host."""

import getpass
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SERVER = shutil.which("sshd") or "/usr/sbin/sshd"
HOST = "other-host"
"""The name under which the client reaches the server."""


def ssh_command(directory: Path) -> tuple[str, ...]:
    """Write keys and configurations into an empty directory; return the command of the client.

    Each connection starts a server of its own, as this user, so nothing listens. It needs Debian's
    package openssh-server.
    """
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # a server that runs as root needs it
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(command, check=True)
    public = (directory / "host_key.pub").read_text()
    (directory / "known_hosts").write_text(f"{HOST} {public}")
    (directory / "authorized_keys").write_text((directory / "user_key.pub").read_text())
    server = {
        "HostKey": directory / "host_key",
        "AuthorizedKeysFile": directory / "authorized_keys",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
    }
    client = {
        "User": getpass.getuser(),
        "HostKeyAlias": HOST,
        "IdentityFile": directory / "user_key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": directory / "known_hosts",
        "ProxyCommand": shlex.join([SERVER, "-i", "-f", str(directory / "sshd_config")]),
    }
    _write(directory / "sshd_config", server)
    _write(directory / "ssh_config", {f"Host {HOST}": "", **client})
    return "ssh", "-F", str(directory / "ssh_config")


def _write(path: Path, settings: Mapping[str, object]) -> None:
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
