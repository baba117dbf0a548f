"""Why Landlock does not exist in a box: CRIU restores a process without its restrictions."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

CREATE_RULESET, VERSION = 444, 1
ASK = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({CREATE_RULESET}, None, 0, {VERSION}), ctypes.get_errno())
"""


@pytest.mark.parametrize("user", ["root", "agent"])
def test_no_process_of_a_box_can_confine_itself(with_box, user):
    async def test(sandbox):
        return await sandbox.exec(["python3", "-I", "-c", ASK], user=user)

    result = with_box(test)
    assert result.stdout.split() == ["-1", "38"], result.stderr


@pytest.mark.slow
def test_without_that_rule_a_restriction_is_gone_after_a_restore(root, criu, tmp_path):
    if ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, VERSION) < 0:
        pytest.skip("this kernel has no Landlock, so there is nothing to lose")
    script = Path(__file__).with_name("restored_landlock.py")
    namespace = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
    command = [*namespace, sys.executable, script, tmp_path, criu]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == ["waiting 0", "refused", "waiting 1", "made", "waiting 2"]
