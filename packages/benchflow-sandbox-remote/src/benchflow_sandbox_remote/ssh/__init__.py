"""Sandboxes on another host, which is reached by ssh.

`provider.py` and `cloud.py` run here. `server.py` runs on the other host, and creates the sandboxes
with a provider of that host, such as `local`. One connection of ssh is one request: a line of JSON
each way, and then bytes if the request is `dial`.
"""

from .provider import SshProvider

__all__ = ["SshProvider"]
