import subprocess
import sys

import pydantic
import pytest
from benchflow_agent_acp import acp_messages
from benchflow_agent_acp.acp_messages import import_messages

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


def test_another_module_that_is_imported_meanwhile_keeps_its_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[object] = []

    def look(_: str) -> None:
        given.append(pydantic.ConfigDict(use_attribute_docstrings=True))

    monkeypatch.setattr(acp_messages, "import_module", look)
    usual = pydantic.ConfigDict
    import_messages()
    assert given == [{"use_attribute_docstrings": True}]
    assert pydantic.ConfigDict is usual
