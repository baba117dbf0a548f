"""The client of ORS servers: calls that run once, lost connections, secrets, keys and tasks."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_adapters_ors import (
    OrsClient,
    OrsError,
    OrsProtocolError,
    OrsSession,
    OrsSessionLostError,
    OrsUnreachableError,
    world,
)
from benchflow_adapters_ors.sse import encode_event, encode_result
from benchflow_adapters_ors.wire import (
    GroupCandidate,
    GroupMessage,
    GroupScore,
    GroupScores,
    TextBlock,
    ToolOutput,
    ToolSuccess,
)
from benchflow_adapters_ors.world import API_KEY, SECRETS, OrsSettings, OrsTasks, OrsWorld
from benchflow_contracts import TaskError, UsageError

SID = encode_event("task_id", "s1") + encode_event("end", "")
CALL_ID = encode_event("task_id", "c1")


def result(text: str = "done", *, finished: bool = False) -> bytes:
    output = ToolOutput(blocks=(TextBlock(text=text),), reward=0.5, finished=finished)
    return b"".join(encode_result(ToolSuccess(output=output)))


class CutStream(httpx.AsyncByteStream):
    """Bytes, and then a lost connection."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise httpx.ReadError("the connection is lost")


class Server:
    """Answers each path by the next of its answers; the last one is repeated."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {f"/{path.replace('__', '/')}": each for path, each in answers.items()}
        self.answers.setdefault("/create_session", [SID])
        self.requests: list[tuple[str, Any, httpx.Headers]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.requests.append((request.url.path, body, request.headers))
        answers = self.answers.get(request.url.path, [{}])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        events = {"Content-Type": "text/event-stream"}
        match answer:
            case bytes():
                return httpx.Response(200, headers=events, content=answer)
            case CutStream():
                return httpx.Response(200, headers=events, stream=answer)
            case (int(status), detail):
                return httpx.Response(status, json={"detail": detail}, headers={"Retry-After": "0"})
            case Exception():
                raise answer
            case _:
                return httpx.Response(200, json=answer)

    def bodies(self, path: str) -> list[Any]:
        return [body for at, body, _ in self.requests if at == path]


def play(
    server: Server,
    act: Callable[[OrsSession], Coroutine[Any, Any, None]],
    secrets: dict[str, str] | None = None,
) -> None:
    async def main() -> None:
        transport = httpx.MockTransport(server)
        async with (
            OrsClient("http://127.0.0.1", transport=transport) as client,
            OrsSession(client, "env", {"a": 1}, secrets=secrets) as session,
        ):
            await act(session)

    asyncio.run(main())


def test_a_lost_connection_reads_the_result_of_the_same_call() -> None:
    whole = CALL_ID + result(" " * 5000 + "end")
    server = Server(
        env__call=[CutStream(CALL_ID), CutStream(whole[: len(whole) // 2]), CALL_ID, whole]
    )

    async def act(session: OrsSession) -> None:
        answer = await session.call("add", {"number": 1})
        assert isinstance(answer, ToolSuccess)
        (block,) = answer.output.blocks
        assert isinstance(block, TextBlock)
        assert block.text == " " * 5000 + "end"

    play(server, act)
    assert [body.get("task_id") for body in server.bodies("/env/call")] == [None, "c1", "c1", "c1"]


@pytest.mark.parametrize("answer", [httpx.ConnectError("lost"), CutStream(b": ping\n\n"), b""])
def test_a_call_without_an_id_is_not_sent_again(answer: Any) -> None:
    server = Server(env__call=[answer])

    async def act(session: OrsSession) -> None:
        with pytest.raises(OrsUnreachableError):
            await session.call("add", {})

    play(server, act)
    assert len(server.bodies("/env/call")) == 1


def test_a_session_that_starts_is_waited_for() -> None:
    starting = (503, "Environment still starting.")
    server = Server(env__call=[starting, (429, "later"), *[starting] * 6, CALL_ID + result()])

    async def act(session: OrsSession) -> None:
        assert isinstance(await session.call("add", {}), ToolSuccess)

    play(server, act)
    assert len(server.bodies("/env/call")) == 9


def test_a_session_whose_creation_lost_its_answer_exists_and_is_not_taken_from_another() -> None:
    exists = (400, "Session already exists")
    server = Server(create=[httpx.ReadError("lost"), exists], env__call=[CALL_ID + result()])

    async def act(session: OrsSession) -> None:
        assert isinstance(await session.call("add", {}), ToolSuccess)

    play(server, act)
    assert len(server.bodies("/create")) == 2
    with pytest.raises(OrsError, match="already exists"):
        play(Server(create=[exists]), act)


def scores(*rewards: float) -> bytes:
    found = GroupScores(scores=tuple(GroupScore(reward=reward) for reward in rewards))
    return CALL_ID + b"".join(encode_result(found))


CANDIDATES = [
    GroupCandidate(
        messages=(GroupMessage(role="assistant", blocks=({"type": "text", "text": text},)),)
    )
    for text in ("a", "b")
]


def test_scores_of_a_group_are_read_once_after_a_lost_connection() -> None:
    server = Server(env__score_group=[CutStream(CALL_ID), scores(1.0, 0.25)], env__prompt=[[]])

    async def act(session: OrsSession) -> None:
        found = await session.score_group(CANDIDATES)
        assert [score.reward for score in found] == [1.0, 0.25]

    play(server, act)
    assert [body.get("task_id") for body in server.bodies("/env/score_group")] == [None, "c1"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, "no such route"), "does not score groups"),
        (scores(1.0), "1 scores for 2"),
        (CALL_ID + encode_event("error", "the judge failed"), "the judge failed"),
    ],
)
def test_a_group_without_all_scores_is_an_error_and_never_zero(answer: Any, message: str) -> None:
    server = Server(env__score_group=[answer], env__prompt=[[]])

    async def act(session: OrsSession) -> None:
        with pytest.raises(OrsError, match=message):
            await session.score_group(CANDIDATES)

    play(server, act)


def test_an_address_may_name_a_toolset_for_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = {"tasks": [{"a": 1}], "env_name": "env"}
    splits = [{"name": "train", "type": "train"}]
    server = Server(env__splits=[splits], env__task_range=[page], env__prompt=[[]])
    transport = httpx.MockTransport(server)
    monkeypatch.setattr(
        world, "client_for", lambda url, start_sec=1.0: OrsClient(url, transport=transport)
    )
    [data] = OrsTasks().tasks("127.0.0.1/env@cli", "train", start=0, limit=1)
    settings = OrsSettings.model_validate(data.config.environment.options)
    assert (settings.environment, settings.toolset) == ("env", "cli")

    async def act() -> None:
        session = OrsWorld(settings)
        await session.open(data.data, 0)
        await session.close()

    asyncio.run(act())
    [created] = server.bodies("/create")
    assert created["toolset_name"] == "cli"


def test_no_call_is_sent_after_the_end_of_the_episode() -> None:
    server = Server(env__call=[CALL_ID + result(finished=True)])

    async def act(session: OrsSession) -> None:
        await session.call("add", {})
        late = await session.call("add", {})
        assert not late.ok
        assert late.reason == "episode_finished"

    play(server, act)
    assert len(server.bodies("/env/call")) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((410, "Session deleted"), OrsSessionLostError),
        ((404, "Active environment not found"), OrsSessionLostError),
        ((500, "ValueError: x"), OrsError),
        (CALL_ID + encode_event("error", "the tool broke"), OrsError),
        (CALL_ID + encode_event("end", "{"), OrsProtocolError),
        (CALL_ID + encode_event("end", '{"ok":true,"output":{"reward":1}}'), OrsProtocolError),
        ({"ok": True}, OrsProtocolError),
    ],
)
def test_a_failure_of_the_server_is_an_error_of_its_kind(answer: Any, kind: type[OrsError]) -> None:
    server = Server(env__call=[answer])

    async def act(session: OrsSession) -> None:
        with pytest.raises(kind):
            await session.call("add", {})

    play(server, act)
    assert len(server.bodies("/env/call")) == 1


def test_secrets_are_sent_in_the_way_that_the_server_reads() -> None:
    server = Server(create=[(422, "extra keys"), {"sid": "s1"}])

    async def act(session: OrsSession) -> None:
        assert session.sid == "s1"

    play(server, act, secrets={"WORD": "hunter2"})
    both, header_only = server.bodies("/create")
    assert both["secrets"] == {"WORD": "hunter2"}
    assert "secrets" not in header_only
    (_, _, headers) = next(each for each in server.requests if each[0] == "/create")
    sent = json.loads(base64.b64decode(headers["X-Secrets"]))
    assert sent == {"WORD": {"value": "hunter2"}}
    assert [path for path, *_ in server.requests][-2:] == ["/delete", "/delete_session"]


def test_a_session_sends_no_key_that_an_older_server_does_not_know() -> None:
    server = Server()

    async def act(session: OrsSession) -> None:
        assert session.sid == "s1"

    play(server, act)
    assert server.bodies("/create") == [{"env_name": "env", "task_spec": {"a": 1}}]


@pytest.mark.parametrize("variable", [API_KEY, SECRETS])
def test_a_key_is_not_sent_to_a_host_that_only_a_task_names(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, '{"WORD": "hunter2"}')

    async def main() -> None:
        world = OrsWorld(OrsSettings(url="http://example.org", environment="env"))
        try:
            await world.open({}, 0)
        finally:
            await world.close()

    with pytest.raises(UsageError, match=r"example\.org") as caught:
        asyncio.run(main())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["host:80", "host:80/", "http://host", "a b/env"])
def test_an_address_names_a_server_and_an_environment(address: str) -> None:
    with pytest.raises((UsageError, TaskError)):
        OrsTasks().splits(address)


def test_a_server_that_does_not_answer_is_an_error_of_the_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchflow_adapters_ors.client._TRIES", 1)
    with pytest.raises(TaskError, match="does not answer"):
        OrsTasks().splits("127.0.0.1:9/env")
