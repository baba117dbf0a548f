"""Ray's own processes beside all packages of the workspace."""

import subprocess
import sys

_AGENTS = "from ray.dashboard.utils import *; get_all_modules(DashboardAgentModule)"


def test_the_agents_of_a_ray_node_load_beside_all_packages() -> None:
    """An agent of a bare Ray skips modules that are missing, and ends if one is there in part.

    Then the node does not start. A package such as opentelemetry-proto alone has that effect.
    """
    done = subprocess.run(
        [sys.executable, "-c", _AGENTS], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
