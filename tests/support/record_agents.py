"""Record what Claude Code and Codex export: `python -m record_agents AGENT CLI DIRECTORY`.

The tests of benchflow-traces read the recorded requests. Each is one body of OTLP over HTTP in
protobuf, compressed by gzip. The agent runs one prompt with two commands, the second of which
fails, beside a scripted model on loopback. Run it without a network, so that nothing else is
reached, as root:

    npm install @anthropic-ai/claude-code @openai/codex
    PYTHONPATH=tests/support unshare -n sh -c "ip link set lo up && python -m record_agents \
        claude node_modules/@anthropic-ai/claude-code-linux-x64/claude DIRECTORY"

`--without-content` leaves out the options that report prompts and tools. Names of the machine, its
user and its directories are replaced.
"""

import argparse
import gzip
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from chat_stub import Received, receiver
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

PROMPT = "What does the file hello.txt say? Then run the command."
TEXTS = ("I look at the file.", "Now the command.", "The file says old. The command failed.")
_COMMANDS = ("cat hello.txt", "exit 3")
_KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/logs": ExportLogsServiceRequest}
_SCRUBBED = {"user.id", "host.name", "host.arch", "os.version", "user.email", "user.account_uuid"}


def answer(request: ModelRequest) -> ModelReply:
    """Call the shell twice, then answer. A request without tools asks for a title."""
    number = len(request.tool_results)
    if not request.tools or number >= len(_COMMANDS):
        return ModelReply(text=TEXTS[-1] if request.tools else "A title")
    for name, schema in request.tools.items():
        for key in ("command", "cmd"):
            if key in schema.get("properties", {}):
                use = ToolUse(name, {key: _COMMANDS[number]})
                return ModelReply(text=TEXTS[number], tools=(use,))
    raise AssertionError("the agent has no shell")


def claude(cli: str, model: str, collector: str, *, has_content: bool) -> tuple[list[str], Any]:
    """Return the command and the variables of Claude Code."""
    names = ("OTEL_LOG_USER_PROMPTS", "OTEL_LOG_TOOL_DETAILS", "OTEL_LOG_TOOL_CONTENT")
    variables = {
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "not-a-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
        "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=recorded",
        **dict.fromkeys(names if has_content else (), "1"),
    }
    words = ["--model", "claude-scripted", "--dangerously-skip-permissions"]
    return [cli, "-p", PROMPT, *words], variables


def codex(cli: str, model: str, collector: str, *, has_content: bool, home: Path) -> Any:
    """Return the command and the variables of Codex, and write its configuration."""
    endpoint = f'{{ endpoint = "{collector}%s", protocol = "binary" }}'
    config = f"""
model = "scripted"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{model}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
[otel]
environment = "recorded"
log_user_prompt = {str(has_content).lower()}
exporter = {{ otlp-http = {endpoint % "/v1/logs"} }}
trace_exporter = {{ otlp-http = {endpoint % "/v1/traces"} }}
[analytics]
enabled = false
"""
    (home / "config.toml").write_text(config)
    words = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    variables = {"LOCAL_KEY": "not-a-key", "CODEX_HOME": str(home)}
    return [cli, "exec", *words, PROMPT], variables


def record(agent: str, cli: str, *, has_content: bool) -> Received:
    """Run an agent once, and return what it exported."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as directory,
        ScriptedLlm(answer) as llm,
        receiver() as received,
    ):
        home, repo = Path(directory, "home"), Path(directory, "repo")
        home.mkdir()
        repo.mkdir()
        (repo / "hello.txt").write_text("old\n")
        urls = (cli, llm.url, received.url)
        command, variables = (
            claude(*urls, has_content=has_content)
            if agent == "claude"
            else codex(*urls, has_content=has_content, home=home)
        )
        plain = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"}
        subprocess.run(
            command,
            cwd=repo,
            env=plain | variables,
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=150,
        )
        bodies = [(path, h, scrubbed(path, b, directory)) for path, h, b in received.requests if b]
        return Received(received.url, bodies)


def scrubbed(path: str, body: bytes, directory: str) -> bytes:
    """Return a request without names of the machine, its user and its directories."""
    message = _KINDS[path].FromString(body)
    _scrub(message, directory)
    return message.SerializeToString()


def _scrub(message: Message, directory: str) -> None:
    if message.DESCRIPTOR.name == "KeyValue" and getattr(message, "key") in _SCRUBBED:  # noqa: B009
        getattr(message, "value").string_value = "scrubbed"  # noqa: B009
    for field, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, field.name, value.replace(directory, "/recorded"))
        elif field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _scrub(inner, directory)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("agent", choices=("claude", "codex"))
    parser.add_argument("cli")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--without-content", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    received = record(options.agent, options.cli, has_content=not options.without_content)
    for number, (path, _, body) in enumerate(received.requests):
        name = f"{number}-{path.rpartition('/')[2]}.pb.gz"
        (options.directory / name).write_bytes(gzip.compress(body, mtime=0))


if __name__ == "__main__":
    main()
