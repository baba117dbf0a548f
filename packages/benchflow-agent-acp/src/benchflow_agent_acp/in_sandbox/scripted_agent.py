"""A real ACP agent on stdio that follows a script instead of a model.

The program is one file, which is compiled on the host. It starts again in each `state` child, so a
slow import happens only in the turns that need it. The README describes the format of a script.
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
PERMISSION_OPTIONS: list[Json] = [
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
]


def make_codec() -> tuple[Callable[[str], Json], Callable[[object], str]]:
    """Return `json.loads` for the text of one object, and `json.dumps`.

    The import of `json` takes as long as the start of Python, because it compiles patterns. Its C
    module needs no patterns and is enough here. Without the C module, import `json`.
    """
    names = {"strict": True, "object_hook": None, "object_pairs_hook": None}
    parsers = {"parse_float": float, "parse_int": int, "parse_constant": float}
    options: Any = type("Options", (), {**names, **parsers})
    nothing: Any = None  # calling it is a TypeError, as for a value that is not JSON
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
            parsed: tuple[Json, int] = scan(text, 0)
        except StopIteration:
            raise ValueError("no JSON value") from None
        if parsed[1] != len(text):
            raise ValueError("more than one JSON value")
        return parsed[0]

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
        """Return the next message; exit when the client closes the pipe."""
        while b"\n" not in self.buffer:
            chunk = os.read(0, 65536)
            if not chunk:
                sys.exit(0)
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        message: Json = loads(line.decode())
        return message

    def ask(self, method: str, params: Json) -> Json:
        """Send a request and return its result. Raise if the turn is cancelled."""
        request_id = f"scripted-{self.next_id}"
        self.next_id += 1
        self.send(id=request_id, method=method, params=params)
        while True:
            message = self.receive()
            if message.get("id") == request_id and "method" not in message:
                if self.cancelled:
                    raise CancelledError
                return message.get("result") or {}
            self.handle_during_turn(message)

    def handle_during_turn(self, message: Json) -> None:
        """Handle a message that arrives during a turn."""
        if message.get("method") == "session/cancel":
            self.cancelled = True
        elif "method" in message and "id" in message:
            error = {"code": -32600, "message": "a turn is running"}
            self.send(id=message["id"], error=error)


class Session:
    """One session: the next turn, the updates and the answers."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.turn = 0
        self.answers: dict[str, str] = {}
        self.updates: list[Json] = []
        self.prompts: list[str] = []
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
        session.prompts = state["prompts"]
        return session

    def fork(self) -> Session:
        """Return a saved copy with a new id."""
        other = Session.create()
        fields = loads(dumps({**vars(self), "id": other.id}))
        vars(other).update(fields)
        other.save()
        return other

    def save(self) -> None:
        """Write the session to its file, atomically."""
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
        """Run the actions whose condition on earlier answers is met, in order."""
        for action in actions:
            if self.wire.cancelled:
                raise CancelledError
            conditions: Json = action.get("when", {})
            if all(self.session.answers.get(key) == value for key, value in conditions.items()):
                self.act(action)

    def act(self, action: Json) -> None:
        """Run one action."""
        for name, perform in ACTIONS.items():
            if name in action:
                perform(self, action)
                return
        raise ScriptError(f"unknown action: {sorted(action)}")

    def update(self, kind_of_update: str, **fields: object) -> None:
        """Send an update to the client, and store the update for `session/load`."""
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
        """Send all prompts of this session as a message."""
        self.say({"say": "\n".join(self.session.prompts)})

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
        """Report the start of a tool call; return its id."""
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
        """Run a command; stop the command if the client cancels the turn."""
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
        """Collect output until the child ends, the turn is cancelled, or the deadline."""
        import selectors

        assert child.stdout is not None
        pipe, output = child.stdout.fileno(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            while not self.wire.cancelled and time.monotonic() < deadline:
                ready = {key.fd for key, _ in selector.select(deadline - time.monotonic())}
                if 0 in ready:
                    self.wire.handle_during_turn(self.wire.receive())
                if pipe in ready:
                    chunk = os.read(pipe, 65536)
                    if not chunk:
                        return output, True
                    output = (output + chunk)[:OUTPUT_LIMIT]
        return output, False

    def allowed(self, call: str, title: str) -> bool:
        """Ask for permission to run a tool call."""
        params = {
            "sessionId": self.session.id,
            "toolCall": {"toolCallId": call, "title": title},
            "options": PERMISSION_OPTIONS,
        }
        reply = self.wire.ask("session/request_permission", params)
        return bool(reply.get("outcome", {}).get("optionId") == "allow")

    def ask(self, action: Json) -> None:
        """Ask the user a question and store the answer under its id."""
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
        """Exit immediately."""
        os._exit(action["exit"])

    def hang(self, action: Json) -> None:
        """Sleep for some seconds without reading messages."""
        time.sleep(action["hang"])

    def garbage(self, action: Json) -> None:
        """Write text that is not a message."""
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
        """Answer requests until the client closes the pipe."""
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
        """Return the capabilities of the agent."""
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
        """Open a saved session, and send its updates again."""
        session = Session.load(params["sessionId"])
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        for update in session.updates:
            body = {"sessionId": session.id, "update": update}
            self.wire.send(method="session/update", params=body)
        return {}

    def fork(self, params: Json) -> Json:
        """Open a copy of a session, with a new id."""
        source = self.sessions.get(params["sessionId"]) or Session.load(params["sessionId"])
        session = source.fork()
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        return {"sessionId": session.id}

    def accept(self, _params: Json) -> Json:
        """Accept a mode or an option, which a script does not use."""
        return {}

    def prompt(self, params: Json) -> Json:
        """Run the turn whose words are in the prompt, or else the session's next turn."""
        session = self.sessions[params["sessionId"]]
        text = "\n".join(block.get("text", "") for block in params["prompt"])
        session.prompts.append(text)
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
        """Return the turn to run. After the end of the script, turns are empty."""
        turns: list[Json] = read_script().get("turn", [])
        matches = [turn for turn in turns if "on" in turn and turn["on"] in text]
        if matches:
            return matches[0]
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
        raise ScriptError(f"cannot read the script {path!r}: {error}; {REMEDY}") from error


if __name__ == "__main__":
    Agent().serve()
