"""A gateway for other machines: TLS, and a token for each route."""

import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from benchflow_contracts import (
    CallBudget,
    Endpoint,
    HostError,
    KnowsReach,
    SupportsPublicAccess,
    UsageError,
)
from benchflow_gateway import CallBudgetError, HttpGateway, PublicAddress, Publisher
from benchflow_gateway.public import RouteToken
from gateway_peers import KEY, PATHS, ask

LOOPBACK = PublicAddress()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secured(authority: trustme.CA, tmp_path: Path) -> PublicAddress:
    cert = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    key.write_bytes(cert.private_key_pem.bytes())
    return PublicAddress(tls_cert=chain, tls_key=key)


@asynccontextmanager
async def client(authority: trustme.CA | None = None) -> Any:
    tls = ssl.create_default_context()
    if authority is not None:
        authority.configure_trust(tls)
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def status_of(session: Any, url: str, api: str = "openai-chat", **headers: str) -> int:
    async with session.post(url + PATHS[api], json=ask(api), headers=headers) as answer:
        await answer.read()
        return answer.status


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("api", "header"),
    [
        ("openai-chat", "Authorization"),
        ("openai-responses", "Authorization"),
        ("anthropic-messages", "x-api-key"),
        ("gemini", "x-goog-api-key"),
    ],
)
def test_each_api_reaches_the_model_over_tls_with_the_token_as_its_key(
    run, llm, secured, authority, api, header
) -> None:
    async def body(gateway: Any) -> None:
        upstream = Endpoint(url=llm.url, headers={"Authorization": KEY})
        route = await gateway.open("r", "n", upstream=upstream)
        assert isinstance(route, SupportsPublicAccess)
        public = await route.publish(seconds=60)
        assert public.url.startswith("https://127.0.0.1:")
        key = f"Bearer {public.bearer}" if header == "Authorization" else public.bearer
        async with client(authority) as session:
            assert await status_of(session, public.url, api, **{header: key}) == 200
        (call,) = route.calls()
        assert call.status == 200
        assert public.bearer not in call.model_dump_json()

    run(body, public=secured)


def test_a_client_that_does_not_know_the_authority_refuses_the_gateway(run, llm, secured) -> None:
    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        public = await route.publish(seconds=60)
        async with client() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await status_of(session, public.url, **public.headers)

    run(body, public=secured)


def test_a_public_route_that_no_call_has_reached_says_so(run, llm) -> None:
    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        assert isinstance(route, KnowsReach)
        assert route.unreached is None
        public = await route.publish(seconds=60)
        async with client() as session:
            assert await status_of(session, public.url, **bearer("a placeholder")) == 401
            assert isinstance(route.unreached, HostError)
            assert "1 requests came without the token" in str(route.unreached)
            assert route.error is None
            assert await status_of(session, public.url, **public.headers) == 200
        assert route.unreached is None

    run(body, public=LOOPBACK)


def test_a_wrong_token_a_foreign_one_and_none_get_the_same_401(run, llm) -> None:
    async def body(gateway: Any) -> None:
        first = await gateway.open("r", "n0", upstream=Endpoint(url=llm.url))
        second = await gateway.open("r", "n1", upstream=Endpoint(url=llm.url))
        own, other = await first.publish(seconds=60), await second.publish(seconds=60)
        unknown = own.url.replace("n0", "n7")
        answers = []
        async with client() as session:
            for url, headers in (
                (own.url, {}),
                (own.url, bearer("wrong")),
                (own.url, bearer("")),
                (own.url, other.headers),
                (own.url, {"x-api-key": own.bearer[:-1]}),
                (unknown, own.headers),
            ):
                path = url + PATHS["openai-chat"]
                async with session.post(path, json=ask("openai-chat"), headers=headers) as answer:
                    answers.append((answer.status, await answer.text()))
        assert {status for status, _ in answers} == {401}
        assert len({text for _, text in answers}) == 1
        assert (first.error, second.error, llm.requests) == (None, None, [])

    run(body, public=LOOPBACK)


