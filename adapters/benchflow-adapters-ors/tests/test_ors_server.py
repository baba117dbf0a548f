"""The server of our tasks: its routes, sessions, latch, secrets and limits."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_adapters_ors.server import DefaultEnvironment, OrsServerSettings, create_app
from benchflow_contracts import Evidence, RewardError, RolloutNode, Task, UsageError, VerifyResult
from benchflow_engine.config import AgentConfig, RewardConfig, RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_testing.fakes import FakeReward, FakeSandboxProvider
from benchflow_tool_sessions import SessionLimits
from litestar import Litestar
from pydantic import SecretStr


def rewards(_task: object, **_: object) -> list[Any]:
    return [FakeReward(0.5)]


class BrokenReward(FakeReward):
    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        raise RewardError("the grader broke")


def broken_rewards(_task: object, **_: object) -> list[Any]:
    return [BrokenReward()]


def config(grader: str = "rewards") -> RunConfig:
    return RunConfig(
        agent=AgentConfig(),
        sandbox=SandboxConfig(provider="fake"),
        reward=RewardConfig(import_path=f"{__name__}:{grader}"),
        capture_state="none",
    )


class Client:
    def __init__(self, http: httpx.AsyncClient, app: Litestar) -> None:
        self.http = http
        self.app = app

    async def post(self, path: str, body: Any = None, sid: str = "", **headers: str) -> Any:
        if sid:
            headers["X-Session-ID"] = sid
        return await self.http.post(path, json={} if body is None else body, headers=headers)

    async def new_id(self) -> str:
        answer = await self.post("/create_session")
        return events(answer.text)[0][1]

    async def open(self, body: Any = None, **headers: str) -> str:
        sid = await self.new_id()
        source = body or {"split": "train", "index": 0}
        answer = await self.post("/create", source, sid, **headers)
        assert answer.status_code == 200, answer.text
        return sid

    async def call(self, sid: str, name: str, task_id: str | None = None, **given: Any) -> Any:
        body = {"name": name, "input": given, "task_id": task_id}
        answer = await self.post("/call", body, sid)
        assert answer.status_code == 200, answer.text
        *_, (kind, _) = found = events(answer.text)
        text = "".join(data for event, data in found if event in {"chunk", "end"})
        return found[0][1], (json.loads(text) if kind == "end" else {kind: found[-1][1]})


def events(text: str) -> list[tuple[str, str]]:
    found = [block.split("\r\n") for block in text.split("\r\n\r\n") if block]
    return [(each[0].removeprefix("event: "), each[1].removeprefix("data: ")) for each in found]


@asynccontextmanager
async def opened(home: Path, **more: Any) -> AsyncGenerator[Client]:
    for name in ("a", "b", "c"):
        if not (home / "tasks" / name).exists():
            write_task(home / "tasks" / name)
    more.setdefault("config", config())
    settings = OrsServerSettings((str(home / "tasks"),), jobs_dir=home / "jobs", **more)
    app = create_app(settings, provider=FakeSandboxProvider())
    transport = httpx.ASGITransport(DefaultEnvironment(app))
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        yield Client(http, app)


def run(home: Path, play: Callable[[Client], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def main() -> None:
        async with opened(home, **more) as client:
            await play(client)

    asyncio.run(main())


def test_tasks_are_listed_by_split_and_by_the_rules_of_a_slice(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        get = client.http.get
        assert (await get("/health")).json() == {"status": "ok"}
        assert (await get("/list_environments")).json() == ["tasks"]
        assert (await get("/tasks/splits")).json() == [{"name": "train", "type": "train"}]
        tools = (await get("/tools")).json()
        assert [tool["name"] for tool in tools["tools"]][-1] == "submit"
        assert set(tools["tools"][0]) == {"name", "description", "input_schema"}

        async def names(**more: int) -> list[str]:
            answer = await client.post("/tasks/task_range", {"split": "train", **more})
            return [task["id"] for task in answer.json()["tasks"]]

        assert await names() == ["a", "b", "c"]
        assert await names(start=-2) == ["b", "c"]
        assert await names(start=1, stop=-1) == ["b"]
        assert await names(start=2, stop=1) == []
        last = await client.post("/tasks/task", {"split": "train", "index": -1})
        assert last.json()["task"]["id"] == "c"
        assert (await client.post("/tasks/num_tasks", {"split": "train"})).json() == {
            "num_tasks": 3
        }

    run(tmp_path, play)


def test_directories_of_splits_are_splits(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "train" / "one")
    write_task(tmp_path / "tasks" / "test" / "two")
    settings = OrsServerSettings((f"mine={tmp_path / 'tasks'}",), config())
    app = create_app(settings, provider=FakeSandboxProvider())
    environment = app.state["catalogue"].find("MINE")
    assert [split.name for split in environment.splits] == ["train", "test"]
    assert [task.id for task in environment.split("test")] == ["two"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tasks/tasks", {"split": "dev"}, 400),
        ("/tasks/task", {"split": "train", "index": 3}, 400),
        ("/tasks/task", {"split": "train"}, 422),
        ("/tasks/tasks", {"split": "train", "more": 1}, 422),
        ("/other/tasks", {"split": "train"}, 404),
        ("/ping", {}, 400),
        ("/call", {"name": "bash"}, 400),
    ],
)
def test_a_wrong_request_is_refused(tmp_path: Path, path: str, body: Any, status: int) -> None:
    async def play(client: Client) -> None:
        answer = await client.post(path, body)
        assert answer.status_code == status
        assert answer.json()["detail"]

    run(tmp_path, play)


def test_an_episode_pays_its_reward_once(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        _, wrong = await client.call(sid, "bash")
        assert wrong["output"]["metadata"]["is_error"]
        assert wrong["output"]["reward"] is None
        ident, verdict = await client.call(sid, "submit", message="done")
        assert verdict["output"]["reward"] == 0.5
        assert verdict["output"]["finished"]
        _, late = await client.call(sid, "submit")
        assert late["reason"] == "episode_finished"
        again, repeated = await client.call(sid, "submit", task_id=ident)
        assert (again, repeated) == (ident, verdict)

    run(tmp_path, play)


def test_of_parallel_submissions_the_first_gets_the_reward(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        await client.call(sid, "nope")
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(client.call(sid, "submit")) for _ in range(4)]
        answers = [call.result()[1] for call in calls]
        rewards = [each["output"]["reward"] for each in answers if each["ok"]]
        assert rewards == [0.5]

    run(tmp_path, play)


def test_a_call_of_another_session_cannot_be_read(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        mine, other = await client.open(), await client.open()
        ident, _ = await client.call(mine, "nope")
        _, found = await client.call(other, "nope", task_id=ident)
        assert found == {"error": "unknown task_id"}

    run(tmp_path, play)


def test_an_unscored_episode_is_an_error_and_not_zero(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        _, verdict = await client.call(sid, "submit")
        assert "no reward" in verdict["error"]
        _, late = await client.call(sid, "submit")
        assert late["reason"] == "episode_finished"

    run(tmp_path, play, config=config("broken_rewards"))


def test_an_episode_that_a_limit_ended_is_graded_and_marked(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        _, verdict = await client.call(sid, "read_file", path="/etc/x")
        assert verdict["output"]["reward"] == 0.5
        assert verdict["output"]["finished"]
        assert verdict["output"]["metadata"]["truncated"]
        _, late = await client.call(sid, "submit")
        assert late["reason"] == "episode_finished"

    run(tmp_path, play, limits=SessionLimits(calls=1))


def test_a_session_exists_from_its_creation_to_its_deletion(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.new_id()
        assert (await client.post("/ping", sid=sid)).status_code == 404
        assert (
            await client.post("/create", {"split": "train", "index": 0}, "x")
        ).status_code == 404
        body = {"split": "train", "index": 0}
        assert (await client.post("/create", body, sid)).status_code == 200
        assert (await client.post("/create", body, sid)).status_code == 400
        assert (await client.post("/ping", sid=sid)).status_code == 200
        assert (await client.post("/delete", sid=sid)).status_code == 200
        assert (await client.post("/delete_session", sid=sid)).status_code == 200
        for path in ("/ping", "/create", "/call"):
            answer = await client.post(path, {"name": "x"} if path == "/call" else body, sid)
            assert answer.status_code == 410

    run(tmp_path, play)


class Lengths:
    """Scores a candidate by the length of its last answer; an empty one has no score."""

    name = "group"

    async def score_group(self, task: Task, leaves: Sequence[RolloutNode]) -> list[VerifyResult]:
        assert task.id == "a"
        texts = [leaf.leaves[0].steps[-1].message for leaf in leaves]
        return [
            VerifyResult(reward=float(len(text))) if text else VerifyResult.unscored("empty")
            for text in texts
        ]


def candidate(*texts: str) -> dict[str, Any]:
    turns = zip(("user", "assistant") * len(texts), texts, strict=False)
    return {
        "messages": [
            {"role": role, "blocks": [{"type": "text", "text": text}]} for role, text in turns
        ]
    }


async def scored(client: Client, sid: str, body: Any) -> tuple[str, str, str]:
    """Return the id of the work, the kind of its last event, and the text of the result."""
    answer = await client.post("/score_group", body, sid)
    found = events(answer.text)
    return found[0][1], found[-1][0], "".join(d for e, d in found if e in {"chunk", "end", "error"})


def test_candidates_are_scored_together_and_one_without_a_score_is_an_error(
    tmp_path: Path,
) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        listed = (await client.http.get("/tools")).json()
        assert listed["supports_score_group"] is True
        two = {"candidates": [candidate("q", "aaa"), candidate("q", "b")]}
        ident, kind, text = await scored(client, sid, two)
        assert kind == "end"
        assert [each["reward"] for each in json.loads(text)["scores"]] == [3.0, 1.0]
        assert (await scored(client, sid, {**two, "task_id": ident}))[2] == text
        one = {"candidates": [candidate("q", "aaa"), candidate("q", "")]}
        _, kind, text = await scored(client, sid, one)
        assert (kind, "candidate 1 has no score: empty" in text) == ("error", True)
        assert (await client.post("/score_group", {"candidates": []}, sid)).status_code == 422

    run(tmp_path, play, group_reward=Lengths())


def test_a_server_without_a_group_reward_says_so(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        answer = await client.post("/score_group", {"candidates": [candidate("q", "a")]}, sid)
        assert answer.status_code == 404
        assert (await client.http.get("/tools")).json()["supports_score_group"] is False

    run(tmp_path, play)


def test_a_session_has_the_tools_of_its_toolset_and_can_always_be_submitted(
    tmp_path: Path,
) -> None:
    async def play(client: Client) -> None:
        source = {"split": "train", "index": 0}
        sid = await client.open({**source, "toolset_name": "shell"})
        headers = {"X-Session-ID": sid}
        listed = (await client.http.get("/task_tools", headers=headers)).json()
        assert [tool["name"] for tool in listed["tools"]] == ["bash", "submit"]
        _, refused = await client.call(sid, "read_file", path="/x")
        assert refused["reason"] == "not_found"
        _, verdict = await client.call(sid, "submit")
        assert verdict["output"]["reward"] == 0.5
        wrong = {**source, "toolset_name": "cli"}
        answer = await client.post("/create", wrong, await client.new_id())
        assert (answer.status_code, "known: shell" in answer.text) == (400, True)

    run(tmp_path, play, toolsets={"shell": ("bash",)})


def test_an_idle_session_is_gone(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        sid = await client.open()
        await client.call(sid, "nope")
        async with asyncio.timeout(30):
            while client.app.state["sessions"]._manager.sessions:  # noqa: ASYNC110 - the reaper has no event
                await asyncio.sleep(0.1)
        assert (await client.post("/ping", sid=sid)).status_code in {404, 410}

    run(tmp_path, play, idle_sec=0.4)


def test_more_sessions_than_allowed_are_told_to_come_later(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        first = await client.open()
        sid = await client.new_id()
        body = {"split": "train", "index": 0}
        answer = await client.post("/create", body, sid)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
        await client.post("/delete", sid=first)
        assert (await client.post("/create", body, sid)).status_code == 200

    run(tmp_path, play, most=1)


def test_a_task_spec_names_a_task_with_its_content(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        listed = await client.post("/tasks/tasks", {"split": "train"})
        [spec, *_] = listed.json()["tasks"]
        sid = await client.open({"task_spec": spec, "env_name": "tasks"})
        prompt = await client.http.get("/tasks/prompt", headers={"X-Session-ID": sid})
        assert prompt.json()[0]["type"] == "text"
        for wrong in ({**spec, "digest": "sha256:0"}, {"id": "../a"}, {}):
            sid = await client.new_id()
            answer = await client.post("/create", {"task_spec": wrong}, sid)
            assert answer.status_code == 400

    run(tmp_path, play)


def header(**secrets: str) -> str:
    content = json.dumps({name: {"value": value} for name, value in secrets.items()})
    return base64.b64encode(content.encode()).decode()


def test_only_allowed_secrets_are_taken_from_body_and_header(tmp_path: Path) -> None:
    async def play(client: Client) -> None:
        body = {"split": "train", "index": 0}
        await client.open({**body, "secrets": {"GIVEN": "hunter2"}})
        await client.open(body, **{"X-Secrets": header(GIVEN="hunter2", api_key="k")})
        refused = [
            await client.post(
                "/create", {**body, "secrets": {"PATH": "hunter2"}}, await client.new_id()
            ),
            *[
                await client.post("/create", body, await client.new_id(), **{"X-Secrets": text})
                for text in (header(PATH="hunter2"), "hunter2", base64.b64encode(b"[]").decode())
            ],
        ]
        assert [answer.status_code for answer in refused] == [400] * 4
        assert not any("hunter2" in answer.text for answer in refused)

    run(tmp_path, play, allowed_secrets=("GIVEN",))


def test_a_key_is_needed_for_all_but_the_health(tmp_path: Path) -> None:
    key = "a-key-of-the-operator"

    async def play(client: Client) -> None:
        assert (await client.http.get("/health")).is_success
        for given in ({}, {"X-API-Key": "wrong"}, {"Authorization": f"Bearer {key}"}):
            answer = await client.http.get("/list_environments", headers=given)
            assert answer.status_code == 401
        answer = await client.http.get("/list_environments", headers={"X-API-Key": key})
        assert answer.json() == ["tasks"]
        answer = await client.http.get("/health", headers={"Host": "example.org"})
        assert answer.status_code == 421

    run(tmp_path, play, api_key=SecretStr(key))


def test_a_server_for_other_machines_needs_a_key() -> None:
    with pytest.raises(UsageError, match="without a key"):
        OrsServerSettings(("tasks",), host="0.0.0.0")
    with pytest.raises(UsageError, match="shorter"):
        OrsServerSettings(("tasks",), api_key=SecretStr("short"))


@pytest.mark.parametrize("name", ["create", "a b", "-x", ""])
def test_a_name_that_no_path_can_have_is_refused(tmp_path: Path, name: str) -> None:
    write_task(tmp_path / "...x" / "one")
    source = f"{name}={tmp_path / '...x'}"
    if not name:
        source = str(tmp_path / "...x")
        create_app(OrsServerSettings((source,), config()), provider=FakeSandboxProvider())
        return
    with pytest.raises(UsageError, match="name of an ORS environment"):
        create_app(OrsServerSettings((source,), config()), provider=FakeSandboxProvider())
