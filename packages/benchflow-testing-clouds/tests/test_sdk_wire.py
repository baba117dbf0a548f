"""The comparison of an SDK with what our servers know."""

import json
import subprocess
import sys

import pytest
from benchflow_testing_clouds import sdk_wire
from benchflow_testing_clouds.grpc_service import GrpcService
from benchflow_testing_clouds.modal import ModalServer
from benchflow_testing_clouds.modal_router import TaskRouter
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase


@pytest.fixture
def known():
    """Return what is stored of each SDK."""
    return json.loads(sdk_wire.KNOWN.read_text())


def test_the_installed_sdks_have_the_routes_and_messages_that_our_servers_know():
    command = [sys.executable, sdk_wire.__file__, "daytona", "e2b", "modal"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {name: each["changed"] for name, each in found.items()} == {
        "daytona": {},
        "e2b": {},
        "modal": {},
    }


def test_everything_that_is_compared_is_stored(known):
    assert known.keys() == sdk_wire.USED.keys()
    assert all(set(sdk_wire.USED[sdk]) == known[sdk]["used"].keys() for sdk in known)


def test_the_calls_of_modal_that_are_compared_are_those_of_our_server():
    services = [
        GrpcService(ModalClientBase, ModalServer(None, images={})),
        GrpcService(TaskCommandRouterBase, TaskRouter(None, None)),
    ]
    served = set().union(*(each.served() for each in services))
    assert served == {name for name in sdk_wire.USED["modal"] if not name.startswith("message ")}


def test_a_changed_missing_and_new_part_are_told_apart(known):
    before = known["modal"]
    wire = dict(before["used"]) | dict.fromkeys(before["related"], "")
    wire |= before["used"]
    assert sdk_wire.compare("modal", before, wire)["changed"] == {}
    wire["ClientHello"] += ", 9 added: 9"
    del wire["TaskExecPoll"]
    wire["SandboxTeleport"] = ""
    found = sdk_wire.compare("modal", before, wire)
    assert found["changed"].keys() == {"ClientHello", "TaskExecPoll"}
    assert found["changed"]["TaskExecPoll"]["installed"] is None
    assert (found["new"], found["gone"]) == (["SandboxTeleport"], ["TaskExecPoll"])


def test_an_sdk_that_is_not_known_is_refused(capsys):
    assert sdk_wire.main([]) == sdk_wire.main(["cloud"]) == 2
    assert "cloud" in capsys.readouterr().err
