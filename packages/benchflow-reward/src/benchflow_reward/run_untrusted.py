"""Run code that the agent wrote, from a test, without trusting it.

This one file (standard library only, CPython >= 3.10) lies at
`/tests-tools/run_untrusted.py` of a grading sandbox when the task declares
`[verifier] executes_artifacts = true`. In a test, started as root:

    import sys
    sys.path.insert(0, "/tests-tools")
    from run_untrusted import UntrustedError, call

    try:
        score = 1 if call("/workspace/solution.py", "add", [2, 3]) == 5 else 0
    except UntrustedError:
        score = 0

or in test.sh: `python3 -I /tests-tools/run_untrusted.py call FILE FUNCTION '[2, 3]'`
prints the value as JSON and exits 0, or says why not and exits 3; `... run CMD ARG...`
prints `{"exit_code": ..., "stdout": ..., "stderr": ...}`.

Guarantees: the code runs in a process of its own as an unprivileged user without
new privileges, with caps on memory, time, files and processes, a clean environment
and none of our descriptors. When a call returns or raises, no process of that user
is left. A value comes back as JSON beside a random word, so an early exit, a crash or
printed text is never taken for one. The value itself is the agent's claim: compare it
here, never in the code under test.
"""

import ctypes
import json
import math
import os
import pwd
import resource
import secrets
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

MAX_VALUE_BYTES = 1024 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024
_PR_SET_NO_NEW_PRIVS = 38

_LOADER = """
import json, os, runpy, sys
job_fd, value_fd = int(sys.argv[1]), int(sys.argv[2])
with os.fdopen(job_fd) as stream:
    job = json.load(stream)
sys.argv = [job["file"]]
sys.path.insert(0, os.path.dirname(job["file"]))
names = runpy.run_path(job["file"], run_name="untrusted")
value = names[job["function"]](*job["args"])
text = json.dumps({"word": job["word"], "value": value}, allow_nan=False)
with os.fdopen(value_fd, "w") as stream:
    stream.write(text)
"""


class UntrustedError(Exception):
    """The code returned no value: it crashed, exited early, hung, or exceeded a limit."""


@dataclass(frozen=True)
class Limits:
    """Caps on one run."""

    timeout: float = 10.0
    """Seconds of wall time."""
    memory_mb: int = 1024
    file_mb: int = 64
    """Of any one file that it writes."""
    processes: int = 256
    user: str | None = None
    """Who it runs as; by default `nobody`, or `agent` where nobody is not mapped."""


@dataclass(frozen=True)
class Completed:
    """A finished command, with at most 1 MiB of each output."""

    exit_code: int
    stdout: str
    stderr: str


def call(
    file: str, function: str, args: list[Any] | None = None, limits: Limits | None = None
) -> Any:  # noqa: ANN401 - any JSON value
    """Return `function(*args)` of the Python source `file`, as JSON carries it.

    Raises:
        UntrustedError: There is no value.
    """
    word = secrets.token_hex(16)
    job = {
        "file": str(Path(file).absolute()),
        "function": function,
        "args": args or [],
        "word": word,
    }
    with tempfile.TemporaryFile() as job_file, tempfile.TemporaryFile() as value_file:
        job_file.write(json.dumps(job).encode("ascii"))
        job_file.seek(0)
        fds = (job_file.fileno(), value_file.fileno())
        argv = [sys.executable, "-I", "-c", _LOADER, str(fds[0]), str(fds[1])]
        done = _run(argv, limits or Limits(), pass_fds=fds)
        if done.exit_code != 0:
            raise UntrustedError(f"exit code {done.exit_code}: {done.stderr[-300:]}")
        return _value(_head(value_file, MAX_VALUE_BYTES + 1), word)


def run(argv: list[str], limits: Limits | None = None, stdin: bytes = b"") -> Completed:
    """Run a command of the agent, and return its output.

    Raises:
        UntrustedError: It cannot be started, or ran out of time.
    """
    return _run(argv, limits or Limits(), stdin=stdin)


