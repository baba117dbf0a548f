"""Wait until the world is ready for the agent."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from benchflow_contracts import EnvironmentError_, ReadinessProbe, SupportsTcpConnect
from benchflow_contracts.pausing import running_time

from .manifest import EnvironmentTable, Service
from .sandbox_shell import SandboxShell
from .tcp_probe import TcpProber, can_probe

_ROUND_SEC = 1.0
_PAUSE_SEC = 0.2
_SHORT_ROUND_SEC = 0.1
_NOT_ASKED = "not asked"
_CLIENTS = {"python3", "curl", "bash"}

# Each prints one line per probe: empty if the probe succeeds, else the problem.
_CURL = """
for probe in "$@"; do
  case $probe in
    tcp:*)
      at=$(curl -s -o /dev/null -w '%{time_connect}' --max-time 1 \
        "telnet://localhost:${probe#tcp:}" </dev/null)
      case $at in *[1-9]*) echo ;; *) echo 'no connection' ;; esac ;;
    *)
      code=$(curl -sk -o /dev/null -w '%{http_code}' --noproxy '*' --max-time 2 "$probe")
      case $code in 2??|3??) echo ;; *) echo "HTTP status $code" ;; esac ;;
  esac
done
"""
_BASH = """
ask() {
  exec 3<>"/dev/tcp/$1/$2" || return 1
  [ -z "$3" ] || { printf 'GET %s HTTP/1.0\\r\\nHost: %s\\r\\n\\r\\n' "$3" "$1" >&3
    read -r -t 2 _ code _ <&3; case $code in 2??|3??) ;; *) return 1 ;; esac; }
}
while [ $# -gt 0 ]; do
  if (ask "$1" "$2" "$3") 2>/dev/null; then echo; else echo 'no answer'; fi
  shift 3
done
"""


def probes_for(
    environment: EnvironmentTable, running: Sequence[Service], skipped: Sequence[Service]
) -> list[str]:
    """Return the names of the probes: URLs, and `tcp:port`.

    Explicit URLs replace URLs of services. A service without a health path must accept a
    connection. Without any probe, the ports of the image are probed. Probes of skipped
    services are skipped.
    """
    readiness = environment.readiness
    absent = {service.port for service in skipped}
    urls = readiness.http or tuple(each.health_url for each in running if each.health_path)
    no_http = () if readiness.http else tuple(s.port for s in running if not s.health_path)
    tcp = (*readiness.tcp, *no_http)
    ports = tcp if urls or tcp else environment.ports
    names = [url for url in urls if urlsplit(url).port not in absent]
    names += [f"tcp:{port}" for port in ports if port not in absent]
    return list(dict.fromkeys(names))


async def wait_until_ready(
    shell: SandboxShell,
    names: Sequence[str],
    *,
    timeout_sec: float,
    exit_report: Callable[[], str],
    activity: asyncio.Event,
) -> ReadinessProbe:
    """Repeat all probes until each has succeeded, a service has ended, or the time is over.

    `exit_report` describes the services that ended, `""` if none did. `activity` is set when a
    service prints something or ends; then the probes are repeated at once.
    """
    started = running_time()
    sandbox = shell.sandbox
    prober: TcpProber | None = None
    if isinstance(sandbox, SupportsTcpConnect):
        prober = TcpProber(sandbox, activity, exit_report)
    answers: Mapping[str, str] = dict.fromkeys(names, _NOT_ASKED)
    while True:
        left = started + timeout_sec - running_time()
        if not (ended := exit_report()) and left > 0:
            seconds = min(left, _ROUND_SEC)
            answers = await _round(shell, names, seconds, prober)
            ended = exit_report()
        ready = not ended and not any(answers.values())
        if ready or ended or left <= 0:
            return ReadinessProbe(
                ready=ready,
                checked={name: not problem for name, problem in answers.items()},
                error=None if ready else ended or _too_late(answers, timeout_sec),
                waited_sec=running_time() - started,
            )


def _too_late(answers: Mapping[str, str], timeout_sec: float) -> str:
    problems = "; ".join(f"{name}: {problem}" for name, problem in answers.items() if problem)
    return f"not ready after {timeout_sec:g} s: {problems}"


async def _round(
    shell: SandboxShell, names: Sequence[str], seconds: float, prober: TcpProber | None
) -> Mapping[str, str]:
    """Run probes from the host if possible, and the others inside the sandbox.

    A probe that fails from the host is repeated inside: a service may listen only on the
    IPv6 loopback.
    """
    if prober is None:
        return await _ask(shell, names, seconds)
    probes = {name: probe for name in names if can_probe(probe := _split(name))}
    answers = await prober.ask_all(probes, seconds)
    rest = [name for name in names if answers.get(name, _NOT_ASKED)]
    if not rest or (len(probes) == len(names) and not _CLIENTS & await shell.tools()):
        return answers
    return {**answers, **await _ask(shell, rest, _SHORT_ROUND_SEC if probes else seconds)}


async def _ask(shell: SandboxShell, names: Sequence[str], seconds: float) -> Mapping[str, str]:
    """Run one round of probes in one command inside the sandbox."""
    tools = await shell.tools()
    if not names:
        return {}
    if "python3" in tools:
        request = {"probes": {name: _split(name) for name in names}, "seconds": seconds}
        answers = await shell.python(["probe"], request, timeout=seconds + 30)
        if set(answers) != set(names):
            raise EnvironmentError_(f"the readiness probe printed no result for {names!r}")
        return answers
    await asyncio.sleep(min(_PAUSE_SEC, seconds))
    if "curl" in tools:
        command = ["sh", "-c", _CURL, "sh", *names]
    elif "bash" in tools:
        command = ["bash", "-c", _BASH, "bash"]
        for probe in map(_split, names):
            command += [probe["host"], probe["port"], probe["path"]]
    else:
        raise EnvironmentError_(
            "the sandbox has no python3, curl or bash to probe the services with",
            hint="add one of them to the image",
        )
    output = await shell.must(command, what="the readiness probe", timeout=3 * len(names) + 30)
    lines = output.split("\n")[:-1]
    if len(lines) != len(names):
        raise EnvironmentError_(
            f"the readiness probe printed {len(lines)} answers to {len(names)} probes"
        )
    return dict(zip(names, lines, strict=True))


def _split(name: str) -> dict[str, str]:
    if name.startswith("tcp:"):
        port = name.removeprefix("tcp:")
        return {"host": "localhost", "port": port, "path": "", "tls": ""}
    url = urlsplit(name)
    assert url.hostname is not None, "the manifest's parser requires one"
    tls = url.scheme == "https"
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    port = str(url.port or (443 if tls else 80))
    return {"host": url.hostname, "port": port, "path": path, "tls": "yes" if tls else ""}
