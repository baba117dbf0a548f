"""Checks of `HasImageDigests`: the digests of a sandbox's images."""

import re
from collections.abc import Mapping
from uuid import uuid4

from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import HasImageDigests, Sandbox, SandboxSpec
from benchflow_contracts.service import MAIN, ServiceSpec

from benchflow_testing.check import CheckSkippedError, expect, expect_equal, promise
from benchflow_testing.sandbox_subject import (
    SandboxCheck,
    SandboxSubject,
    lacks_builds,
    lacks_services,
)

_DIGEST = re.compile(r"([^@\s]+@)?sha256:[0-9a-f]{64}")
_BESIDE = "beside"


@promise()
async def the_same_spec_has_the_same_digest(subject: SandboxSubject) -> None:
    """Two sandboxes of one spec have the same digests. An image without a digest is omitted."""
    first, again = [await _digests_of(subject, subject.spec) for _ in range(2)]
    expect_equal(again, first, "the digests of another sandbox of the same spec")


@promise(lacks_builds)
async def other_bytes_have_another_digest(subject: SandboxSubject) -> None:
    """Equal files have equal digests, also from different directories."""
    own = uuid4().hex
    first, again, other = [
        await _digests_of(subject, _built(subject, each)) for each in (own, own, f"{own} ")
    ]
    if not first:
        raise CheckSkippedError("built images do not have digests here")
    expect_equal(again, first, "the digests of a sandbox with equal files")
    expect(other.keys() == first.keys(), f"with other files only {set(other)!r} have digests")
    expect(other != first, f"other files have the same digest {first[MAIN]!r}")


@promise(lacks_services)
async def a_service_has_a_digest_of_its_own(subject: SandboxSubject) -> None:
    """A service with the sandbox's image has the same digest, or neither has one."""
    idle = ("sh", "-c", "sleep 1000")
    service = ServiceSpec(name=_BESIDE, image=subject.base, entrypoint=idle)
    digests = await _digests_of(subject, subject.spec_with(image=subject.base, services=(service,)))
    expect_equal(
        digests.get(_BESIDE), digests.get(MAIN), "the digest of a service of the same image"
    )


async def _digests_of(subject: SandboxSubject, spec: SandboxSpec) -> Mapping[str, str]:
    async with subject.open_sandbox(spec=spec) as sandbox:
        return _digests(sandbox)


def _digests(sandbox: Sandbox) -> Mapping[str, str]:
    if not isinstance(sandbox, HasImageDigests):
        raise CheckSkippedError("the sandbox does not report image digests")
    digests = dict(sandbox.image_digests)
    unknown = set(digests) - {MAIN, *(service.name for service in sandbox.spec.services)}
    expect(not unknown, f"there are digests of unknown images: {sorted(unknown)!r}")
    invalid = {name: text for name, text in digests.items() if not _DIGEST.fullmatch(text)}
    expect(not invalid, f"these are not digests: {invalid!r}")
    return digests


def _built(subject: SandboxSubject, text: str) -> SandboxSpec:
    context = subject.folder()
    dockerfile = f"FROM {subject.base}\nCOPY text /text\n"
    for name, content in {"Dockerfile": dockerfile, "text": text}.items():
        (context / name).write_text(content, encoding="utf-8")
    return subject.spec_with(image=None, recipe=ImageRecipe(context=context))


PINNED_CHECKS: tuple[SandboxCheck, ...] = (
    the_same_spec_has_the_same_digest,
    other_bytes_have_another_digest,
    a_service_has_a_digest_of_its_own,
)
