from benchflow_sandbox_docker.building.dockerfile import bases, instructions
from hypothesis import given
from hypothesis import strategies as st

TEXT = """# syntax=docker/dockerfile:1
# escape=`
ARG BASE=debian:12
FROM --platform=linux/amd64 golang:1 AS Build
RUN one `
    # a comment between
    two `

    three
from $BASE
FROM build
FROM scratch as last
COPY --from=build a b
FROM golang:1
FROM local/image@sha256:00
"""


def test_lines_that_go_on_belong_to_one_instruction():
    found = [(each.line, each.text.split()) for each in instructions(TEXT)]
    assert found[:3] == [
        (3, ["ARG", "BASE=debian:12"]),
        (4, ["FROM", "--platform=linux/amd64", "golang:1", "AS", "Build"]),
        (5, ["RUN", "one", "two", "three"]),
    ]
    assert [line for line, _ in found[3:]] == [10, 11, 12, 13, 14, 15]


def test_bases_are_images_and_not_stages():
    assert bases(TEXT) == ["golang:1", "local/image@sha256:00"]


@given(st.text("FROM scratchAS\\`#\n =$:/", max_size=200))
def test_any_text_is_split_into_lines_that_it_has(text):
    found = [each.line for each in instructions(text)]
    assert found == sorted(set(found))
    assert not found or 1 <= found[0] <= found[-1] <= len(text.splitlines())
    bases(text)
