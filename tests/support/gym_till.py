"""A resources server of NeMo Gym, by its wire alone: pay into a till, one for each session."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

TOOL = {
    "type": "function",
    "name": "pay_in",
    "description": "Put money into the till.",
    "parameters": {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
    },
    "strict": True,
}


def write_rows(file: Path, *wanted: int) -> Path:
    """Write a data set of NeMo Gym; return the file."""
    rows = [
        {
            "responses_create_params": {
                "input": [{"role": "user", "content": f"Put {each} into the till."}],
                "tools": [TOOL],
            },
            "wanted": each,
        }
        for each in wanted
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@contextmanager
def serving_till() -> Generator[str]:
    """Serve; yield the URL. A session is a cookie, as in NeMo Gym."""
    tills: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            session = (self.headers.get("Cookie") or "").removeprefix("till=")
            if self.path == "/seed_session":
                session = uuid4().hex
                tills[session] = 0
                self._answer({}, cookie=session)
            elif self.path == "/pay_in":
                tills[session] += body["amount"]
                self._answer({"money": tills[session]})
            else:
                share = min(tills[session] / body["wanted"], 1.0)
                self._answer({**body, "reward": share, "money": tills[session]})

        def _answer(self, body: dict[str, Any], cookie: str | None = None) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if cookie is not None:
                self.send_header("Set-Cookie", f"till={cookie}")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the library
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
