"""Traces arrive over HTTP, are durable, and become scored rollouts."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_contracts import UsageError
from benchflow_contracts.redaction import MASK
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.monitor import assembler
from benchflow_dashboard.monitor.assembler import Assembler
from benchflow_dashboard.monitor.config import (
    MonitorConfig,
    PriceTable,
    RewardTable,
    read_monitor_config,
)
from benchflow_dashboard.monitor.credentials import mask_credential_bytes, mask_credentials
from benchflow_dashboard.monitor.database import MonitorDatabase
from benchflow_dashboard.monitor.keys import add_key
from benchflow_dashboard.monitor.scoring import OnlineScorer, is_sampled
from benchflow_dashboard.monitor.service import MonitorService
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchflow_store.database import Location
    from benchflow_traces import ObservedRollout
    from litestar import Litestar

ANY_CREDENTIAL = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|(?:gh[pousr]|github_pat|glpat|xox[abprs]|npm|hf|pypi)[_-][A-Za-z0-9_-]{16,}"
    r"|A(?:KIA|SIA)[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\\\s]*-----END [A-Z ]*PRIVATE KEY-----"
)
ROOT = Path(__file__).parents[3]
ADDRESS = "http://127.0.0.1:8642"
PROTOBUF = {"content-type": "application/x-protobuf"}


class Clock:
    """The wall clock of a test."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def _step(index: int, rollout: str = "talk", **fields: Any) -> dict[str, Any]:
    resource = {"service": "shop", "version": "2", "environment": "live"}
    record = {"rollout": rollout, "index": index, "kind": "step", "ts": 100.0 + index}
    return {**record, "started_at": 99.0 + index, "resource": resource, **fields}


def _ended(index: int, rollout: str = "talk") -> dict[str, Any]:
    return {"rollout": rollout, "index": index, "kind": "ended", "ts": 100.0 + index}


def _body(*records: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps({"records": records}).encode())


GZIP = {"content-type": "application/json", "content-encoding": "gzip"}


@pytest.fixture
def service(location: Location) -> Iterator[MonitorService]:
    config = MonitorConfig(prices={"m": PriceTable(input=1.0, output=2.0, cached=0.5)})
    service = MonitorService(location, config)
    service.assembler = Assembler(location, config, OnlineScorer(config), clock=Clock())
    yield service
    service.close()


def _clock(service: MonitorService) -> Clock:
    clock = service.assembler._clock
    assert isinstance(clock, Clock)
    return clock


@pytest.fixture
def client(tmp_path: Path, location: Location) -> Iterator[TestClient[Litestar]]:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    settings = DashboardSettings(jobs_dir=jobs, index=tmp_path / "index.db", monitor=location)
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        yield client


def _rows(location: Location, sql: str) -> list[Any]:
    database = MonitorDatabase(location, "read")
    try:
        return database.query(sql)
    finally:
        database.close()


def _otlp(text: str) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            trace_id=b"\1" * 16, span_id=b"\2" * 8, start_time_unix_nano=1, end_time_unix_nano=2
        )
    )
    span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    span.attributes.add(key="gen_ai.input.messages").value.string_value = text
    return request


def test_a_request_is_durable_when_it_is_answered(
    client: TestClient[Litestar], location: Location
) -> None:
    answer = client.post("/v1/traces", content=_otlp("[]").SerializeToString(), headers=PROTOBUF)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    ExportTraceServiceResponse.FromString(answer.content)
    assert _rows(location, "SELECT count(*) FROM monitor_spans") == [(1,)]


def test_records_of_the_client_are_stored_and_wrong_ones_are_named(
    client: TestClient[Litestar],
) -> None:
    wrong = {"rollout": "x", "index": -1, "kind": "ended", "ts": 1}

    answer = client.post("/v1/benchflow/records", content=_body(_step(0), wrong), headers=GZIP)

    assert answer.json()["accepted"] == 1
    assert answer.json()["refused"][0].startswith("records[1].ended.index:")


def test_a_record_that_is_nested_too_deep_is_refused_alone(client: TestClient[Litestar]) -> None:
    deep = _step(1, tool_calls=[{"name": "x", "arguments": "HERE"}])
    body = json.dumps({"records": [_step(0), deep]}).replace('"HERE"', "[" * 900 + "]" * 900)
    answer = client.post("/v1/benchflow/records", content=body.encode())

    assert answer.json()["accepted"] == 1
    assert answer.json()["refused"][0].startswith("records[1]: ")


