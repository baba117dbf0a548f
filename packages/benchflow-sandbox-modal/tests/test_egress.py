"""Doors by Modal's outbound policy, which is experimental. Nothing here runs on Modal."""

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_testing_clouds.modal_policy import OPEN


def spec_of(upstream="https://gw.example/r", network="public", count=1, path="egress"):
    headers = {f"X-Key-{number}": f"t0ken{number}" for number in range(count)}
    return SandboxSpec(
        network=network, doors=(Door(upstream=upstream, headers=headers, path=path),)
    )


def test_the_headers_are_those_of_the_policy_and_the_sandbox_has_none(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(spec_of(count=2))
        given = server.made[sandbox.cloud_id].definition
        (found,) = given.experimental_outbound_policy.header_replacements
        headers = {"X-Key-0": "t0ken0", "X-Key-1": "t0ken1"}
        assert (found.domain, dict(found.headers)) == ("gw.example", headers)
        assert given.network_access.network_access_type == OPEN
        assert sandbox.spec.door("model").inside.headers == {}
        # Commands trust what Modal's own commands trust, because Modal reads TLS for a header.
        variables = (await sandbox.exec("env")).stdout
        assert "SSL_CERT_FILE=/etc/modal/ca-bundle.crt" in variables

    with_provider(test)


def test_a_sandbox_with_a_tunnel_has_no_policy(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(spec_of(path=None, upstream="http://127.0.0.1:9/r"))
        given = server.made[sandbox.cloud_id].definition
        assert not given.HasField("experimental_outbound_policy")

    with_provider(test)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (spec_of(network="model-only"), "'model-only'"),
        (spec_of(network="none"), "'none'"),
        (spec_of("https://gw.example:8443/r"), "port 443"),
        (spec_of(count=26), "25 header replacements"),
        (spec_of("https://gateway/r"), "Invalid domain"),
    ],
)
def test_what_modal_cannot_do_is_refused_before_a_sandbox_exists(with_provider, spec, problem):
    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError, match=problem):
            await provider.create(spec)
        assert server.creations == 0

    with_provider(test)
