"""A real ACP agent on stdio that follows a script instead of a model.

One file, standard library only, Python >= 3.11: run in the sandbox, compiled ahead, anew in each
`state` child, so what only some turns need is imported by them. The README has the script's format.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    Json = dict[str, Any]

STATE_DIR = os.path.expanduser("~/.benchflow-scripted")
REMEDY = "write the task's solution/script.toml, or set BENCHFLOW_SCRIPT"
OUTPUT_LIMIT = 200_000
CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {},
    "sessionCapabilities": {"fork": {}},
}
GATE: list[Json] = [
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
]


def make_codec() -> tuple[Callable[[str], Json], Callable[[object], str]]:
    """Return `json.loads` for the text of one object, and `json.dumps`.

    To import `json` takes as long as to start Python: it compiles patterns for which its
    C half, all that is used here, has no need. An interpreter without that half has `json`.
    """
    names = {"strict": True, "object_hook": None, "object_pairs_hook": None}
    parsers = {"parse_float": float, "parse_int": int, "parse_constant": float}
    options: Any = type("Options", (), {**names, **parsers})
    nothing: Any = None  # to call it is a TypeError, as for what is not JSON
    try:
        import _json

        scan, quote = _json.make_scanner(options), _json.encode_basestring_ascii
        encode = _json.make_encoder(None, nothing, quote, None, ": ", ", ", False, False, True)
    except (ImportError, AttributeError, TypeError):
        import json

        return json.loads, json.dumps

    def loads(text: str) -> Json:
        text = text.strip()
        try:
            found: tuple[Json, int] = scan(text, 0)
        except StopIteration:
            raise ValueError("no JSON value") from None
        if found[1] != len(text):
            raise ValueError("more than one JSON value")
        return found[0]

    return loads, lambda value: "".join(encode(value, 0))


loads, dumps = make_codec()


class CancelledError(Exception):
    """The client ended the turn."""


class ScriptError(Exception):
    """The script ended the turn with an error."""


class Wire:
    """ndjson on stdin and stdout."""

    def __init__(self) -> None:
        self.buffer = b""
        self.next_id = 1
        self.cancelled = False

    def send(self, **message: object) -> None:
        """Write one message."""
        data = dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def receive(self) -> Json:
        """Return the next message; leave when the client closed its end."""
        while b"\n" not in self.buffer:
            chunk = os.read(0, 65536)
            if not chunk:
                sys.exit(0)
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        message: Json = loads(line.decode())
        return message

    def ask(self, method: str, params: Json) -> Json:
        """Send a request and wait for its result. A cancelled turn raises."""
        request_id = f"scripted-{self.next_id}"
        self.next_id += 1
        self.send(id=request_id, method=method, params=params)
        while True:
            message = self.receive()
            if message.get("id") == request_id and "method" not in message:
                if self.cancelled:
                    raise CancelledError
                return message.get("result") or {}
            self.note(message)

    def note(self, message: Json) -> None:
        """Take a message that arrived while a turn runs."""
        if message.get("method") == "session/cancel":
            self.cancelled = True
        elif "method" in message and "id" in message:
            error = {"code": -32600, "message": "a turn is running"}
            self.send(id=message["id"], error=error)


class Session:
    """One session: which turn comes next, what was said and answered."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.turn = 0
        self.answers: dict[str, str] = {}
        self.updates: list[Json] = []
        self.heard: list[str] = []
        self.calls = 0

    @classmethod
    def create(cls) -> Session:
        """Return a new session with the next free number."""
        os.makedirs(STATE_DIR, exist_ok=True)
        return cls(f"scripted-{len(os.listdir(STATE_DIR)) + 1}")

    @classmethod
    def load(cls, session_id: str) -> Session:
        """Return a saved session."""
        session = cls(os.path.basename(session_id))
        with open(f"{STATE_DIR}/{session.id}.json") as file:
            state = loads(file.read())
        session.turn, session.calls = state["turn"], state["calls"]
        session.answers, session.updates = state["answers"], state["updates"]
        session.heard = state["heard"]
        return session

    def fork(self) -> Session:
        """Return a saved copy with an id of its own."""
        other = Session.create()
        fields = loads(dumps({**vars(self), "id": other.id}))
        vars(other).update(fields)
        other.save()
        return other

    def save(self) -> None:
        """Write the session to its file, in one piece."""
        scratch = f"{STATE_DIR}/{self.id}.new"
        with open(scratch, "w") as file:
            file.write(dumps({**vars(self), "id": None}))
        os.replace(scratch, f"{STATE_DIR}/{self.id}.json")


