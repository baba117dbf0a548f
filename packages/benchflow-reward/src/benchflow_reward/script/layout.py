"""The paths of a grading sandbox."""

from pathlib import Path

TESTS = "/tests"
TOOLS = "/tests-tools"
EVIDENCE = "/evidence"
VERIFIER_LOGS = "/logs/verifier"
ARTIFACTS = "/logs/artifacts"
"""Where agents put artifacts, by some protocols."""

PINNED_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

RUN_UNTRUSTED = Path(__file__).parent.parent / "run_untrusted.py"
"""The host's copy of the tool that lies at `/tests-tools/run_untrusted.py`."""
