"""The OpenAPI document of the control API, made from its operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from fencepost.simulation.control.documents import Base64
from fencepost.simulation.control.operations import NOT_SCOPED, Operation
from fencepost.simulation.report.page import version

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "The request is not what the operation takes; the text says what was expected, and where.",
    "401": "The token is missing or wrong.",
    "403": "A page of another origin sent the request.",
    "413": "The body is too long.",
    "409": "The operation can't be carried out, and changed nothing; the text says why.",
    "503": "The server stops, or its brokers do not serve.",
    "504": "What was waited for did not happen in time; the text says what is missing.",
}


class NewScope(msgspec.Struct, forbid_unknown_fields=True):
    """A scope to open."""

    name: str = "test"
    """The beginning of its prefix."""
    topics: dict[str, int] = {}
    """Topics to create in it: partitions by name, without the prefix."""


class OpenScope(msgspec.Struct):
    """An open scope."""

    scope: str
    """Its name in paths."""
    prefix: str
    """The beginning of the full names of its topics, groups, transactional ids and clients."""
    topics: dict[str, str]
    """The full names of its topics that were created with it, by the names that were given."""


class ControlRefusal(msgspec.Struct):
    """The reason why a request was refused."""

    error: str


class Health(msgspec.Struct):
    """The state of the server."""

    status: str
    bootstrap_servers: str


def document(operations: Sequence[Operation], *, has_token: bool, has_scopes: bool = True) -> dict[str, Any]:
    """Return the document; a server without scopes has no metrics, either."""
    named = [each.arguments for each in operations] + [each.result for each in operations]
    taken = [*named, NewScope, OpenScope, ControlRefusal, Health, Base64, list[OpenScope]]
    schemas, components = msgspec.json.schema_components(
        [each for each in taken if each is not type(None)], ref_template=_REF
    )
    by_type = dict(zip((str(each) for each in taken if each is not type(None)), schemas, strict=True))

    def schema(of: Any) -> Any:
        return {"type": "null"} if of is type(None) else by_type[str(of)]

    paths: dict[str, Any] = {}
    for each in operations:
        entry = _operation(each, schema(each.result), components)
        paths.setdefault(each.path, {})[each.verb.lower()] = entry
        if has_scopes and each.name not in NOT_SCOPED:
            scoped = {
                **entry,
                "operationId": f"scope_{entry['operationId']}",
                "tags": ["scopes"],
                "parameters": [_in_path("scope"), *entry.get("parameters", ())],
            }
            paths.setdefault(f"/scopes/{{scope}}{each.path}", {})[each.verb.lower()] = scoped
    paths["/health"] = {
        "get": _entry("health", "Return 200 while the brokers serve, otherwise 503.", schema(Health))
    }
    if has_scopes:
        paths |= _paths_of_scopes(schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Control of fencepost {'serve' if has_scopes else 'proxy'}", "version": version()},
        "paths": paths,
        "components": {
            "schemas": components,
            **({"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if has_token else {}),
        },
        **({"security": [{"token": []}]} if has_token else {}),
    }


def _paths_of_scopes(schema: Callable[[Any], Any]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    paths["/scopes"] = {
        "get": _entry("scopes", "Return the open scopes.", schema(list[OpenScope])),
        "post": _entry("open_scope", "Open a scope for one test.", schema(OpenScope), schema(NewScope)),
    }
    paths["/scopes/{scope}"] = {
        "delete": {
            **_entry("close_scope", "Close a scope and remove all that is in it.", {"type": "null"}),
            "parameters": [_in_path("scope")],
        }
    }
    metrics = _entry("metrics", "Return metrics for Prometheus.", {"type": "string"})
    names = {"type": "array", "items": {"type": "string"}}
    metrics["parameters"] = [{"name": "name[]", "in": "query", "schema": names, "description": "Only these."}]
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    paths["/metrics"] = {"get": metrics}
    return paths


def _entry(name: str, description: str, result: Any, body: Any = None) -> dict[str, Any]:
    description = re.sub(r"\bNone\b", "null", description)
    description, *raised = re.split(r"\n*^:raises ", description, flags=re.MULTILINE)
    errors = dict(_ERRORS)
    for kind, _, reason in (each.partition(": ") for each in raised):
        if kind != "TimeoutError":  # each wait has the same reason
            errors["409"] += f" This happens {' '.join(reason.split())}"
    found: dict[str, Any] = {
        "operationId": name,
        "summary": description.partition("\n\n")[0].replace("\n", " "),
        "description": description,
        "responses": {
            "200": {"description": "The result.", "content": {"application/json": {"schema": result}}},
            **{
                code: {
                    "description": text,
                    "content": {"application/json": {"schema": {"$ref": _REF.format(name="ControlRefusal")}}},
                }
                for code, text in errors.items()
            },
        },
    }
    if body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return found


def _operation(each: Operation, result: Any, components: dict[str, Any]) -> dict[str, Any]:
    arguments = components[each.arguments.__name__]
    prefix = f"{each.place.key or each.place.path.strip('/')}_" if each.place.path else ""
    entry = _entry(f"{prefix}{each.name}", each.description, result)
    parameters = [_in_path(each.place.key)] if each.place.key else []
    if each.verb == "POST":
        is_needed = bool(arguments.get("required"))
        schema = {"$ref": _REF.format(name=each.arguments.__name__)}
        entry["requestBody"] = {"required": is_needed, "content": {"application/json": {"schema": schema}}}
    else:
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in arguments.get("required", ()),
                "schema": _without_null(schema),
            }
            for name, schema in arguments["properties"].items()
        ]
    content = entry["responses"]["200"]["content"]
    if each.name == "timeline":
        entry["responses"]["200"]["content"] = {"text/html": {"schema": {"type": "string"}}}
    elif each.name == "events":
        content["text/event-stream"] = {"schema": {"type": "string"}}
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer"}})
    return {**entry, "parameters": parameters} if parameters else entry


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query's parameter, which is left out instead of null."""
    kept = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return dict(kept[0]) if kept else schema


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
