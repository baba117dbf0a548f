"""The tools of a server from its OpenAPI document: each POST route with a JSON body is a tool."""

import json
from collections.abc import Container, Mapping
from typing import Any, Final

from benchflow_env_outside import WorldTool

from .hostile_json import as_object, as_text

_PREFIX: Final = "#/components/schemas/"


def tools_of_openapi(document: Mapping[str, Any], reserved: Container[str]) -> list[WorldTool]:
    """Return the tools, without the reserved names and without routes that have a parameter."""
    schemas = as_object(as_object(document.get("components")).get("schemas"))
    tools: list[WorldTool] = []
    for path, methods in as_object(document.get("paths")).items():
        name = path.strip("/")
        route = as_object(as_object(methods).get("post"))
        if not route or name in reserved or "{" in name or "/" in name:
            continue
        content = as_object(as_object(route.get("requestBody")).get("content"))
        schema = as_object(as_object(content.get("application/json")).get("schema"))
        summary = as_text(route.get("description")) or as_text(route.get("summary"))
        tools.append(WorldTool(name, summary, _resolved(schema, schemas)))
    return tools


def _resolved(schema: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that needs no other document."""
    name = as_text(schema.get("$ref")).removeprefix(_PREFIX)
    found = as_object(schemas.get(name)) if name else schema
    if not found:
        return {"type": "object", "properties": {}}
    text = json.dumps(found)
    if _PREFIX in text:
        text = json.dumps(found | {"$defs": dict(schemas)})
    return as_object(json.loads(text.replace(_PREFIX, "#/$defs/")))
