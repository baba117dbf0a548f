import pytest
from benchflow_testing import check_sandbox


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("memory", [False, True])
def test_the_sdk_of_modal_against_our_server_keeps_every_promise_of_the_contract(
    with_provider, memory
):
    async def test(provider, server):
        del server
        return await check_sandbox(provider, at_once=4)

    results = with_provider(test, memory=memory)
    failed = {r.name: r.reason for r in results if r.status == "failed"}
    # The sandboxes of our server have no network, whatever the SDK asks for.
    failed.pop("a_public_network_has_a_route", None)
    assert failed == {}
    assert [r for r in results if r.status == "passed"]
