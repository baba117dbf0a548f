"""An OpenID provider on the loopback, which can lie in each part of what it says."""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

Claims = dict[str, Any]
CLIENT = "benchflow"
SECRET = "the client's secret"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "one"})


class StubIssuer:
    """The state of the provider. Tests change `claims`, `sign`, `metadata` and `keys`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.user: Claims = {"sub": "ana", "groups": ["research"], "email": "ana@example.org"}
        self.change: Callable[[Claims], object] = lambda claims: None
        self.sign: Callable[[Claims], str] = sign
        self.metadata: Claims = {
            "issuer": url,
            "authorization_endpoint": f"{url}/authorize",
            "token_endpoint": f"{url}/token",
            "jwks_uri": f"{url}/keys",
        }
        self.keys = KeySet([KEY])
        self.codes: dict[str, dict[str, str]] = {}
        self.reads: list[str] = []

    def authorize(self, url: str) -> str:
        """Return the URL to which the provider leads a browser back."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.url}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def redeem(self, form: dict[str, str], authorization: str) -> tuple[int, Claims]:
        """Return the answer of the token endpoint. A code is taken once."""
        wanted = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self.codes.pop(form.get("code", ""), None)
        if authorization != f"Basic {wanted}":
            return 401, {"error": "invalid_client"}
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "exp": int(time.time()) + 300,
            "iat": int(time.time()),
            "nonce": asked["nonce"],
            **self.user,
        }
        self.change(claims)
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": self.sign(claims)}


def sign(claims: Claims, key: Any = KEY, algorithm: str = "RS256") -> str:
    """Return a signed ID token."""
    return jwt.encode({"alg": algorithm, "kid": "one"}, claims, key, algorithms=[algorithm])


def unsigned(claims: Claims) -> str:
    """Return an ID token with the algorithm `none`."""
    return f"{_first_parts('none', claims)}."


def signed_by_the_public_key(claims: Claims) -> str:
    """Return an ID token whose secret is the public key, which everybody has."""
    text = _first_parts("HS256", claims)
    mac = hmac.new(KEY.as_pem(private=False), text.encode(), hashlib.sha256).digest()
    return f"{text}.{_base64(mac)}"


def _first_parts(algorithm: str, claims: Claims) -> str:
    parts = ({"alg": algorithm, "kid": "one"}, claims)
    return ".".join(_base64(json.dumps(part).encode()) for part in parts)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@contextmanager
def running_issuer() -> Generator[StubIssuer]:
    """Serve a provider on a free port of the loopback."""
    issuer: StubIssuer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.reads.append(self.path)
            keys = issuer.keys.as_dict(private=False)
            self._answer(200, keys if self.path == "/keys" else issuer.metadata)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = dict(parse_qsl(body))
            self._answer(*issuer.redeem(form, self.headers.get("authorization", "")))

        def _answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = StubIssuer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
