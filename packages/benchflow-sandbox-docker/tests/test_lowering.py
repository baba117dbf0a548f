from base64 import b64encode

import pytest
from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile
from benchflow_sandbox_docker.building.lowering import Lowering
from benchflow_sandbox_docker.building.output import BuildOutput, read_trace
from benchflow_sandbox_docker.building.stages import BuildStages
from hypothesis import given
from hypothesis import strategies as st

TEXT = """# syntax=docker/dockerfile:1
# escape=`
ARG BASE=debian:12
ARG NONE
FROM --platform=linux/amd64 golang:1 AS Build
RUN one `
    # a comment between
    two
from ${BASE}-slim as slim
FROM build AS more
FROM unneeded:1
FROM scratch as last
COPY --from=MORE a b
COPY --from=1 a b
COPY --from=tool/one:2 a b
COPY --from=9 a b
RUN --mount=from=tool:3,target=/x true
FROM $NONE
FROM last as golang:1
FROM golang:1
"""


def lowered(text, args=(), context="", **bases):
    file = Dockerfile.parse(text.encode())
    lowering = Lowering(file, "Dockerfile", "beside:1", context, dict(args), bases)
    return lowering, lowering.text(text)


@pytest.mark.parametrize(
    ("target", "images"),
    [
        ("", ["tool/one:2", "tool:3", "debian:12-slim", "golang:1"]),
        ("slim", ["debian:12-slim"]),
        ("More", ["golang:1"]),
        ("3", ["unneeded:1"]),
        ("5", []),
    ],
)
def test_the_images_of_a_stage_are_those_that_it_is_made_from(target, images):
    stages = BuildStages(Dockerfile.parse(TEXT.encode()), "Dockerfile", {}, {})
    assert stages.images(target) == images


def test_a_file_without_a_stage_has_no_image():
    assert BuildStages(Dockerfile.parse(b"ARG A"), "Dockerfile", {}, {}).images("x") == []


def test_the_frontend_is_the_engines_own_and_every_line_stays_where_it_is():
    _, text = lowered(TEXT)
    assert text.split("\n")[:2] == ["# escape=`", "#"]
    assert text.split("\n")[2:] == TEXT.split("\n")[2:]


HIDDEN = """FROM x AS stage
COPY --link \\
  a b
COPY --from=stage a b
ADD a b
RUN --mount=type=bind,source=a,target=/a --mount=type=cache,target=/c true
RUN --mount=target=/a,from=stage true
COPY a <<EOF /in/
text
EOF
"""


def test_a_context_without_its_dockerfile_is_an_image_beside():
    _, text = lowered(HIDDEN, context="whole:1")
    assert text.split("\n") == [
        *("FROM x AS stage", "COPY --from=whole:1 a b", "", "COPY --from=stage a b", "ADD a b"),
        "RUN --mount=type=bind,source=a,target=/a,from=whole:1 --mount=type=cache,target=/c true",
        "RUN --mount=target=/a,from=stage true",
        'COPY --from=whole:1 ["a", "/in/"]',
        'COPY --from=beside:1 ["/8/EOF", "/in/"]',
        *("", ""),
    ]


def test_documents_become_arguments_and_files_of_an_image_beside():
    text = """FROM base AS one
ENV A=1
SHELL ["bash", "-e", "-c"]
RUN --network=none <<EOF
echo "$A"
EOF
FROM one
COPY --link --chown=1:2 given <<first <<'second' /to/
$A $B
first
$A
second
COPY --link \\
  a b
RUN last
"""
    lowering, made = lowered(text, base=ImageConfig(env={"B": "2"}))
    assert made.split("\n") == [
        *text.split("\n")[:3],
        'RUN --network=none ["bash", "-e", "-c", "echo \\"$A\\"\\n"]',
        *("", "", "FROM one"),
        'COPY --chown=1:2 ["given", "/to/"]',
        'COPY --from=beside:1 --chown=1:2 ["/8/first", "/8/second", "/to/"]',
        *("", "", "", "COPY a b", "", "RUN last", ""),
    ]
    assert lowering.files == {"/8/first": "1 2\n", "/8/second": "$A\n"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("COPY given other <<a /to\na", "end with /"),
        ("COPY <<EOF\nEOF", "needs a target"),
        ("COPY <<'a b' /to\na b", "not a plain file name"),
        (f"RUN <<EOF\n{'x' * 65000}\nEOF", "longer than"),
    ],
)
def test_a_line_that_every_builder_rejects_is_refused_with_its_number(text, what):
    with pytest.raises(TaskError, match=what) as refused:
        lowered(f"FROM x\n{text}\n")
    assert refused.value.where == "Dockerfile:2"


@given(st.lists(st.sampled_from(["RUN <<A", "COPY <<A", "A", "ARG X", " /t", "#", "\\", "ENV $X"])))
def test_any_file_is_lowered_line_by_line_or_refused(lines):
    text = "\n".join(["FROM x", *lines])
    try:
        _, made = lowered(text)
    except TaskError as error:
        assert error.where.startswith("Dockerfile")  # noqa: PT017 - either is right
    else:
        assert made.count("\n") == text.count("\n")
        before, after = Dockerfile.parse(text.encode()), Dockerfile.parse(made.encode())
        assert [one.line for one in after.instructions] == [one.line for one in before.instructions]
        assert not any(one.documents for one in after.instructions)


@given(st.binary(max_size=60))
def test_any_trace_is_read(data):
    list(read_trace(b64encode(data).decode()))
    list(read_trace(data.decode("latin-1")))


def field(number, value):
    return bytes([number << 3 | 2, len(value)]) + value


def vertex(digest, name, error=b""):
    started = field(5, b"") + (field(7, error) if error else b"")
    return field(1, field(1, digest) + field(3, name) + started)


FIRST = vertex(b"a", b"[1/2] FROM base")
CANCELLED = vertex(b"a", b"[1/2] FROM base", b"context canceled")
FAILED = vertex(b"b", b"[2/2] COPY absent /", b"not found")


@pytest.mark.parametrize(
    "trace",
    [FIRST + FAILED, FAILED + FIRST, FAILED + CANCELLED],
    ids=["last", "first", "beside a cancelled step"],
)
def test_the_step_that_failed_is_named_in_any_order_of_statuses(trace):
    output = BuildOutput("Dockerfile", Dockerfile.parse(b"FROM base\n\nCOPY absent /\n"), "tag")
    output.take({"id": "moby.buildkit.trace", "aux": b64encode(trace).decode()})
    assert output.failed("not found").where == "Dockerfile:3"
