"""Login by an OpenID provider: the way there, and the way back."""

from litestar import get
from litestar.datastructures import Cookie
from litestar.exceptions import NotFoundException
from litestar.response import Redirect, Template

from benchflow_dashboard.security.access import (
    PUBLIC,
    AccessControl,
    access_of,
    limit_login,
)
from benchflow_dashboard.security.oidc import LOGIN_SEC, OidcClient
from benchflow_dashboard.security.oidc_provider import LoginRefusedError

from .login import login_form, new_session
from .page import PageRequest, local_path, render


@get("/login/oidc", include_in_schema=False, opt=PUBLIC)
async def begin_oidc_login(request: PageRequest) -> Redirect | Template:
    """Send the browser to the provider."""
    access = access_of(request)
    client = _client_of(access)
    await limit_login(access, "address", access.remote(request))
    next_url = local_path(str(request.query_params.get("next", "/")))
    try:
        login = await client.begin(next_url)
    except LoginRefusedError as error:
        return _refuse(request, error)
    return Redirect(login.url, cookies=[_cookie(access, login.binding, int(LOGIN_SEC))])


@get("/login/oidc/callback", include_in_schema=False, opt=PUBLIC)
async def finish_oidc_login(request: PageRequest) -> Template:
    """Begin a session if everything that the provider says is right."""
    access = access_of(request)
    client = _client_of(access)
    answer = {name: str(value) for name, value in request.query_params.items()}
    try:
        login = await client.finish(request.cookies.get(_cookie_name(access), ""), answer)
    except LoginRefusedError as error:
        page = _refuse(request, error)
    else:
        # The browser does not send a strict cookie with a redirect that another site began. The
        # page of this site that loads the next one begins anew.
        page = render(request, "continue.html", login.next_url, title="Logged in")
        page.set_cookie(await new_session(request, login.user))
    page.set_cookie(_cookie(access, "", 0))
    return page


def _refuse(request: PageRequest, error: LoginRefusedError) -> Template:
    access, issuer = access_of(request), _client_of(access_of(request)).settings.issuer
    access.audit.record("", "login", issuer, f"refused: {error}", access.remote(request))
    page = login_form(request, "/", problem=f"{error}. Hint: {error.hint}.")
    page.status_code = 401
    return page


def _client_of(access: AccessControl) -> OidcClient:
    if access.oidc is None:
        raise NotFoundException("this dashboard has no OpenID provider")
    return access.oidc


def _cookie_name(access: AccessControl) -> str:
    return "__Host-benchflow-login" if access.is_https else "benchflow_login"


def _cookie(access: AccessControl, value: str, max_age: int) -> Cookie:
    # Lax: the browser sends the cookie when the provider leads back.
    return Cookie(
        key=_cookie_name(access),
        value=value,
        path="/",
        max_age=max_age,
        httponly=True,
        samesite="lax",
        secure=access.is_https,
    )
