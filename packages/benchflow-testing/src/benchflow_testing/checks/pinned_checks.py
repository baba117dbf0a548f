"""Checks of `HasImageDigests`: by which bytes a sandbox names what it was made from."""

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
    """An image without a digest is left out, for each sandbox of that spec."""
    first, again = [await _told(subject, subject.spec) for _ in range(2)]
    expect_equal(again, first, "what another sandbox of the same spec was made from")


@promise(lacks_builds)
async def other_bytes_have_another_digest(subject: SandboxSubject) -> None:
    """Equal bytes have equal digests, whatever directory they come from."""
    own = uuid4().hex
    first, again, other = [
        await _told(subject, _built(subject, each)) for each in (own, own, f"{own} ")
    ]
    if not first:
        raise CheckSkippedError("what is built here has no name of its bytes")
    expect_equal(again, first, "what a sandbox of the same bytes was made from")
    expect(other.keys() == first.keys(), f"of other bytes only {set(other)!r} are named")
    expect(other != first, f"other bytes are named {first[MAIN]!r} as well")


@promise(lacks_services)
async def a_service_has_a_digest_of_its_own(subject: SandboxSubject) -> None:
    """A service with the sandbox's image has the same digest, or neither has one."""
    idle = ("sh", "-c", "sleep 1000")
    service = ServiceSpec(name=_BESIDE, image=subject.base, entrypoint=idle)
    told = await _told(subject, subject.specified(image=subject.base, services=(service,)))
    expect_equal(told.get(_BESIDE), told.get(MAIN), "the digest of a service of the same image")


async def _told(subject: SandboxSubject, spec: SandboxSpec) -> Mapping[str, str]:
    async with subject.box(spec=spec) as box:
        return _digests(box)


def _digests(box: Sandbox) -> Mapping[str, str]:
    if not isinstance(box, HasImageDigests):
        raise CheckSkippedError("the sandbox does not name what it was made from")
    told = dict(box.image_digests)
    strangers = set(told) - {MAIN, *(service.name for service in box.spec.services)}
    expect(not strangers, f"images of {sorted(strangers)!r}, which nobody asked for, are named")
    odd = {name: text for name, text in told.items() if not _DIGEST.fullmatch(text)}
    expect(not odd, f"no digests, nor names with one: {odd!r}")
    return told


def _built(subject: SandboxSubject, text: str) -> SandboxSpec:
    context = subject.folder()
    dockerfile = f"FROM {subject.base}\nCOPY text /text\n"
    for name, content in {"Dockerfile": dockerfile, "text": text}.items():
        (context / name).write_text(content, encoding="utf-8")
    return subject.specified(image=None, recipe=ImageRecipe(context=context))


PINNED_CHECKS: tuple[SandboxCheck, ...] = (
    the_same_spec_has_the_same_digest,
    other_bytes_have_another_digest,
    a_service_has_a_digest_of_its_own,
)
