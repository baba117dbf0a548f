import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import benchflow_sandbox_native
from benchflow_sandbox_native import InitError, init_path

PT_INTERP = 3


def test_the_packaged_program_needs_no_loader():
    data = init_path().read_bytes()
    assert data[:5] == b"\x7fELF\x02"
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    kinds = [struct.unpack_from("<I", data, table + index * size)[0] for index in range(count)]
    assert PT_INTERP not in kinds


def test_it_refuses_to_be_anything_but_pid_1(tmp_path):
    done = subprocess.run(
        [init_path(), tmp_path / "sock"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "not PID 1" in done.stderr) == (2, True)
    assert not (tmp_path / "sock").exists()


def test_a_missing_program_is_an_error_with_a_remedy(tmp_path):
    source = Path(benchflow_sandbox_native.__file__).parent
    shutil.copytree(
        source, tmp_path / source.name, ignore=shutil.ignore_patterns("bin", "__pycache__")
    )
    script = (
        "import benchflow_sandbox_native as native\n"
        "try:\n"
        "    native.init_path()\n"
        "except native.NativeMissingError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "hint: build it with `uv sync --reinstall-package" in done.stdout, done.stderr


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(InitError(2, "exec", "spawn of 'x'")))
    assert (error.errno, error.stage) == (2, "exec")
    assert str(error) == "[Errno 2] spawn of 'x' failed at stage 'exec': No such file or directory"
