"""Login by an OpenID provider that lies in each part of what it says."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from benchflow_contracts import UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.security.oidc_settings import OidcSettings
from dashboard_forms import csrf_of
from joserfc.jwk import ECKey, KeySet
from litestar.testing import TestClient
from oidc_issuer import (
    CLIENT,
    KEY,
    OTHER_KEY,
    SECRET,
    StubIssuer,
    running_issuer,
    sign,
    signed_by_the_public_key,
    unsigned,
)
from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from litestar import Litestar

ADDRESS = "http://127.0.0.1:8642"
ROLES = {"viewer": ["research"], "operator": ["operators"], "admin": ["admins", "root"]}


@pytest.fixture
def issuer() -> Iterator[StubIssuer]:
    with running_issuer() as issuer:
        yield issuer


class Site:
    """A dashboard whose users come from the provider."""

    def __init__(self, home: Path, issuer: StubIssuer, **oidc: Any) -> None:
        (home / "jobs").mkdir(exist_ok=True)
        self.audit = home / "audit.jsonl"
        self._settings = {
            "jobs_dir": home / "jobs",
            "sessions": home / "sessions.db",
            "audit_log": self.audit,
            "oidc": {
                "issuer": issuer.url,
                "client_id": CLIENT,
                "client_secret_env": "OIDC_SECRET",
                "public_url": ADDRESS,
                "roles": ROLES,
                **oidc,
            },
        }
        self._home = home

    def start(self, name: str = "index") -> TestClient[Litestar]:
        """Return a browser at the dashboard."""
        settings = DashboardSettings(**self._settings, index=self._home / f"{name}.db")
        return TestClient(create_app(settings), base_url=ADDRESS)

    def logins(self) -> list[str]:
        """Return the outcome of each login in the audit log."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line["outcome"] for line in lines if line["action"] == "login"]