def test_credentials_are_removed_before_the_disk(
    client: TestClient[Litestar], location: Location
) -> None:
    secrets = [
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "AKIAABCDEFGHIJKLMNOP",
        "Authorization: Bearer abcdefghijklmnop.qrst",
    ]
    client.post(
        "/v1/benchflow/records", content=_body(_step(0, message=" ".join(secrets))), headers=GZIP
    )

    stored = [str(_rows(location, "SELECT * FROM monitor_spans")).encode()]
    if not isinstance(location, str):
        stored += [path.read_bytes() for path in location.parent.glob(f"{location.name}*")]
    for data in stored:
        for secret in ("abcdefghijklmnopqrst", "AKIAABCD", "abcdefghijklmnop.qrst"):
            assert secret.encode() not in data


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("eyJ" * 300_000, "eyJ" * 300_000),
        ("-----BEGIN PRIVATE KEY-----" * 30_000, "-----BEGIN PRIVATE KEY-----" * 30_000),
        ("eyJ" * 1000 + "hbGci.eyJzdWIiOi.c2lnbmF0dXJl", "eyJ" * 999 + MASK),
        ("a.eyJhbGciOi_-.eyJzdWIiOi.c2lnbmF0dXJl b", f"a.{MASK} b"),
        ("-----BEGIN RSA PRIVATE KEY-----\\nMII+/=\n-----END RSA PRIVATE KEY-----", MASK),
    ],
    ids=["tokens", "keys", "token", "word", "key"],
)
def test_the_time_of_a_search_for_credentials_grows_with_the_length_alone(
    body: str, left: str
) -> None:
    # A search in quadratic time took a second for 40 kB, and the first two have 800 kB and more.
    assert mask_credentials(body) == left


_PIECES = st.sampled_from(
    [
        *("sk-", "ghp_", "gho-", "hf_", "npm-", "pypi-", "xoxb-", "AKIA", "AIza", "eyJ"),
        *(".", " ", "earer ", "Bearer ", "x" * 16, "A1" * 8, "-----BEGIN RSA PRIVATE KEY-----"),
        *("-----END RSA PRIVATE KEY-----", "github_pat_", "glpat-", "_", "-", "task-", "\\n"),
    ]
)


@given(st.lists(_PIECES, max_size=14))
def test_masked_text_has_no_credential_and_other_text_stays(pieces: list[str]) -> None:
    text = "".join(pieces)

    masked = mask_credentials(text)

    assert mask_credentials(masked) == masked
    assert mask_credential_bytes(text.encode()) == masked.encode()
    assert (masked == text) == (ANY_CREDENTIAL.search(text) is None)
    assert ANY_CREDENTIAL.search(masked) is None


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, {"content-type": "application/json"}, 400),
        (b"\xff", PROTOBUF, 400),
        (b"x", {"content-type": "text/plain"}, 400),
        (b"{}", {"content-type": "application/json"}, 200),
        (b"x" * (17 * 2**20), PROTOBUF, 413),
    ],
)
def test_other_bodies_are_refused(
    client: TestClient[Litestar], body: bytes, headers: dict[str, str], status: int
) -> None:
    assert client.post("/v1/traces", content=body, headers=headers).status_code == status


def test_an_ingest_key_sends_traces_and_nothing_else(tmp_path: Path, location: Location) -> None:
    keys = tmp_path / "keys.toml"
    key = add_key(keys, "shop", 0.1)
    (tmp_path / "jobs").mkdir()
    settings = DashboardSettings(
        jobs_dir=tmp_path / "jobs",
        index=tmp_path / "index.db",
        monitor=location,
        ingest_keys=keys,
    )
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        path, body = "/v1/benchflow/records", _body(_step(0), _step(1), _step(2))
        signed = {**GZIP, "authorization": f"Bearer {key}"}
        assert client.post(path, content=body, headers=GZIP).status_code == 401
        wrong = {**GZIP, "authorization": "Bearer bfi_wrong"}
        assert client.post(path, content=body, headers=wrong).status_code == 401
        assert client.post(path, content=body, headers=signed).status_code == 200
        over = client.post(path, content=body, headers=signed)
        assert over.status_code == 429
        assert float(over.headers["retry-after"]) > 1


def test_without_monitor_mode_the_routes_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    settings = DashboardSettings(jobs_dir=tmp_path / "jobs", index=tmp_path / "index.db")
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        assert client.post("/v1/traces", content=b"", headers=PROTOBUF).status_code == 404


def _store(service: MonitorService, *records: dict[str, Any]) -> None:
    from benchflow_traces import decode_records  # noqa: PLC0415

    decoded = decode_records(_body(*records), "gzip")
    assert not decoded.refused
    service.writer._clock = _clock(service)
    asyncio.run(service.writer.store(service.span_rows(decoded.spans)))


