import json

from benchflow_testing_clouds import sdk_wire


def test_the_installed_sdk_has_the_routes_and_messages_that_our_server_knows(capsys):
    assert sdk_wire.main(["kubernetes"]) == 0
    assert json.loads(capsys.readouterr().out)["kubernetes"]["changed"] == {}