class Turn:
    """One prompt turn of a session."""

    def __init__(self, wire: Wire, session: Session, cwd: str) -> None:
        self.wire = wire
        self.session = session
        self.cwd = cwd

    def play(self, actions: list[Json]) -> None:
        """Do the actions whose condition on earlier answers holds, in order."""
        for action in actions:
            if self.wire.cancelled:
                raise CancelledError
            wanted: Json = action.get("when", {})
            if all(self.session.answers.get(key) == value for key, value in wanted.items()):
                self.act(action)

    def act(self, action: Json) -> None:
        """Do one action."""
        for name, perform in ACTIONS.items():
            if name in action:
                perform(self, action)
                return
        raise ScriptError(f"no known action in {sorted(action)}")

    def update(self, kind_of_update: str, **fields: object) -> None:
        """Tell the client, and remember it for `session/load`."""
        body = {"sessionUpdate": kind_of_update, **fields}
        self.session.updates.append(body)
        params = {"sessionId": self.session.id, "update": body}
        self.wire.send(method="session/update", params=params)

    def say(self, action: Json) -> None:
        """Send a message."""
        self.update("agent_message_chunk", content={"type": "text", "text": action["say"]})

    def think(self, action: Json) -> None:
        """Send a thought."""
        self.update("agent_thought_chunk", content={"type": "text", "text": action["think"]})

    def recall(self, _action: Json) -> None:
        """Say everything that the user has said in this session."""
        self.say({"say": "\n".join(self.session.heard)})

    def run(self, action: Json) -> None:
        """Run a shell command as a tool call."""
        command: str = action["run"]
        call = self.begin(command.partition("\n")[0][:200], "execute", {"command": command})
        if action.get("permission") and not self.allowed(call, command):
            self.end(call, "not allowed", None, failed=True)
            return
        code, output = self.shell(command, action.get("timeout", 600))
        self.end(call, output, {"exit_code": code, "output": output}, failed=code != 0)
        if code != 0 and not action.get("may_fail"):
            raise ScriptError(f"command failed with exit code {code}: {command[:200]}")

    def write(self, action: Json) -> None:
        """Write a file as a tool call."""
        path = os.path.normpath(os.path.join(self.cwd, action["write"]))
        text: str = action.get("text", "")
        call = self.begin(f"Write {path}", "edit", {"path": str(path)})
        if action.get("permission") and not self.allowed(call, f"Write {path}"):
            self.end(call, "not allowed", None, failed=True)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        diff = {"type": "diff", "path": str(path), "oldText": None, "newText": text}
        self.end(call, "", None, failed=False, diff=diff)

    def begin(self, title: str, kind: str, raw_input: Json) -> str:
        """Announce a tool call; return its id."""
        self.session.calls += 1
        call = f"call-{self.session.calls}"
        self.update(
            "tool_call",
            toolCallId=call,
            title=title,
            kind=kind,
            status="in_progress",
            rawInput=raw_input,
            _meta={"toolName": "bash" if kind == "execute" else "write"},
        )
        return call

    def end(
        self,
        call: str,
        text: str,
        raw_output: Json | None,
        *,
        failed: bool,
        diff: Json | None = None,
    ) -> None:
        """Report the result of a tool call."""
        block = {"type": "content", "content": {"type": "text", "text": text}}
        self.update(
            "tool_call_update",
            toolCallId=call,
            status="failed" if failed else "completed",
            content=[diff or block],
            rawOutput=raw_output,
        )

    def shell(self, command: str, limit: float) -> tuple[int, str]:
        """Run a command; keep listening for a cancel meanwhile."""
        import signal
        import subprocess

        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child:
            output, ended = self.follow(child, time.monotonic() + limit)
            if not ended:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        if self.wire.cancelled:
            raise CancelledError
        return (code if code >= 0 else 128 - code), output.decode("utf-8", "replace")

    def follow(self, child: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bool]:
        """Collect the child's output until it ends, the turn is cancelled, or time is up."""
        import selectors

        assert child.stdout is not None
        pipe, output = child.stdout.fileno(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            while not self.wire.cancelled and time.monotonic() < deadline:
                ready = {key.fd for key, _ in selector.select(deadline - time.monotonic())}
                if 0 in ready:
                    self.wire.note(self.wire.receive())
                if pipe in ready:
                    chunk = os.read(pipe, 65536)
                    if not chunk:
                        return output, True
                    output = (output + chunk)[:OUTPUT_LIMIT]
        return output, False

    def allowed(self, call: str, title: str) -> bool:
        """Ask for permission to go on with a tool call."""
        params = {
            "sessionId": self.session.id,
            "toolCall": {"toolCallId": call, "title": title},
            "options": GATE,
        }
        reply = self.wire.ask("session/request_permission", params)
        return bool(reply.get("outcome", {}).get("optionId") == "allow")

    def ask(self, action: Json) -> None:
        """Put a question to the user and remember the answer under its id."""
        key: str = action.get("id", "question")
        options = [
            {"const": option["id"], "title": option.get("label", option["id"])}
            for option in action.get("options", [])
        ]
        field: Json = {"type": "string", "description": action["ask"]}
        if options:
            field["oneOf"] = options
        properties: Json = {key: field}
        if options and action.get("custom"):
            properties[f"{key}_custom"] = {"type": "string"}
        params = {
            "sessionId": self.session.id,
            "mode": "form",
            "message": action["ask"],
            "requestedSchema": {"type": "object", "properties": properties},
        }
        reply = self.wire.ask("elicitation/create", params)
        content: Json = reply.get("content") or {}
        answer = content.get(key, content.get(f"{key}_custom"))
        self.session.answers[key] = str(answer or reply.get("action", "failed"))

    def fail(self, action: Json) -> NoReturn:
        """End the turn with an error."""
        raise ScriptError(action["fail"])

    def exit(self, action: Json) -> NoReturn:
        """Die on the spot."""
        os._exit(action["exit"])

    def hang(self, action: Json) -> None:
        """Do nothing, and listen to nothing, for some seconds."""
        time.sleep(action["hang"])

    def garbage(self, action: Json) -> None:
        """Write text that is no message."""
        os.write(1, str(action["garbage"]).encode())


ACTIONS: Mapping[str, Callable[[Turn, Json], None]] = {
    "say": Turn.say,
    "think": Turn.think,
    "recall": Turn.recall,
    "run": Turn.run,
    "write": Turn.write,
    "ask": Turn.ask,
    "fail": Turn.fail,
    "exit": Turn.exit,
    "hang": Turn.hang,
    "garbage": Turn.garbage,
}


class Agent:
    """The agent's side of the protocol."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.sessions: dict[str, Session] = {}
        self.cwds: dict[str, str] = {}

    def serve(self) -> NoReturn:
        """Answer requests until the client closes its end."""
        while True:
            message = self.wire.receive()
            if "method" not in message or "id" not in message:
                continue
            handler = METHODS.get(message["method"])
            if handler is None:
                self.refuse(message, -32601, "method not found")
                continue
            try:
                result = handler(self, message.get("params") or {})
            except ScriptError as error:
                self.refuse(message, -32000, str(error))
            except (KeyError, OSError, ValueError) as error:
                self.refuse(message, -32603, repr(error))
            else:
                self.wire.send(id=message["id"], result=result)

    def refuse(self, message: Json, code: int, text: str) -> None:
        """Answer a request with an error."""
        self.wire.send(id=message["id"], error={"code": code, "message": text})

    def initialize(self, _params: Json) -> Json:
        """Say what this agent can do."""
        return {
            "protocolVersion": 1,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "benchflow-scripted", "version": "1.0.0"},
            "authMethods": [],
        }

    def new(self, params: Json) -> Json:
        """Open a session."""
        session = Session.create()
        session.save()
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        return {"sessionId": session.id}

    def load(self, params: Json) -> Json:
        """Open a saved session, and replay what was said in it."""
        session = Session.load(params["sessionId"])
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        for update in session.updates:
            body = {"sessionId": session.id, "update": update}
            self.wire.send(method="session/update", params=body)
        return {}

    def fork(self, params: Json) -> Json:
        """Open a copy of a session, which has an id of its own."""
        source = self.sessions.get(params["sessionId"]) or Session.load(params["sessionId"])
        session = source.fork()
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        return {"sessionId": session.id}

    def accept(self, _params: Json) -> Json:
        """Take a mode or an option, which a script has no use for."""
        return {}

    def prompt(self, params: Json) -> Json:
        """Play a turn that waits for such words, or the session's next one."""
        session = self.sessions[params["sessionId"]]
        text = "\n".join(block.get("text", "") for block in params["prompt"])
        session.heard.append(text)
        self.wire.cancelled = False
        reason = "end_turn"
        try:
            turn = Turn(self.wire, session, self.cwds[session.id])
            turn.play(self.choose(session, text).get("do", []))
        except CancelledError:
            reason = "cancelled"
        finally:
            session.save()
        return {"stopReason": reason}

    def choose(self, session: Session, text: str) -> Json:
        """Return the turn to play. Beyond the script, a turn is empty."""
        turns: list[Json] = read_script().get("turn", [])
        called = [turn for turn in turns if "on" in turn and turn["on"] in text]
        if called:
            return called[0]
        rest = [turn for turn in turns if "on" not in turn]
        session.turn += 1
        return rest[session.turn - 1] if session.turn <= len(rest) else {}


METHODS: Mapping[str, Callable[[Agent, Json], Json]] = {
    "initialize": Agent.initialize,
    "session/new": Agent.new,
    "session/load": Agent.load,
    "session/fork": Agent.fork,
    "session/set_mode": Agent.accept,
    "session/set_config_option": Agent.accept,
    "session/prompt": Agent.prompt,
}


def read_script(path: str = os.environ.get("BENCHFLOW_SCRIPT", "/solution/script.toml")) -> Json:
    """Return the parsed script."""
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ScriptError(f"no script to follow in {path!r}: {error}; {REMEDY}") from error


if __name__ == "__main__":
    Agent().serve()
