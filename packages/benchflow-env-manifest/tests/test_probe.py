"""The in-box readiness program, against servers on this host's loopback."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from benchflow_env_manifest.in_sandbox.probe import ask_all


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path[1:4]))
        self.end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield str(made.server_port)
        finally:
            made.shutdown()
            thread.join()


def probe(port: str, path: str = "") -> dict[str, str]:
    return {"host": "127.0.0.1", "port": port, "path": path, "tls": ""}


def test_2xx_and_3xx_succeed_and_other_answers_give_the_reason():
    with server() as port:
        probes = {code: probe(port, f"/{code}?a=b") for code in ("204", "302", "404", "503")}
        answers = ask_all(probes, 0.1)
    assert answers["204"] == answers["302"] == ""
    assert "404" in answers["404"]
    assert "503" in answers["503"]


def test_a_connection_is_enough_for_tcp_and_not_for_http():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        assert ask_all({"tcp": probe(port)}, 0.1) == {"tcp": ""}
        assert "timed out" in ask_all({"http": probe(port, "/")}, 0.1)["http"]
    assert "ConnectionRefusedError" in ask_all({"tcp": probe(port)}, 0.1)["tcp"]


def test_an_encrypted_probe_of_a_plain_server_is_not_up():
    with server() as port:
        assert ask_all({"x": {**probe(port, "/204"), "tls": "yes"}}, 0.1)["x"]
