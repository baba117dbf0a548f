import pytest
from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.accounts import Accounts
from benchflow_sandbox_core.image_config import ImageConfig
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(TEXT.filter(lambda key: "=" not in key), TEXT), TEXT, TEXT, st.lists(TEXT))
def test_a_config_is_read_as_it_was_written(env, user, workdir, entrypoint):
    config = ImageConfig(env, user, workdir, tuple(entrypoint))
    assert ImageConfig.of(config.encode()) == config


@pytest.mark.parametrize(
    "config",
    [{"Env": "A=1"}, {"Env": [1]}, {"User": 5}, {"WorkingDir": ["/"]}, {"Entrypoint": ["a\0"]}],
)
def test_a_config_of_other_types_is_refused(config):
    with pytest.raises(SandboxError, match=next(iter(config))):
        ImageConfig.of(config)


def test_a_spec_takes_what_it_leaves_to_the_image():
    config = ImageConfig.of({"User": "app:web", "WorkingDir": "/srv", "Entrypoint": ["/run.sh"]})
    filled = config.fill(SandboxSpec(user="", workdir="", entrypoint="image"))
    assert (filled.user, filled.workdir) == ("app:web", "/srv")
    assert config.command(ContainerOptions()) == ("/run.sh", "sh", "-c", "sleep infinity")
    assert config.fill(SandboxSpec()) == SandboxSpec()


def test_an_image_that_says_nothing_is_roots_and_runs_nothing():
    filled = ImageConfig.of({"Env": None}).fill(SandboxSpec(user="", workdir=""))
    assert (filled.user, filled.workdir, ImageConfig().command(ContainerOptions())) == (
        "root",
        "/",
        (),
    )


def test_a_user_may_come_with_a_group():
    accounts = Accounts(b"app:x:7:7::/srv:/bin/sh\n", b"app:x:7:\nweb:x:8:app\n")
    assert accounts.look_up("app").groups == (7, 8)
    assert accounts.look_up("app:web").groups == (8,)
    found = accounts.look_up("7:99")
    assert (found.name, found.uid, found.gid, found.groups) == ("app", 7, 99, (99,))
    with pytest.raises(SandboxError, match="no group 'none'"):
        accounts.look_up("app:none")