def _value(data: bytes, word: str) -> Any:  # noqa: ANN401 - any JSON value
    if len(data) > MAX_VALUE_BYTES:
        raise UntrustedError("the value is too big")
    try:
        reply: Any = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        said, value = reply["word"], reply["value"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UntrustedError(f"no value came back: {error}") from None
    if said != word:
        raise UntrustedError("no value came back")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _run(
    argv: list[str], limits: Limits, *, stdin: bytes = b"", pass_fds: tuple[int, ...] = ()
) -> Completed:
    account = _account(limits.user)
    temporary = tempfile.TemporaryFile
    with temporary() as inp, temporary() as out, temporary() as err:
        inp.write(stdin)
        inp.seek(0)
        try:
            exit_code = _leader(argv, limits, account, (inp, out, err), pass_fds)
        finally:
            _kill_all_of(account)
        texts = [_head(f, MAX_OUTPUT_BYTES).decode("utf-8", "replace") for f in (out, err)]
        return Completed(exit_code, texts[0], texts[1])


def _leader(
    argv: list[str],
    limits: Limits,
    account: pwd.struct_passwd,
    streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
    pass_fds: tuple[int, ...],
) -> int:
    libc = ctypes.CDLL(None, use_errno=True)

    def confine() -> None:
        _set_limits(limits)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError("no_new_privs")

    try:
        process = subprocess.Popen(
            argv,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=pass_fds,
            cwd="/",
            env={"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            umask=0o077,
            start_new_session=True,
            preexec_fn=confine,  # noqa: PLW1509 - this program has one thread
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UntrustedError(f"cannot start {argv[0]!r}: {error}") from None
    try:
        return process.wait(limits.timeout)
    except subprocess.TimeoutExpired:
        raise UntrustedError(f"no end within {limits.timeout:g} s") from None
    finally:
        process.kill()
        process.wait()


def _set_limits(limits: Limits) -> None:
    caps = {
        resource.RLIMIT_AS: limits.memory_mb << 20,
        resource.RLIMIT_FSIZE: limits.file_mb << 20,
        resource.RLIMIT_CPU: math.ceil(limits.timeout) + 1,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }
    for kind, cap in caps.items():
        resource.setrlimit(kind, (cap, cap))


def _account(name: str | None) -> pwd.struct_passwd:
    if os.geteuid() != 0:
        raise UntrustedError("only root can run code as another user")
    for candidate in [name] if name else ["nobody", "agent"]:
        try:
            account = pwd.getpwnam(candidate)
        except KeyError:
            continue
        if account.pw_uid != 0 and _mapped("uid_map", account.pw_uid):
            return account
    raise UntrustedError("there is no unprivileged user to run as")


def _mapped(table: str, number: int) -> bool:
    lines = Path("/proc/self", table).read_text("ascii").splitlines()
    ranges = [line.split() for line in lines]
    return any(int(start) <= number < int(start) + int(count) for start, _, count in ranges)


def _kill_all_of(account: pwd.struct_passwd) -> None:
    # The kernel signals every process of the user at once, so a fork cannot
    # slip through, and neither can one that left the process group.
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            os.kill(-1, 9)
            status = 0
        except ProcessLookupError:
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        raise UntrustedError("left-over processes could not be ended")


def _head(stream: IO[bytes], limit: int) -> bytes:
    stream.seek(0)
    return stream.read(limit)


def main(argv: list[str]) -> int:
    """Serve the command line: `call FILE FUNCTION [JSON_ARGS]` or `run CMD [ARG...]`."""
    try:
        if argv[:1] == ["call"] and len(argv) in (3, 4):
            result = call(argv[1], argv[2], json.loads(argv[3]) if len(argv) == 4 else [])
        elif argv[:1] == ["run"] and len(argv) > 1:
            result = asdict(run(argv[1:]))
        else:
            sys.stderr.write("usage: run_untrusted.py call FILE FUNCTION [ARGS] | run CMD...\n")
            return 2
    except UntrustedError as error:
        sys.stderr.write(f"untrusted: {error}\n")
        return 3
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