def test_an_expired_token_gets_401_and_ends_the_work_of_its_agent(run, llm) -> None:
    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        other = await gateway.open("r", "n1", upstream=Endpoint(url=llm.url))
        public = await route.publish(seconds=1e-9)
        async with client() as session:
            assert await status_of(session, public.url, **bearer("wrong")) == 401
            assert route.error is None
            assert await status_of(session, public.url, **public.headers) == 401
        assert isinstance(route.error, CallBudgetError)
        assert other.error is None
        assert llm.requests == []

    run(body, public=LOOPBACK)


def test_a_token_is_valid_until_its_end_and_only_its_hash_is_stored() -> None:
    now = [100.0]
    token = RouteToken("secret-text", 3600, lambda: now[0])
    now[0] += 3599
    token.check_time()
    now[0] += 1
    with pytest.raises(CallBudgetError, match="3600 s"):
        token.check_time()
    assert "secret-text" not in repr(vars(token))


def test_a_token_is_cut_with_its_route_and_its_budget_holds(run, llm) -> None:
    async def body(gateway: Any) -> None:
        upstream, budget = Endpoint(url=llm.url), CallBudget(calls=1)
        route = await gateway.open("r", "n", upstream=upstream, budget=budget)
        public = await route.publish(seconds=60)
        with pytest.raises(UsageError, match="already public"):
            await route.publish(seconds=60)
        async with client() as session:
            assert await status_of(session, public.url, **public.headers) == 200
            assert await status_of(session, public.url, **public.headers) == 429
            await route.aclose()
            assert await status_of(session, public.url, **public.headers) == 401
            again = await gateway.open("r", "n", upstream=upstream)
            renewed = await again.publish(seconds=60)
            assert renewed.url == public.url
            assert await status_of(session, public.url, **public.headers) == 401
            assert await status_of(session, renewed.url, **renewed.headers) == 200
        assert len(llm.requests) == 2

    run(body, public=LOOPBACK)


def test_rollouts_of_one_process_share_the_listener(llm, tmp_path: Path) -> None:
    async def main() -> None:
        async with HttpGateway(tmp_path / "a") as first:
            first.publisher = Publisher(LOOPBACK)
            route = await first.open("r1", "n", upstream=Endpoint(url=llm.url))
            one = await route.publish(seconds=60)
            async with HttpGateway(tmp_path / "b") as second, client() as session:
                second.publisher = Publisher(LOOPBACK)
                line = await second.open("r2", "n", upstream=Endpoint(url=llm.url))
                two = await line.publish(seconds=60)
                assert two.url == one.url.replace("r1", "r2")
                assert await status_of(session, two.url, **one.headers) == 401
                assert await status_of(session, two.url, **two.headers) == 200
            async with client() as session:
                assert await status_of(session, two.url, **two.headers) == 401
                assert await status_of(session, one.url, **one.headers) == 200
        async with client() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await status_of(session, one.url, **one.headers)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        (PublicAddress("0.0.0.0", url="https://gw.example"), "without TLS"),
        (PublicAddress("192.0.2.7", url="https://gw.example"), "without TLS"),
        (PublicAddress(tls_cert=Path("cert.pem")), "only one"),
        (PublicAddress("::", tls_cert=Path("c"), tls_key=Path("k")), "others can reach"),
        (PublicAddress(url="http://gw.example:8000"), "without encryption"),
        (PublicAddress(url="ftp://gw.example"), "not the URL"),
        (PublicAddress(tls_cert=Path("no.pem"), tls_key=Path("no.key")), "cannot be used"),
    ],
)
def test_an_address_that_would_show_tokens_is_refused(run, llm, address, problem) -> None:
    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        with pytest.raises(UsageError, match=problem) as refused:
            await route.publish(seconds=60)
        assert refused.value.hint

    run(body, public=address)


def test_a_gateway_without_a_public_address_publishes_nothing(run, llm) -> None:
    async def body(gateway: Any) -> None:
        route = await gateway.open("r", "n", upstream=Endpoint(url=llm.url))
        with pytest.raises(UsageError, match="other machines"):
            await route.publish(seconds=60)

    run(body)
