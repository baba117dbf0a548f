"""The client loses nothing within its bounds, and never disturbs its program."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import httpx
import pytest
from benchflow_monitor import Monitor, MonitorLimits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Ingest

FAST = MonitorLimits(flush_sec=0.02)


def _monitor(ingest: Ingest, spool: Path, limits: MonitorLimits = FAST) -> Monitor:
    return Monitor(ingest.url, service="shop", version="2", key="k", spool=spool, limits=limits)


def _indexes(ingest: Ingest) -> list[int]:
    return [record["index"] for record in ingest.records]


def _wait_until_sent(monitor: Monitor, records: int) -> None:
    _wait_until(lambda: monitor.stats.sent >= records)


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_rollout_arrives_in_order_with_its_program_and_key(
    ingest: Ingest, tmp_path: Path
) -> None:
    with _monitor(ingest, tmp_path) as monitor, monitor.rollout("talk-1") as rollout:
        rollout.step(prompt="hi", message="hello", usage={"input_tokens": 3, "output_tokens": 1})
        rollout.score("vote", 1.0)

    assert [record["kind"] for record in ingest.records] == ["started", "step", "score", "ended"]
    assert _indexes(ingest) == [0, 1, 2, 3]
    assert ingest.records[1]["message"] == "hello"
    assert ingest.records[1]["resource"]["service"] == "shop"
    assert ingest.headers[0]["authorization"] == "Bearer k"


def test_an_error_of_the_program_ends_the_rollout_and_is_raised(
    ingest: Ingest, tmp_path: Path
) -> None:
    monitor = _monitor(ingest, tmp_path)

    with pytest.raises(KeyError), monitor.rollout():
        raise KeyError("lost")

    monitor.close()
    assert ingest.records[-1]["error"] == {"type": "KeyError", "message": "'lost'"}


def test_nothing_is_lost_while_the_server_is_away(ingest: Ingest, tmp_path: Path) -> None:
    monitor = _monitor(ingest, tmp_path)
    rollout = monitor.rollout("r")
    assert monitor.flush()
    ingest.stop()
    for number in range(300):
        rollout.step(message=str(number))
        if number % 100 == 99:
            assert monitor.flush()
    assert monitor.stats.sent == 1

    ingest.start()

    _wait_until_sent(monitor, 301)
    monitor.close()
    assert sorted(_indexes(ingest)) == list(range(301))
    assert list(tmp_path.glob("*")) == []


def test_records_on_disk_are_sent_by_the_next_process(ingest: Ingest, tmp_path: Path) -> None:
    ingest.stop()
    first = _monitor(ingest, tmp_path)
    first.rollout("r").end()
    first.close()
    assert first.stats.sent == 0
    ingest.start()

    second = _monitor(ingest, tmp_path)

    _wait_until_sent(second, 2)
    second.close()
    assert sorted(_indexes(ingest)) == [0, 1]


def test_a_busy_server_is_asked_again_after_the_time_it_says(
    ingest: Ingest, tmp_path: Path
) -> None:
    ingest.answer = (429, {"retry-after": "0.1"})
    monitor = _monitor(ingest, tmp_path)
    monitor.rollout("r")
    assert ingest.requests.acquire(timeout=20)
    assert monitor.flush()
    ingest.answer = (200, {})

    _wait_until_sent(monitor, 1)
    monitor.close()

    assert _indexes(ingest) == [0]


def test_records_that_the_server_refuses_are_counted_and_not_repeated(
    ingest: Ingest, tmp_path: Path
) -> None:
    ingest.answer = (400, {})
    monitor = _monitor(ingest, tmp_path)
    monitor.rollout("r")

    assert monitor.flush()

    assert monitor.stats.dropped == 1
    monitor.close()
    assert list(tmp_path.glob("*")) == []


def test_a_record_that_the_server_refuses_alone_is_counted_and_reported(
    ingest: Ingest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ingest.body = b'{"accepted": 1, "refused": ["records[1].step.cost: Extra inputs"]}'
    monitor = _monitor(ingest, tmp_path, MonitorLimits(flush_sec=60))
    monitor.rollout("r").end()

    monitor.close()

    assert (monitor.stats.sent, monitor.stats.dropped) == (1, 1)
    assert "records[1].step.cost" in caplog.text


@pytest.mark.parametrize("body", [b"", b"[]", b'{"refused": 7}', b'{"refused": ["no", "no"]}'])
def test_no_answer_of_the_server_makes_the_counters_wrong(
    ingest: Ingest, tmp_path: Path, body: bytes
) -> None:
    ingest.body = body
    with _monitor(ingest, tmp_path) as monitor:
        monitor.rollout("r")
        assert monitor.flush()

    stats = monitor.stats
    assert stats.sent + stats.dropped == stats.queued == 1


def test_the_directory_never_grows_over_its_limit(ingest: Ingest, tmp_path: Path) -> None:
    ingest.stop()
    limits = MonitorLimits(spool_bytes=20_000, flush_sec=0.0)
    monitor = _monitor(ingest, tmp_path, limits)
    rollout = monitor.rollout("r")
    for _ in range(40):
        rollout.step(message=os.urandom(1000).hex())
        assert monitor.flush()

    monitor.close()

    assert monitor.stats.dropped > 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert tmp_path.stat().st_mode & 0o077 == 0


def test_each_lost_record_is_counted_while_the_server_is_away(
    ingest: Ingest, tmp_path: Path
) -> None:
    ingest.stop()
    limits = MonitorLimits(spool_bytes=20_000, flush_sec=0.0)
    monitor = _monitor(ingest, tmp_path, limits)
    rollout = monitor.rollout("r")
    for _ in range(40):
        rollout.step(message=os.urandom(500).hex())
        assert monitor.flush()

    ingest.start()
    rollout.end()
    _wait_until(lambda: not list(tmp_path.iterdir()))
    assert monitor.flush()
    monitor.close()

    stats = monitor.stats
    assert 0 < stats.dropped < 40
    assert stats.sent == len(set(_indexes(ingest))) == stats.queued - stats.dropped


def test_faults_of_the_server_lose_no_record_and_keep_the_order_of_each_batch(
    ingest: Ingest, tmp_path: Path
) -> None:
    dice = random.Random(3)
    monitor = _monitor(ingest, tmp_path)
    rollouts = [monitor.rollout(f"r{number}") for number in range(3)]
    for number in range(30):
        # Refused for now, stored without an answer, slow to be back, or away.
        fault = dice.choice(["busy", "cut", "away", "fine"])
        ingest.answer = (503, {"retry-after": "0.01"}) if fault == "busy" else (200, {})
        ingest.is_cut = fault == "cut"
        if fault == "away":
            ingest.stop()
        for rollout in rollouts:
            rollout.step(message=str(number))
        assert monitor.flush()
        if fault == "away":
            ingest.start()
    ingest.answer, ingest.is_cut = (200, {}), False
    for rollout in rollouts:
        rollout.end()
    _wait_until(lambda: not list(tmp_path.iterdir()) and monitor.stats.sent == 3 * 32)
    monitor.close()

    assert monitor.stats.dropped == 0
    for rollout in rollouts:
        seen = [record for record in ingest.records if record["rollout"] == rollout.id]
        # A record that came twice has the same number. The server orders by number.
        by_number = {record["index"]: record for record in seen}
        assert sorted(by_number) == list(range(32))
        texts = [by_number[index].get("message") for index in range(1, 31)]
        assert texts == [str(number) for number in range(30)]
        moments = [by_number[index]["ts"] for index in range(32)]
        assert moments == sorted(moments)


def test_memory_is_bounded(ingest: Ingest, tmp_path: Path) -> None:
    limits = MonitorLimits(queue_records=10, flush_sec=30.0)
    monitor = _monitor(ingest, tmp_path, limits)
    rollout = monitor.rollout("r")

    for _ in range(50):
        rollout.step(message="x")

    assert monitor.stats.dropped == 41
    monitor.close()
    assert len(ingest.records) == 10


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_no_value_and_no_disk_makes_the_client_raise(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monitor = Monitor("nonsense://", service="s", spool=blocked, limits=FAST)
    rollout = monitor.rollout()

    rollout.step(message="\ud800", tool_calls=[{"id": "1", "arguments": _Hostile()}])
    rollout.step(message="x" * 3_000_000)
    rollout.step(usage={"input_tokens": float("nan")})  # type: ignore[dict-item]
    rollout.end(ValueError(_Hostile()))

    assert monitor.flush()
    monitor.close()
    assert monitor.stats.sent == 0


def test_a_long_text_is_cut_to_the_size_of_a_record(ingest: Ingest, tmp_path: Path) -> None:
    with _monitor(ingest, tmp_path) as monitor:
        monitor.rollout("r").step(message="x" * 3_000_000)

    assert len(ingest.records[1]["message"]) < 1_000_000
    assert ingest.records[1]["message"].endswith("characters more]")


def test_records_of_a_thread_that_failed_are_on_disk_after_the_end(
    ingest: Ingest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> httpx.Client:
        raise AttributeError("partially initialized module 'httpcore'")

    with monkeypatch.context() as patched:
        patched.setattr(httpx, "Client", broken)
        with _monitor(ingest, tmp_path) as monitor:
            monitor.rollout("r").end()
        assert (monitor.stats.spooled, monitor.stats.dropped) == (2, 0)
    with _monitor(ingest, tmp_path) as later:
        later.rollout("next")

    assert {record["rollout"] for record in ingest.records} == {"r", "next"}


def test_a_program_that_forks_and_ends_sends_the_records_of_both(
    ingest: Ingest, tmp_path: Path
) -> None:
    program = f"""
        import os
        from pathlib import Path
        from benchflow_monitor import Monitor, MonitorLimits

        limits = MonitorLimits(flush_sec=0.02)
        monitor = Monitor({ingest.url!r}, service="s", spool=Path({str(tmp_path)!r}), limits=limits)
        monitor.rollout("parent")
        child = os.fork()
        if child == 0:
            monitor.rollout("child").end()
            monitor.close()
            os._exit(0)
        os.waitpid(child, 0)
        monitor.rollout("parent-2")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        timeout=50,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    # On a busy machine, the last records wait on disk.
    monitor = _monitor(ingest, tmp_path)
    monitor.rollout("next")
    end = time.monotonic() + 40
    while list(tmp_path.glob("*.batch")):
        assert time.monotonic() < end
        time.sleep(0.02)
    monitor.close()
    rollouts = {record["rollout"] for record in ingest.records}
    assert rollouts == {"parent", "child", "parent-2", "next"}