@pytest.fixture
def site(tmp_path: Path, issuer: StubIssuer, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("OIDC_SECRET", SECRET)
    return Site(tmp_path, issuer)


@pytest.fixture
def browser(site: Site) -> Iterator[TestClient[Litestar]]:
    with site.start() as browser:
        yield browser


def go_to_provider(browser: TestClient[Litestar], next_url: str = "/jobs") -> str:
    """Begin a login, and return the URL of the provider's page."""
    answer = browser.get("/login/oidc", params={"next": next_url}, follow_redirects=False)
    assert answer.status_code == 302
    return answer.headers["location"]


def log_in(browser: TestClient[Litestar], issuer: StubIssuer) -> Any:
    """Go to the provider and back, and return the page of the dashboard."""
    return browser.get(issuer.authorize(go_to_provider(browser)), follow_redirects=False)


def other_claims(token: str, other: str) -> str:
    """Return `token` with the claims of another one."""
    return ".".join([token.split(".", maxsplit=1)[0], other.split(".")[1], token.split(".")[2]])


def is_logged_in(browser: TestClient[Litestar]) -> bool:
    return browser.get("/runs", follow_redirects=False).status_code == 200


def test_a_user_of_the_provider_logs_in_and_out(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    assert "Log in with 127.0.0.1" in browser.get("/login?next=/jobs").text
    browser.cookies.set("benchflow_session", "chosen-by-an-attacker")
    page = log_in(browser, issuer)

    assert page.status_code == 200
    assert 'content="0; url=/jobs"' in page.text
    cookies = page.headers.get_list("set-cookie")
    session = next(each for each in cookies if each.startswith("benchflow_session="))
    assert "SameSite=strict" in session
    assert "HttpOnly" in session
    assert "chosen-by-an-attacker" not in session
    browser.cookies.delete("benchflow_session", domain="")
    assert is_logged_in(browser)
    assert site.logins() == ["ok"]
    browser.post("/logout", data={"csrf": csrf_of(browser)})
    assert not is_logged_in(browser)


def test_the_way_to_the_provider_carries_state_nonce_and_a_challenge(
    browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    first, second = (parse_qs(urlsplit(go_to_provider(browser)).query) for _ in range(2))

    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name][0]) >= 43
        assert first[name] != second[name]
    assert first["code_challenge_method"] == ["S256"]
    assert first["redirect_uri"] == [f"{ADDRESS}/login/oidc/callback"]
    assert issuer.reads == ["/.well-known/openid-configuration"]


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other issuer": (lambda c: c.update(iss="https://evil.example"), "iss"),
    "no issuer": (lambda c: c.pop("iss"), "iss"),
    "other audience": (lambda c: c.update(aud="another"), "aud"),
    "no audience": (lambda c: c.pop("aud"), "aud"),
    "audience is not a text": (lambda c: c.update(aud=[CLIENT, 1]), "aud"),
    "further audience": (lambda c: c.update(aud=[CLIENT, "another"]), "azp"),
    "other party": (lambda c: c.update(azp="another"), "azp"),
    "expired": (lambda c: c.update(exp=int(time.time()) - 120), "expired"),
    "no end": (lambda c: c.pop("exp"), "exp"),
    "end is not a number": (lambda c: c.update(exp="tomorrow"), "exp"),
    "issued in the future": (lambda c: c.update(iat=int(time.time()) + 600), "future"),
    "issued long ago": (lambda c: c.update(iat=int(time.time()) - 7200), "iat"),
    "never issued": (lambda c: c.pop("iat"), "iat"),
    "not valid yet": (lambda c: c.update(nbf=int(time.time()) + 600), "not yet valid"),
    "other nonce": (lambda c: c.update(nonce="x"), "nonce"),
    "no nonce": (lambda c: c.pop("nonce"), "nonce"),
    "nonce in a list": (lambda c: c.update(nonce=[c["nonce"]]), "nonce"),
    "no subject": (lambda c: c.pop("sub"), "sub"),
    "empty subject": (lambda c: c.update(sub=""), "sub"),
    "subject is not a text": (lambda c: c.update(sub=7), "sub"),
    "no group": (lambda c: c.pop("groups"), "groups"),
    "other group": (lambda c: c.update(groups=["visitors", 1, None]), "groups"),
    "group of a mapping": (lambda c: c.update(groups={"research": True}), "groups"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_a_claim_is_refused_and_audited(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer, name: str
) -> None:
    issuer.change, why = LIES[name]
    page = log_in(browser, issuer)

    assert page.status_code == 401
    assert why in page.text.split('role="alert">')[1].split("</p>")[0]
    assert not is_logged_in(browser)
    (outcome,) = site.logins()
    assert outcome.startswith("refused: ")
    assert why in outcome


@pytest.mark.parametrize(
    "forge",
    [
        unsigned,
        signed_by_the_public_key,
        lambda claims: sign(claims, OTHER_KEY),
        lambda claims: sign(claims)[:-8] + "AAAAAAAA",
        lambda claims: other_claims(sign(claims), sign({**claims, "groups": ["root"]})),
        lambda claims: "",
        lambda claims: "a.b.c",
        lambda claims: None,
        lambda claims: {"sub": "ana"},
    ],
    ids=["none", "public-key", "other-key", "cut", "swapped", "empty", "text", "absent", "object"],
)
def test_a_token_with_a_wrong_signature_is_refused(
    site: Site,
    browser: TestClient[Litestar],
    issuer: StubIssuer,
    forge: Callable[[dict[str, Any]], Any],
) -> None:
    issuer.sign = forge
    page = log_in(browser, issuer)

    assert page.status_code == 401
    assert "ID token" in page.text
    assert not is_logged_in(browser)
    assert site.logins()[0].startswith("refused: ")


def test_an_answer_counts_once_and_only_in_the_browser_that_asked(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    back = issuer.authorize(go_to_provider(browser))
    with site.start("other") as stranger:
        assert "state" in stranger.get(back).text
        go_to_provider(stranger)
        assert "state" in stranger.get(back).text
        assert not is_logged_in(stranger)
    binding = browser.cookies["benchflow_login"]
    assert browser.get(back).status_code == 200
    assert is_logged_in(browser)

    browser.cookies.set("benchflow_login", binding)
    assert "used already" in browser.get(back, follow_redirects=False).text
    assert site.logins()[2:] == ["ok", site.logins()[-1]]
    assert "used already" in site.logins()[-1]


def test_a_code_that_the_provider_does_not_know_is_refused(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    back = issuer.authorize(go_to_provider(browser))
    issuer.codes.clear()

    assert "invalid_grant" in browser.get(back).text
    assert not is_logged_in(browser)
    assert "invalid_grant" in site.logins()[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "x"}, "state"),
        ({"state": "\u00e4"}, "state"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"code": ""}, "no code"),
        ({"error": "access_denied"}, "access_denied"),
        ({"error": "<script>alert(1)</script>"}, "&lt;script&gt;"),
    ],
)
def test_a_wrong_answer_is_refused(
    site: Site,
    browser: TestClient[Litestar],
    issuer: StubIssuer,
    change: dict[str, str],
    why: str,
) -> None:
    back = urlsplit(issuer.authorize(go_to_provider(browser)))
    answer = {name: values[0] for name, values in parse_qs(back.query).items()}
    page = browser.get(back.path, params={**answer, **change}, follow_redirects=False)

    assert page.status_code == 401
    assert why in page.text
    assert "<script>alert" not in page.text
    assert not is_logged_in(browser)
    assert len(site.logins()) == 1


