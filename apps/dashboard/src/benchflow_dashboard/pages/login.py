"""Login by token, and logout."""

import asyncio
from urllib.parse import urlencode, urlsplit

from litestar import get, post
from litestar.datastructures import Cookie
from litestar.response import Redirect, Template

from benchflow_dashboard.security.access import (
    PUBLIC,
    access_of,
    checked_form,
    limit_login,
    user_of,
)
from benchflow_dashboard.security.sessions import ABSOLUTE_SEC
from benchflow_dashboard.security.users import User

from .page import PageRequest, local_path, render


@get("/login", include_in_schema=False, opt=PUBLIC)
async def show_login(request: PageRequest) -> Template:
    """Show the form of the login."""
    return login_form(request, str(request.query_params.get("next", "/")))


@post("/login", include_in_schema=False, opt=PUBLIC, status_code=303)
async def log_in(request: PageRequest) -> Redirect | Template:
    """Begin a session with a new id, whatever cookie the browser sent."""
    access = access_of(request)
    remote = access.remote(request)
    await limit_login(access, "address", remote)
    form = await request.form()
    next_url = local_path(str(form.get("next", "/")))
    user = access.find(str(form.get("token", "")).strip())
    if user is None:
        access.audit.record("", "login", "", "refused", remote)
        page = login_form(request, next_url, problem="no user has this token")
        page.status_code = 401
        return page
    cookie = await new_session(request, user)
    return Redirect(next_url, status_code=303, cookies=[cookie])


async def new_session(request: PageRequest, user: User) -> Cookie:
    """Begin a session with a new id, end the old one, and return the cookie of the new one.

    Raises:
        HTTPException: The user logged in too often: status 429.
        StoreError: The database of sessions does not answer.
    """
    access = access_of(request)
    await limit_login(access, "user", f"{user.issuer} {user.name}")
    access.audit.record(user.name, "login", user.issuer, "ok", access.remote(request))
    old = request.cookies.get(access.cookie)
    if old is not None:
        await asyncio.to_thread(access.sessions.end, old)
    identifier, _ = await asyncio.to_thread(access.sessions.create, user)
    return Cookie(
        key=access.cookie,
        value=identifier,
        path="/",
        max_age=ABSOLUTE_SEC,
        httponly=True,
        samesite="strict",
        secure=access.is_https,
    )


@post("/logout", include_in_schema=False, status_code=303)
async def log_out(request: PageRequest) -> Redirect:
    """End the session."""
    await checked_form(request)
    access = access_of(request)
    access.audit.record(user_of(request).name, "logout", "", "ok")
    if access.has_auth:
        await asyncio.to_thread(access.sessions.end, request.cookies.get(access.cookie, ""))
    gone = Cookie(key=access.cookie, value="", path="/", max_age=0, secure=access.is_https)
    return Redirect("/login", status_code=303, cookies=[gone])


def login_form(request: PageRequest, next_url: str, problem: str = "") -> Template:
    """Return the page with the ways to log in, and why the last attempt was refused."""
    access, leads_to = access_of(request), local_path(next_url)
    oidc = access.oidc
    view = {
        "next": leads_to,
        "problem": problem,
        "has_tokens": bool(access.users) or oidc is None,
        "oidc_url": "" if oidc is None else f"/login/oidc?{urlencode({'next': leads_to})}",
        "provider": "" if oidc is None else urlsplit(oidc.settings.issuer).hostname,
    }
    return render(request, "login.html", view, title="Log in")