def _assemble(service: MonitorService) -> int:
    return asyncio.run(service.assembler.assemble())


TOOL = {
    "model": "m",
    "usage": {"input_tokens": 1_000_000, "output_tokens": 500_000, "cached_tokens": 200_000},
    "tool_calls": [{"id": "c", "name": "find"}],
    "observations": [{"tool_call_id": "c", "content": "x", "status": "failed"}],
}


def test_a_rollout_is_shown_while_it_runs_and_scored_when_it_is_over(
    service: MonitorService,
) -> None:
    _store(service, _step(0, **TOOL))
    assert _assemble(service) == 1
    running = service.reader.query(
        "SELECT status, closed, steps, tool_errors FROM monitor_rollouts"
    )
    assert running == [("running", 0, 1, 1)]
    assert service.reader.query("SELECT * FROM monitor_rewards") == []

    _store(service, _step(1, message="done"), _ended(2))
    _clock(service).now += 31
    assert _assemble(service) == 1

    (row,) = service.reader.query(
        "SELECT status, closed, service, version, environment, cost FROM monitor_rollouts"
    )
    assert row == ("completed", 1, "shop", "2", "live", None), "one call has no known tokens"
    sql = "SELECT source, space, value FROM monitor_rewards WHERE step = '' ORDER BY source"
    rewards = service.reader.query(sql)
    assert rewards == [("loops", "action", 1.0), ("tool_errors", "action", 0.0)]
    assert _assemble(service) == 0


def test_the_cost_follows_from_tokens_and_prices(service: MonitorService) -> None:
    _store(service, _step(0, **TOOL), _ended(1))
    _clock(service).now += 31
    _assemble(service)

    ((cost,),) = service.reader.query("SELECT cost FROM monitor_rollouts")

    assert cost == pytest.approx(0.8 * 1.0 + 0.2 * 0.5 + 0.5 * 2.0)


def test_a_rollout_without_its_end_is_closed_when_it_is_idle(service: MonitorService) -> None:
    _store(service, _step(0))
    _clock(service).now += 599
    _assemble(service)
    sql = "SELECT closed, status FROM monitor_rollouts"
    assert service.reader.query(sql) == [(0, "running")]
    _clock(service).now += 2
    _assemble(service)
    assert service.reader.query(sql) == [(1, "unfinished")]


def test_under_load_rollouts_that_are_over_are_stored_and_new_ones_are_shown(
    service: MonitorService,
) -> None:
    _store(service, *(_step(0, f"old-{n}") for n in range(600)), *(_ended(1, "old-0"),))
    _assemble(service)
    _clock(service).now += 598
    _store(service, *(_step(0, f"new-{n}") for n in range(40)))
    _clock(service).now += 3

    while _assemble(service):
        pass

    sql = "SELECT closed, count(*) FROM monitor_rollouts GROUP BY closed ORDER BY closed"
    assert service.reader.query(sql) == [(0, 40), (1, 600)]


def test_a_recorded_run_of_codex_is_stored_as_one_rollout(
    client: TestClient[Litestar], location: Location
) -> None:
    recorded = ROOT / "packages/benchflow-traces/tests/recorded/codex-0.171.0"
    for path in sorted(recorded.iterdir()):
        signal = "traces" if "traces" in path.name else "logs"
        headers = {**PROTOBUF, "content-encoding": "gzip"}
        answer = client.post(f"/v1/{signal}", content=path.read_bytes(), headers=headers)
        assert answer.status_code == 200
    config, later = MonitorConfig(), time.time() + 601
    assembler = Assembler(location, config, OnlineScorer(config), clock=lambda: later)
    asyncio.run(assembler.assemble())
    assembler.close()

    sql = "SELECT service, version, environment, closed, steps, tool_calls FROM monitor_rollouts"
    assert _rows(location, sql) == [("codex_exec", "0.171.0", "recorded", 1, 3, 2)]
    assert _rows(location, "SELECT count(*) FROM monitor_open") == [(0,)]


def test_a_late_span_opens_its_rollout_again_and_scores_it_again(service: MonitorService) -> None:
    _store(service, _step(0, message="a"), _ended(2))
    _clock(service).now += 31
    _assemble(service)
    assert service.reader.query(
        "SELECT value FROM monitor_rewards WHERE source = 'tool_errors'"
    ) == [(None,)], "unscored, not 0"

    _store(service, _step(1, **TOOL))
    _clock(service).now += 31
    _assemble(service)

    assert service.reader.query("SELECT steps, tool_errors FROM monitor_rollouts") == [(2, 1)]
    assert service.reader.query(
        "SELECT value FROM monitor_rewards WHERE source = 'tool_errors' AND step = ''"
    ) == [(0.0,)]


