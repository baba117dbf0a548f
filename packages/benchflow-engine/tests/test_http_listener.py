"""The listening socket of the HTTP servers."""

import socket

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.http_listener import open_listener, url_of


def test_a_listener_is_of_tcp_so_that_asyncio_sends_each_write_at_once() -> None:
    with open_listener("127.0.0.1", 0, backlog=1) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        taken = listener.getsockname()[1]
        with pytest.raises(UsageError, match="cannot listen") as refused:
            open_listener("127.0.0.1", taken, backlog=1)
        assert "--port" in (refused.value.hint or "")
