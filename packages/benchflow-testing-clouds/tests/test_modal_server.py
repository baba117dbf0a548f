"""What our server with Modal's API refuses, as Modal does."""

import asyncio

import pytest
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.modal import TOKEN_ID, TOKEN_SECRET, modal_server
from benchflow_testing_clouds.modal_policy import BLOCKED
from google.protobuf.empty_pb2 import Empty
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2 as pb
from modal_proto import task_command_router_pb2 as router_pb
from modal_proto.api_grpc import ModalClientStub
from modal_proto.task_command_router_grpc import TaskCommandRouterStub

TOKENS = {"x-modal-token-id": TOKEN_ID, "x-modal-token-secret": TOKEN_SECRET}
NEWER = b"\xc0\xbb\x78\x01"
"""A field with a number that the messages of the SDK do not have."""
DAY = 24 * 3600


@pytest.fixture
def with_stubs():
    """Run an async test against the stubs of a server."""

    def run(test):
        async def main():
            async with LocalProvider() as local, modal_server(local) as (server, url):
                host, _, port = url.removeprefix("http://").partition(":")
                async with Channel(host, int(port)) as channel:
                    await test(ModalClientStub(channel), TaskCommandRouterStub(channel), server)

        asyncio.run(main())

    return run


async def refusal(call, request, **more):
    """Return the status and the message of a call that is refused."""
    with pytest.raises(GRPCError) as error:
        await call(request, metadata={**TOKENS, **more})
    return error.value.status, error.value.message


async def token(stub):
    """Return the metadata of the calls for sandboxes."""
    answer = await stub.AuthTokenGet(pb.AuthTokenGetRequest(), metadata=TOKENS)
    return {"x-modal-auth-token": answer.token}


def newer(request):
    """Add a field that only a newer SDK has."""
    return type(request).FromString(request.SerializeToString() + NEWER)


def test_a_call_without_the_token_of_the_account_or_of_a_task_is_refused(with_stubs):
    async def test(stub, router, server):
        wrong = {"x-modal-token-secret": "as-wrong"}
        assert (await refusal(stub.ClientHello, Empty(), **wrong))[0] is Status.UNAUTHENTICATED
        # Calls for sandboxes need the token of `AuthTokenGet`, too.
        request = pb.SandboxListRequest(app_id="ap-1")
        assert (await refusal(stub.SandboxListV2, request))[0] is Status.UNAUTHENTICATED
        request = router_pb.TaskExecPollRequest(task_id="ta-1", exec_id="1")
        bearer = {"authorization": "Bearer wrong"}
        assert (await refusal(router.TaskExecPoll, request, **bearer))[0] is Status.NOT_FOUND
        assert server.creations == 0

    with_stubs(test)


def test_a_call_that_the_server_does_not_have_is_refused(with_stubs):
    async def test(stub, router, server):
        del server
        calls = [
            (stub.SandboxList, pb.SandboxListRequest()),
            (stub.FunctionCreate, pb.FunctionCreateRequest()),
            (stub.SandboxSnapshot, pb.SandboxSnapshotRequest()),
        ]
        for call, request in calls:
            assert (await refusal(call, request))[0] is Status.UNIMPLEMENTED
        # A call for a task needs its token before anything else.
        status, _ = await refusal(router.TaskSnapshotMemory, router_pb.TaskSnapshotMemoryRequest())
        assert status is Status.NOT_FOUND

    with_stubs(test)


def test_a_field_that_the_server_does_not_know_is_refused(with_stubs):
    async def test(stub, router, server):
        del router
        more = await token(stub)
        for request, name in [
            (pb.SandboxListRequest(app_id="ap-1", include_finished=True), "include_finished"),
            (newer(pb.SandboxListRequest(app_id="ap-1")), "246712"),
        ]:
            status, text = await refusal(stub.SandboxListV2, request, **more)
            assert status is Status.INVALID_ARGUMENT
            assert text == f"unknown fields: ['{name}']"
        request = pb.SandboxCreateV2Request(definition=pb.Sandbox(verbose=True))
        status, text = await refusal(stub.SandboxCreateV2, request, **more)
        assert (status, text) == (Status.INVALID_ARGUMENT, "unknown fields: ['verbose']")
        assert server.creations == 0

    with_stubs(test)


BLOCK = pb.NetworkAccess(network_access_type=BLOCKED)
PORT = pb.PortSpecs(ports=[pb.PortSpec(port=80)])


@pytest.mark.parametrize(
    ("definition", "tag", "reason"),
    [
        ({"timeout_secs": DAY + 1}, "a", "over 24 h"),
        ({"timeout_secs": 0}, "a", "over 24 h"),
        ({"timeout_secs": 60, "network_access": BLOCK, "open_ports": PORT}, "a", "ports"),
        ({"timeout_secs": 60, "enable_snapshot": True}, "a", "snapshots of memory"),
        ({"timeout_secs": 60}, "x" * 64, "tags"),
        ({"timeout_secs": 60}, "a b", "tags"),
        ({"timeout_secs": 60, "image_id": "im-none"}, "a", "no image im-none"),
    ],
)
def test_a_sandbox_over_the_limits_of_modal_is_refused(with_stubs, definition, tag, reason):
    async def test(stub, router, server):
        del router
        request = pb.SandboxCreateV2Request(
            definition=pb.Sandbox(**definition),
            tags=[pb.SandboxTag(tag_name="name", tag_value=tag)],
        )
        _, text = await refusal(stub.SandboxCreateV2, request, **await token(stub))
        assert reason in text
        assert server.creations == 0

    with_stubs(test)


def test_an_image_that_is_not_one_line_from_a_known_one_is_not_built(with_stubs):
    async def test(stub, router, server):
        del router, server
        for commands in (["FROM none"], ["FROM debian:bookworm-slim", "RUN true"]):
            request = pb.ImageGetOrCreateRequest(image=pb.Image(dockerfile_commands=commands))
            answer = await stub.ImageGetOrCreate(request, metadata=TOKENS)
            assert answer.result.status == pb.GenericResult.GENERIC_STATUS_FAILURE
            assert "cannot build" in answer.result.exception

    with_stubs(test)


def test_an_image_that_does_not_exist_is_neither_found_nor_deleted(with_stubs):
    async def test(stub, router, server):
        del router, server
        for call, kind in (
            (stub.ImageFromId, pb.ImageFromIdRequest),
            (stub.ImageDelete, pb.ImageDeleteRequest),
        ):
            status, text = await refusal(call, kind(image_id="im-none"))
            assert (status, text) == (Status.NOT_FOUND, "no image im-none")

    with_stubs(test)