def test_a_clock_of_the_future_does_not_hide_a_rollout(service: MonitorService) -> None:
    ahead = {"ts": 4e9, "started_at": 4e9 - 7}
    _store(service, _step(0, **ahead), _ended(1) | {"ts": 4e9})
    _clock(service).now += 31
    _assemble(service)

    now = _clock(service).now
    sql = "SELECT started, ended FROM monitor_rollouts"
    assert service.reader.query(sql) == [(pytest.approx(now - 7), pytest.approx(now))]


def test_a_trace_that_cannot_be_stored_does_not_hold_up_the_others(
    service: MonitorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = assembler.facts_of

    def facts(rollout: ObservedRollout, prices: Any) -> Any:
        if rollout.id == "bad":
            raise OverflowError("int too big to convert")
        return real(rollout, prices)

    monkeypatch.setattr(assembler, "facts_of", facts)
    for name in ("a", "bad", "c"):
        _store(service, _step(0, name), _ended(1, name))
    _clock(service).now += 31

    assert _assemble(service) == 2
    assert _assemble(service) == 0
    assert service.reader.query("SELECT id FROM monitor_rollouts ORDER BY id") == [("a",), ("c",)]
    assert service.reader.query("SELECT count(*) FROM monitor_spans") == [(6,)]


def test_an_impossible_number_of_tokens_is_unknown(service: MonitorService) -> None:
    usage = {"input_tokens": 10**30, "output_tokens": 1}
    _store(service, _step(0, model="m", usage=usage), _ended(1))
    _clock(service).now += 31
    _assemble(service)

    sql = "SELECT closed, input_tokens, cost FROM monitor_rollouts"
    assert service.reader.query(sql) == [(1, None, None)]


def test_a_reward_that_lacks_evidence_is_unscored_with_the_reason() -> None:
    config = MonitorConfig(
        rewards=(RewardTable(kind="memory", options={"directory": "/memory", "name": "notes"}),)
    )
    from benchflow_traces import Span, observed_rollouts  # noqa: PLC0415

    span = Span("a" * 32, "b" * 16, None, "x", 1, 2)
    (rollout,) = observed_rollouts([span])

    (score,) = asyncio.run(OnlineScorer(config).score(rollout))

    assert score.verdict.reward is None
    assert "live world" in str(score.verdict.error)


def test_sampling_follows_from_the_id_and_keeps_its_share() -> None:
    chosen = [is_sampled(f"r{number}", "judge", 0.1) for number in range(5_000)]

    assert chosen == [is_sampled(f"r{number}", "judge", 0.1) for number in range(5_000)]
    assert 400 < sum(chosen) < 600


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("grace = 3", "grace"),
        ("grace_sec = -1", "grace_sec"),
        ("[[rewards]]\nsample = 2", "rewards.0.sample"),
        ("x =", ""),
    ],
)
def test_a_wrong_configuration_names_the_key(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "monitor.toml"
    path.write_text(text)

    with pytest.raises(UsageError) as error:
        read_monitor_config(path)

    assert place in str(error.value)
    assert "monitor.toml" in str(error.value)


def test_a_reward_that_cannot_be_made_names_its_table() -> None:
    for table in (
        RewardTable(kind="unknown"),
        RewardTable(import_path="nowhere:Reward"),
        RewardTable(),
        RewardTable(kind="loops", options={"x": 1}),
    ):
        with pytest.raises(UsageError, match=r"rewards\[0\]"):
            OnlineScorer(MonitorConfig(rewards=(table,)))


def test_bytes_above_the_limit_are_refused_until_the_disk_took_the_rest(
    location: Location,
) -> None:
    config = MonitorConfig(max_waiting_mb=1)
    service = MonitorService(location, config)
    rows = service.span_rows(())
    from benchflow_dashboard.monitor.codec import SpanRow  # noqa: PLC0415
    from benchflow_dashboard.monitor.writer import ServerBusyError  # noqa: PLC0415

    rows = [SpanRow("t", str(n), None, 1, 2, True, "x" * 2**19) for n in range(3)]

    async def send() -> int:
        results = await asyncio.gather(  # noqa: TID251 - all are needed, with their errors
            *(service.writer.store([row]) for row in rows), return_exceptions=True
        )
        return sum(isinstance(result, ServerBusyError) for result in results)

    assert asyncio.run(send()) == 1
    asyncio.run(service.writer.store(rows[2:]))
    assert service.reader.query("SELECT count(*) FROM monitor_spans") == [(3,)]
    service.close()
