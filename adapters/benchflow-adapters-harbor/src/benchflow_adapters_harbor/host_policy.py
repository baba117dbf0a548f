"""The hardware, networks and host access that tasks may have here."""

import os
from collections.abc import Mapping

from benchflow_contracts import AdapterOptions

from .config import Record
from .config.network import NetworkMode


class HostPolicy(Record):
    """What tasks may have here. Every provider of BenchFlow supports the defaults."""

    gpus: bool = False
    tpus: bool = False
    windows: bool = False
    networks: frozenset[NetworkMode] = frozenset({"public", "no-network", "allowlist"})
    """A provider that cannot enforce a network refuses to create the sandbox."""
    host_access: bool = False
    """Whether compose files may mount and read paths of this host."""
    forwarded: Mapping[str, str] = {}
    """The operator's variables that a compose file may use. They are never recorded."""
    force_build: bool = False
    """Whether to build the Dockerfile even if the task names an image."""

    def allowing(self, options: AdapterOptions) -> "HostPolicy":
        """Return a copy with the operator's permissions and the values of forwarded variables."""
        values = {name: os.environ[name] for name in options.forward_env if name in os.environ}
        return self.model_copy(
            update={
                "host_access": self.host_access or options.trust_host_access,
                "force_build": self.force_build or options.force_build,
                "forwarded": {**self.forwarded, **values},
            }
        )
