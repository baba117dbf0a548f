import asyncio

import pytest
from benchflow_adapters_verifiers.port_relays import PortRelays
from benchflow_contracts import UsageError


def test_a_port_that_is_known_late_is_reached_through_a_door() -> None:
    asyncio.run(_talk())


async def _talk() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    async with PortRelays() as relays, await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        inside = relays.inside(f"http://127.0.0.1:{port}/v1")
        door = next(each for each in relays.doors if f":{each.port}/v1" in inside)
        assert (door.serves, door.headers) == ("http", {})
        reader, writer = await asyncio.open_connection(*_address(door.upstream))
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"HELLO"
        writer.close()


def test_a_door_without_a_port_closes_its_connections() -> None:
    async def connect() -> bytes:
        async with PortRelays() as relays:
            reader, writer = await asyncio.open_connection(*_address(relays.doors[0].upstream))
            found = await reader.read()
            writer.close()
            return found

    assert asyncio.run(connect()) == b""


def test_each_port_of_the_host_has_one_door() -> None:
    """Verifiers asks for addresses with and without a path, and adds paths to the answers."""
    relays = PortRelays()
    model = relays.inside("http://127.0.0.1:5000/v1")
    assert relays.inside("http://localhost:5000") == model.removesuffix("/v1")
    tools = [relays.inside(f"http://127.0.0.1:{port}") for port in range(6000, 6007)]
    assert len({model.removesuffix("/v1"), *tools}) == 8
    with pytest.raises(UsageError, match="one more"):
        relays.inside("http://127.0.0.1:6007/mcp")


def test_an_address_of_another_machine_stays_as_it_is() -> None:
    assert PortRelays().inside("https://api.example.org/v1") == "https://api.example.org/v1"


def _address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)
