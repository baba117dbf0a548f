import subprocess
import sys

IMPORT = """
import pydantic
usual = pydantic.ConfigDict
from benchflow_agent_acp.acp_messages import import_messages

import_messages()
from acp.schema import NewSessionRequest

assert pydantic.ConfigDict is usual
assert not any(each.description for each in NewSessionRequest.model_fields.values())
wire = {"cwd": "/work", "mcpServers": []}
request = NewSessionRequest.model_validate(wire)
assert request.model_dump(by_alias=True, exclude_unset=True) == wire
"""


def test_messages_are_imported_without_descriptions_and_validate_as_usual() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], check=True)
