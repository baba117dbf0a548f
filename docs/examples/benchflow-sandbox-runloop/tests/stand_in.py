"""A server with the routes of Runloop's API that the example uses, over local sandboxes.

It is a fake for these tests, written from the SDK. It says nothing about Runloop itself.
"""

import json
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_testing_clouds.http import body_of, respond, serving


class Devbox:
    def __init__(self, sandbox, given):
        self.sandbox, self.given = sandbox, given
        self.id = f"dbx_{sandbox.id}"
        self.created = time.time()
        self.status = "running"
        self.alive = 0
        self.executions = {}

    def view(self):
        return {
            "id": self.id,
            "capabilities": [],
            "create_time_ms": int(self.created * 1000),
            "launch_parameters": self.given.get("launch_parameters") or {},
            "metadata": self.given.get("metadata") or {},
            "state_transitions": [],
            "status": self.status,
            "name": self.given.get("name"),
        }


class StandIn:
    """`failures` are the status and headers of the next creations, which make a devbox anyway."""

    def __init__(self, local):
        self.local = local
        self.devboxes, self.keys, self.failures = {}, {}, []

    async def __call__(self, scope, receive, send):
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = await body_of(receive)
        parts = scope["path"].split("/")[3:]
        if headers.get("authorization") != "Bearer right":
            await respond(send, 401, {"message": "wrong key"})
        elif parts == ["create_and_await_running"]:
            await self.create(headers["x-request-id"], json.loads(body), send)
        elif not parts:
            state = scope["query_string"].decode().partition("status=")[2].partition("&")[0]
            found = [box.view() for box in self.devboxes.values() if box.status == state]
            page = {"devboxes": found, "has_more": False, "total_count": len(found)}
            await respond(send, 200, page)
        elif parts[0] not in self.devboxes:
            await respond(send, 404, {"message": f"no such devbox: {scope['path']}"})
        else:
            box = self.devboxes[parts[0]]
            await self.answer(box, scope["method"], parts[1:], headers, body, send)

    async def create(self, key, given, send):
        if key not in self.keys:
            sandbox = await self.local.create(SandboxSpec(user="root", workdir="/"))
            box = Devbox(sandbox, given)
            self.keys[key] = self.devboxes[box.id] = box
        if self.failures:
            status, headers = self.failures.pop(0)
            await respond(send, status, {"message": "a failure of a test"}, headers)
            return
        await respond(send, 200, self.keys[key].view())

    async def answer(self, box, method, parts, headers, body, send):
        match (method, *parts):
            case ("GET",):
                await respond(send, 200, box.view())
            case ("POST", "keep_alive"):
                box.alive += 1
                await respond(send, 200, {})
            case ("POST", "shutdown"):
                await self.shutdown(box)
                await respond(send, 200, box.view())
            case ("POST", "upload_file"):
                boundary = b"--" + headers["content-type"].partition("boundary=")[2].encode()
                found = {}
                for part in body.split(boundary)[1:-1]:
                    head, _, content = part.partition(b"\r\n\r\n")
                    name = head.partition(b'name="')[2].partition(b'"')[0].decode()
                    found[name] = content.removesuffix(b"\r\n")
                with tempfile.NamedTemporaryFile() as file:
                    file.write(found["file"])
                    file.flush()
                    path = f"/root/{found['path'].decode()}"
                    await box.sandbox.upload(Path(file.name), path)
                await respond(send, 200, {})
            case ("POST", "execute"):
                words = ["sh", "-c", json.loads(body)["command"]]
                result = await box.sandbox.exec(words, user="root", cwd="/root")
                await respond(send, 200, _detail(box, "once", result))
            case ("POST", "execute_async"):
                given = json.loads(body)
                assert given["attach_stdin"] is True
                name = f"exec_{len(box.executions)}"
                words = ["sh", "-c", given["command"]]
                box.executions[name] = await box.sandbox.spawn(words, user="root", cwd="/root")
                await respond(send, 200, _detail(box, name))
            case ("POST", "executions", name, "send_std_in"):
                text = json.loads(body)["text"]
                try:
                    await box.executions[name].stdin.write(text.encode())
                except SandboxError as error:
                    await respond(send, 400, {"message": str(error)})
                    return
                await respond(
                    send, 200, {"devbox_id": box.id, "execution_id": name, "success": True}
                )
            case ("POST", "executions", name, "kill"):
                await box.executions[name].aclose()
                await respond(send, 200, _detail(box, name))
            case ("GET", "executions", name, "stream_stdout_updates"):
                await self.stream(box.executions[name], send)
            case _:
                await respond(send, 404, {"message": f"no route {method} {parts}"})

    async def stream(self, process, send):
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        offset = 0
        while data := await process.stdout.read():
            event = f"data: {json.dumps({'output': data.decode(), 'offset': offset})}\n\n"
            offset += len(data)
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def cut(self):
        """End every execution."""
        for box in self.devboxes.values():
            for process in box.executions.values():
                await process.aclose()

    async def shutdown(self, box):
        box.status = "shutdown"
        for process in box.executions.values():
            await process.aclose()
        await box.sandbox.teardown()


def _detail(box, name, result=None):
    detail = {"devbox_id": box.id, "execution_id": name, "status": "running"}
    if result is None:
        return detail
    ended = {"exit_status": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}
    return detail | ended | {"status": "completed"}


@asynccontextmanager
async def stand_in(local):
    server = StandIn(local)
    async with serving(server) as url:
        try:
            yield server, url
        finally:
            for box in server.devboxes.values():
                await server.shutdown(box)