def test_metadata_of_another_issuer_or_without_https_is_refused(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    for change in ({"issuer": "https://evil.example"}, {"token_endpoint": "http://evil.example/t"}):
        good = dict(issuer.metadata)
        issuer.metadata.update(change)
        assert browser.get("/login/oidc", follow_redirects=False).status_code == 401
        issuer.metadata = good
    assert ["another issuer" in site.logins()[0], "https" in site.logins()[1]] == [True, True]
    assert log_in(browser, issuer).status_code == 200


def test_a_new_key_of_the_provider_is_read_and_an_unknown_one_is_refused(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    new = ECKey.generate_key("P-256", {"kid": "one"})
    issuer.keys = KeySet([new])
    issuer.sign = lambda claims: sign(claims, new, "ES256")
    assert log_in(browser, issuer).status_code == 200
    issuer.sign = lambda claims: sign(claims, KEY)
    assert log_in(browser, issuer).status_code == 401


def test_the_highest_role_of_the_groups_counts_and_bounds_what_the_user_may(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer
) -> None:
    settings = OidcSettings(issuer=issuer.url, client_id="x", public_url=ADDRESS, roles=ROLES)
    assert settings.role_of(["operators", "root", "research"]) == "admin"
    assert settings.role_of("research") == "viewer"
    assert log_in(browser, issuer).status_code == 200
    form = {"rule": "silent", "hours": "1", "csrf": csrf_of(browser)}
    assert browser.post("/alerts/silence", data=form).status_code == 403


def test_the_session_is_known_to_another_process_and_not_to_one_of_another_provider(
    site: Site, browser: TestClient[Litestar], issuer: StubIssuer, tmp_path: Path
) -> None:
    log_in(browser, issuer)
    session = browser.cookies["benchflow_session"]
    with site.start("other") as second:
        second.cookies.set("benchflow_session", session)
        assert is_logged_in(second)
    with running_issuer() as another, Site(tmp_path, another).start("third") as third:
        third.cookies.set("benchflow_session", session)
        assert not is_logged_in(third)


def test_a_provider_that_is_away_is_named(site: Site, tmp_path: Path) -> None:
    with running_issuer() as gone:
        pass
    with Site(tmp_path, gone).start() as browser:
        page = browser.get("/login/oidc", follow_redirects=False)
    assert page.status_code == 401
    assert "does not answer" in page.text


def test_wrong_settings_are_refused(
    site: Site, issuer: StubIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"issuer": issuer.url, "client_id": "x", "public_url": ADDRESS, "roles": ROLES}
    for change in (
        {"issuer": "http://idp.example"},
        {"public_url": "http://bench.example"},
        {"issuer": "ftp://127.0.0.1"},
        {"roles": {}},
        {"roles": {"owner": ["x"]}},
    ):
        with pytest.raises(ValidationError):
            OidcSettings.model_validate({**good, **change})
    monkeypatch.delenv("OIDC_SECRET")
    with pytest.raises(UsageError, match="OIDC_SECRET"):
        site.start()
