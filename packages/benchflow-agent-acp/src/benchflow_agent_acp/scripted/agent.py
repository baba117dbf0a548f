"""A real ACP agent on stdio that follows a script instead of a model.

One file, standard library only, Python >= 3.11: it runs inside the sandbox as
`python3 -I agent.py`. The script is the TOML file that BENCHFLOW_SCRIPT names, or
/solution/script.toml; each `[[turn]]` answers one prompt with its list of `do`s.
Sessions live in ~/.benchflow-scripted, so that `session/load` goes on with the next
turn. See the package's README for the script's format.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import tomllib

STATE_DIR = os.path.expanduser("~/.benchflow-scripted")
OUTPUT_LIMIT = 200_000
CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {},
    "sessionCapabilities": {},
}


class Cancelled(Exception):
    """The client ended the turn."""


class Stop(Exception):
    """The script ended the turn with an error of its own."""


class Wire:
    """ndjson on stdin and stdout."""

    def __init__(self):
        self.buffer = b""
        self.next_id = 1
        self.cancelled = False

    def send(self, **message):
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def receive(self):
        """Return the next message; leave when the client closed its end."""
        while b"\n" not in self.buffer:
            chunk = os.read(0, 65536)
            if not chunk:
                sys.exit(0)
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def ask(self, method, params):
        """Send a request and wait for its result. A cancelled turn raises."""
        request_id = f"scripted-{self.next_id}"
        self.next_id += 1
        self.send(id=request_id, method=method, params=params)
        while True:
            message = self.receive()
            if message.get("id") == request_id and "method" not in message:
                if self.cancelled:
                    raise Cancelled
                return message.get("result") or {}
            self.note(message)

    def note(self, message):
        """Take a message that arrived while a turn runs."""
        if message.get("method") == "session/cancel":
            self.cancelled = True
        elif "method" in message and "id" in message:
            error = {"code": -32600, "message": "a turn is running"}
            self.send(id=message["id"], error=error)


class Session:
    """One session: which turn comes next, what was said and answered."""

    def __init__(self, session_id, turn=0, answers=None, updates=None, calls=0):
        self.id = session_id
        self.turn = turn
        self.answers = answers or {}
        self.updates = updates or []
        self.calls = calls

    @classmethod
    def create(cls):
        os.makedirs(STATE_DIR, exist_ok=True)
        return cls(f"scripted-{len(os.listdir(STATE_DIR)) + 1}")

    @classmethod
    def load(cls, session_id):
        name = os.path.basename(session_id) + ".json"
        with open(os.path.join(STATE_DIR, name), encoding="utf-8") as file:
            return cls(**json.load(file))

    def save(self):
        path = os.path.join(STATE_DIR, self.id + ".json")
        state = {
            "session_id": self.id,
            "turn": self.turn,
            "answers": self.answers,
            "updates": self.updates,
            "calls": self.calls,
        }
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(path + ".new", path)


class Turn:
    """One prompt turn of a session."""

    def __init__(self, wire, session, cwd):
        self.wire = wire
        self.session = session
        self.cwd = cwd

    def update(self, update, **fields):
        body = {"sessionUpdate": update, **fields}
        self.session.updates.append(body)
        self.wire.send(
            method="session/update", params={"sessionId": self.session.id, "update": body}
        )

    def play(self, actions):
        for action in actions:
            if self.wire.cancelled:
                raise Cancelled
            wanted = action.get("when", {})
            if all(self.session.answers.get(key) == value for key, value in wanted.items()):
                self.act(action)

    def act(self, action):
        kind = next((name for name in ACTIONS if name in action), None)
        if kind is None:
            raise Stop(f"no known action in {sorted(action)}")
        ACTIONS[kind](self, action)

    def say(self, action):
        content = {"type": "text", "text": action["say"]}
        self.update("agent_message_chunk", content=content)

    def think(self, action):
        content = {"type": "text", "text": action["think"]}
        self.update("agent_thought_chunk", content=content)

    def start_call(self, title, kind, raw_input, **fields):
        self.session.calls += 1
        call_id = f"call-{self.session.calls}"
        self.update(
            "tool_call",
            toolCallId=call_id,
            title=title,
            kind=kind,
            status="in_progress",
            rawInput=raw_input,
            _meta={"toolName": "bash" if kind == "execute" else "write"},
            **fields,
        )
        return call_id

    def end_call(self, call_id, text, raw_output, failed, **fields):
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        self.update(
            "tool_call_update",
            toolCallId=call_id,
            status="failed" if failed else "completed",
            content=fields.get("content", content),
            rawOutput=raw_output,
        )

    def run(self, action):
        command = action["run"]
        call_id = self.start_call(command.split("\n")[0][:200], "execute", {"command": command})
        if action.get("permission") and not self.allowed(call_id, command):
            self.end_call(call_id, "not allowed", None, failed=True)
            return
        code, output = self.shell(command, action.get("timeout", 600))
        self.end_call(call_id, output, {"exit_code": code, "output": output}, failed=code != 0)
        if code != 0 and not action.get("may_fail"):
            raise Stop(f"command failed with exit code {code}: {command[:200]}")

    def write(self, action):
        path = os.path.join(self.cwd, action["write"])
        text = action.get("text", "")
        call_id = self.start_call(f"Write {path}", "edit", {"path": path})
        if action.get("permission") and not self.allowed(call_id, f"Write {path}"):
            self.end_call(call_id, "not allowed", None, failed=True)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        diff = [{"type": "diff", "path": path, "oldText": None, "newText": text}]
        self.end_call(call_id, "", None, failed=False, content=diff)

    def shell(self, command, limit):
        """Run a command; keep listening for a cancel meanwhile."""
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output, deadline = b"", time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            while not self.wire.cancelled and time.monotonic() < deadline:
                ready = {key.fd for key, _ in selector.select(deadline - time.monotonic())}
                if 0 in ready:
                    self.wire.note(self.wire.receive())
                if child.stdout.fileno() in ready:
                    chunk = os.read(child.stdout.fileno(), 65536)
                    if not chunk:
                        break
                    output = (output + chunk)[:OUTPUT_LIMIT]
            else:
                os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        child.stdout.close()
        if self.wire.cancelled:
            raise Cancelled
        return (code if code >= 0 else 128 - code), output.decode("utf-8", "replace")

    def allowed(self, call_id, title):
        reply = self.wire.ask(
            "session/request_permission",
            {
                "sessionId": self.session.id,
                "toolCall": {"toolCallId": call_id, "title": title},
                "options": [
                    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
                    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
                ],
            },
        )
        return reply.get("outcome", {}).get("optionId") == "allow"

    def question(self, action):
        question_id = action.get("id", "question")
        options = [
            {"const": option["id"], "title": option.get("label", option["id"])}
            for option in action.get("options", [])
        ]
        field = {"type": "string", "description": action["ask"]}
        if options:
            field["oneOf"] = options
        properties = {question_id: field}
        if options and action.get("custom"):
            properties[question_id + "_custom"] = {"type": "string"}
        reply = self.wire.ask(
            "elicitation/create",
            {
                "sessionId": self.session.id,
                "mode": "form",
                "message": action["ask"],
                "requestedSchema": {"type": "object", "properties": properties},
            },
        )
        content = reply.get("content") or {}
        answer = content.get(question_id, content.get(question_id + "_custom"))
        self.session.answers[question_id] = answer or reply.get("action", "failed")

    def fail(self, action):
        raise Stop(action["fail"])

    def exit(self, action):
        os._exit(action["exit"])

    def hang(self, action):
        deadline = time.monotonic() + action["hang"]
        while time.monotonic() < deadline:
            time.sleep(min(1, deadline - time.monotonic()))

    def garbage(self, action):
        os.write(1, action["garbage"].encode())


ACTIONS = {
    "say": Turn.say,
    "think": Turn.think,
    "run": Turn.run,
    "write": Turn.write,
    "ask": Turn.question,
    "fail": Turn.fail,
    "exit": Turn.exit,
    "hang": Turn.hang,
    "garbage": Turn.garbage,
}


class Agent:
    """The agent's side of the protocol."""

    def __init__(self):
        self.wire = Wire()
        self.sessions = {}
        self.cwds = {}

    def serve(self):
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
            except Stop as stop:
                self.refuse(message, -32000, str(stop))
            except (KeyError, OSError, ValueError) as error:
                self.refuse(message, -32603, repr(error))
            else:
                self.wire.send(id=message["id"], result=result)

    def refuse(self, message, code, text):
        self.wire.send(id=message["id"], error={"code": code, "message": text})

    def initialize(self, params):
        return {
            "protocolVersion": 1,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "benchflow-scripted", "version": "1"},
            "authMethods": [],
        }

    def new(self, params):
        session = Session.create()
        session.save()
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        return {"sessionId": session.id}

    def load(self, params):
        session = Session.load(params["sessionId"])
        self.sessions[session.id] = session
        self.cwds[session.id] = params["cwd"]
        for update in session.updates:
            self.wire.send(
                method="session/update", params={"sessionId": session.id, "update": update}
            )
        return {}

    def set_option(self, params):
        return {}

    def prompt(self, params):
        session = self.sessions[params["sessionId"]]
        turns = read_script().get("turn", [])
        self.wire.cancelled = False
        turn = Turn(self.wire, session, self.cwds[session.id])
        reason = "end_turn"
        try:
            if session.turn < len(turns):
                turn.play(turns[session.turn].get("do", []))
        except Cancelled:
            reason = "cancelled"
        finally:
            session.turn += 1
            session.save()
        return {"stopReason": reason}


METHODS = {
    "initialize": Agent.initialize,
    "session/new": Agent.new,
    "session/load": Agent.load,
    "session/set_mode": Agent.set_option,
    "session/set_config_option": Agent.set_option,
    "session/prompt": Agent.prompt,
}


def read_script():
    path = os.environ.get("BENCHFLOW_SCRIPT", "/solution/script.toml")
    with open(path, "rb") as file:
        return tomllib.load(file)


if __name__ == "__main__":
    Agent().serve()
