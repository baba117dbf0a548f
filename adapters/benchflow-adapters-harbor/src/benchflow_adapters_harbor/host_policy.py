"""What a task needs that this machine, as far as BenchFlow drives it, has not got."""

import os
from collections.abc import Mapping

from benchflow_contracts import AdapterOptions

from .config import Record
from .config.network import NetworkMode


class HostPolicy(Record):
    """What sandboxes can be given here. The defaults are what every provider of ours gives."""

    gpus: bool = False
    tpus: bool = False
    windows: bool = False
    networks: frozenset[NetworkMode] = frozenset({"public", "no-network", "allowlist"})
    """A sandbox that cannot hold a box to one of them refuses the box."""
    host_access: bool = False
    """Compose files may mount and read paths of this host."""
    forwarded: Mapping[str, str] = {}
    """Variables of the operator that a compose file may name. Never recorded."""
    force_build: bool = False
    """Build from a Dockerfile also where the task names an image."""

    def allowing(self, options: AdapterOptions) -> "HostPolicy":
        """Return it with what an operator allows the tasks, and with the values of variables."""
        found = {name: os.environ[name] for name in options.forward_env if name in os.environ}
        return self.model_copy(
            update={
                "host_access": self.host_access or options.trust_host_access,
                "force_build": self.force_build or options.force_build,
                "forwarded": {**self.forwarded, **found},
            }
        )
