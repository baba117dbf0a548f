"""What the model gateway adds to a call, how many streams it holds, what memory it takes.

The same calls go to a model server that costs next to nothing, directly and through
`bench gateway serve`, turn by turn in one run. Server, gateway and client are three
processes on the same cores, so a loaded machine counts against the gateway.

`python gateway.py --calls 100000` measures memory over as many calls; 20000 by default.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchflow_gateway import read_calls
from model_server import EVENTS, GAP_SEC
from report import emit

HERE = Path(__file__).resolve().parent
BENCH = Path(sys.executable).with_name("bench")
ADDED_MS, STREAMS, GROWTH_MB = 1.5, 500, 4.0
SAYS = [{"role": "user", "content": "x" * 4000}]
TOOL = {"name": "shell", "parameters": {"type": "object", "properties": {"command": {}}}}
CHAT = {"model": "m", "messages": SAYS, "tools": [{"type": "function", "function": TOOL}]}
CLAUDE = {
    "model": "m",
    "max_tokens": 100,
    "messages": SAYS,
    "tools": [{"name": "shell", "input_schema": TOOL["parameters"]}],
}
ENDS = (b"0\r\n\r\n", b"}")


@contextmanager
def running(*command: object) -> Iterator[tuple[str, int]]:
    """Run a server; yield the address that it prints, and its process id."""
    with subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


@contextmanager
def gateway(upstream: str, record: Path, kind: str) -> Iterator[tuple[str, int]]:
    """Run `bench gateway serve`."""
    flags = ("--upstream", upstream, "--record", record, "--kind", kind)
    with running(BENCH, "gateway", "serve", *flags) as served:
        yield served


def request(url: str, path: str, body: dict[str, object]) -> tuple[tuple[str, int], bytes]:
    """Return where a call goes, and its bytes."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    head = f"POST {parts.path}/v1{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    assert parts.hostname is not None
    assert parts.port is not None
    return (
        (parts.hostname, parts.port),
        f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data,
    )


class Caller:
    """One connection, one call after the other."""

    def __init__(self, url: str, path: str, body: dict[str, object]) -> None:
        address, self._data = request(url, path, body)
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end = ENDS[0] if body.get("stream") else ENDS[1]

    def call(self) -> float:
        """Make one call; return how long it took, in milliseconds."""
        started = time.perf_counter()
        self._socket.sendall(self._data)
        answer = b""
        while not answer.endswith(self._end):
            piece = self._socket.recv(1 << 20)
            assert piece, answer
            answer += piece
        took = (time.perf_counter() - started) * 1000
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return took


def added_latency(upstream: str, runs: int) -> int:
    """Emit what a call takes more than a direct one; return how many bounds were missed."""
    missed = 0
    cases = (
        ("whole", "same", "/chat/completions", CHAT),
        ("streamed", "same", "/chat/completions", {**CHAT, "stream": True}),
        ("with_token_ids", "vllm", "/chat/completions", CHAT),
        ("translated", "openai", "/messages", CLAUDE),
    )
    for name, kind, path, body in cases:
        direct_body = {**CHAT, "stream": True} if body.get("stream") else CHAT
        with (
            tempfile.TemporaryDirectory() as record,
            gateway(upstream, Path(record), kind) as (url, pid),
        ):
            direct = Caller(upstream, "/chat/completions", direct_body)
            through = Caller(url, path, body)
            before = cpu_ms(pid)
            pairs = [(direct.call(), through.call()) for _ in range(runs + 50)][50:]
            spent = (cpu_ms(pid) - before) / (runs + 50)
            recorded = len(read_calls(Path(record) / "serve" / "n0.jsonl"))
        assert recorded == runs + 50
        alone = median(one for one, _ in pairs)
        samples = [both - alone for _, both in pairs]
        limit = {"limit": ADDED_MS} if kind == "same" else {}
        middle = emit(
            f"gateway_added_{name}",
            samples,
            direct_ms=round(alone, 4),
            cpu_ms=round(spent, 3),
            **limit,
        )
        missed += bool(limit) and middle > ADDED_MS
    return missed


async def stream_once(url: str, gate: asyncio.Barrier) -> tuple[float, int]:
    """Hold one slow stream; return its milliseconds and its events."""
    address, data = request(url, "/chat/completions", {**CHAT, "stream": True, "slow": True})
    reader, writer = await asyncio.open_connection(*address)
    await gate.wait()
    started = time.perf_counter()
    writer.write(data)
    answer = b""
    while not answer.endswith(ENDS[0]):
        piece = await reader.read(1 << 16)
        assert piece, answer
        answer += piece
    writer.close()
    return (time.perf_counter() - started) * 1000, answer.count(b'"word "')


async def many_streams(url: str) -> list[tuple[float, int]]:
    """Hold all streams at once."""
    gate = asyncio.Barrier(STREAMS)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream_once(url, gate)) for _ in range(STREAMS)]
    return [task.result() for task in tasks]


def concurrent_streams(upstream: str) -> int:
    """Emit how long streams take when all run at once, direct and through the gateway."""
    with tempfile.TemporaryDirectory() as record:
        with gateway(upstream, Path(record), "same") as (url, pid):
            direct = asyncio.run(many_streams(upstream))
            before = cpu_ms(pid)
            through = asyncio.run(many_streams(url))
            spent = cpu_ms(pid) - before
        recorded = read_calls(Path(record) / "serve" / "n0.jsonl")
    lost = sum(events != EVENTS for _, events in through) + STREAMS - len(recorded)
    emit(
        "gateway_concurrent_streams",
        [took for took, _ in through],
        streams=STREAMS,
        lost=lost,
        limit_lost=0,
        cpu_ms_per_stream=round(spent / STREAMS, 3),
        ideal_ms=EVENTS * GAP_SEC * 1000,
        direct_ms=round(median(took for took, _ in direct), 1),
    )
    return int(lost > 0)


def cpu_ms(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kilobytes) / 1024


def memory(upstream: str, calls: int) -> int:
    """Emit how much memory grows from a tenth of the calls to all of them."""
    with (
        tempfile.TemporaryDirectory() as record,
        gateway(upstream, Path(record), "same") as (url, pid),
    ):
        caller = Caller(url, "/chat/completions", CHAT)
        marks: list[float] = []
        for _ in range(10):
            for _ in range(calls // 10):
                caller.call()
            marks.append(resident_mb(pid))
    grown = marks[-1] - marks[0]
    facts = {"calls": calls, "rss_mb": [round(mark, 1) for mark in marks]}
    emit("gateway_memory_growth", [grown], unit="MB", limit=GROWTH_MB, **facts)
    return int(grown > GROWTH_MB)


def main() -> int:
    """Print a line per bench; fail when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
    with running(sys.executable, HERE / "model_server.py") as (upstream, _):
        missed = added_latency(upstream, options.runs)
        missed += concurrent_streams(upstream)
        missed += memory(upstream, options.calls)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
