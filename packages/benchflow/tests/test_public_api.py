"""What `import benchflow` offers."""

import subprocess
import sys


def test_no_import_of_a_submodule_hides_a_public_name() -> None:
    code = (
        "import benchflow as bf, benchflow_jobs, benchflow_engine.rollout\n"
        "assert all(bf.run.__name__ == 'run' for _ in range(2))\n"
        "assert {getattr(bf, name).__name__ for name in bf.__all__} == set(bf.__all__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
