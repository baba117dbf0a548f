"""Describe every route of an application as OpenAPI, also the routes that the app does not list."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from litestar import Litestar
from litestar.routes import HTTPRoute


def public_paths(app: Litestar) -> set[str]:
    """Return the paths whose handlers need no login."""
    return {
        route.path_format
        for route in _routes(app)
        if any(each.opt.get("is_public") for each in route.route_handlers)
    }


def route_schema(app: Litestar, words: Iterable[str], fields: Iterable[str]) -> dict[str, Any]:
    """Return the description: parameters are one of `words`, fields of forms are any text.

    `fields` are the parameters of each query and of each form.
    """
    word, text = {"enum": sorted(set(words))}, {"type": "string", "maxLength": 40}
    names = sorted(set(fields))
    query = [{"name": name, "in": "query", "schema": word} for name in names]
    form = {"type": "object", "properties": dict.fromkeys(names, text)}
    paths: dict[str, Any] = {}
    for route in _routes(app):
        places = [
            {"name": each.name, "in": "path", "required": True, "schema": word}
            for each in route.path_components
            if not isinstance(each, str)
        ]
        operations = paths.setdefault(route.path_format, {})
        for method in sorted(route.methods - {"HEAD", "OPTIONS"}):
            operation: dict[str, Any] = {"parameters": [*places, *query], "responses": _ANY}
            if method != "GET":
                content = {"application/x-www-form-urlencoded": {"schema": form}, **_JSON}
                operation["requestBody"] = {"content": content}
            operations[method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "routes", "version": "0"}, "paths": paths}


_JSON: Mapping[str, Any] = {"application/json": {"schema": {}}}
_ANY: Mapping[str, Any] = {"default": {"description": "any answer"}}


def _routes(app: Litestar) -> list[HTTPRoute]:
    routes = cast("list[Any]", app.routes)
    return [each for each in routes if isinstance(each, HTTPRoute)]
