"""The reference of the HTTP interface, from the service's own OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.docs.markdown import cell, code, join, table

DOCUMENT = Path(__file__).resolve().parents[2] / "crates/service/src/openapi.json"
_HEAD = ("field", "type", "meaning")


def page(document: Path = DOCUMENT) -> str:
    """Every route with what it takes and answers, then the schemas, then the codes of errors."""
    api = json.loads(document.read_text(encoding="utf-8"))
    schemas: dict[str, Any] = api["components"]["schemas"]
    known: dict[str, Any] = api["components"]["parameters"]
    parts = ["## Routes"]
    for path, methods in api["paths"].items():
        for method, about in methods.items():
            given = about.get("parameters", [])
            parameters = [known[_name(each["$ref"])] if "$ref" in each else each for each in given]
            parts += _route(path, method, about | {"parameters": parameters}, schemas)
    parts.append("## Schemas")
    for name, schema in schemas.items():
        parts += _schema(name, schema, schemas)
    codes = schemas["Error"]["properties"]["code"]["x-codes"]
    rows = [(str(about["status"]), code(name), cell(about["when"])) for name, about in codes.items()]
    return join([*parts, "## Error codes", table(("status", "code", "when"), rows)])


def _route(path: str, method: str, about: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    parts = [f"### {method.upper()} {path}", f"{about['summary']}."]
    if about.get("description"):
        parts.append(about["description"])
    parameters = [
        (code(each["name"]), _type(each.get("schema", {})), cell(each.get("description", "")))
        for each in about["parameters"]
    ]
    if parameters:
        parts += ["Query parameters:", table(_HEAD, parameters)]
    for kind, content in about.get("requestBody", {}).get("content", {}).items():
        body = content["schema"]
        if kind == "application/json":
            parts += [f"Body: {_type(body)}", _fields(body, schemas)]
        else:
            only = len(about["requestBody"]["content"]) == 1
            parts.append(f"{'Body' if only else 'Or'}, as {code(kind)}: {body['description']}.")
    rows = []
    for status, answer in about["responses"].items():
        if status != "default":
            contents = answer.get("content", {})
            kinds = [_type(each["schema"]) if "schema" in each else code(kind) for kind, each in contents.items()]
            rows.append((status, cell(answer.get("description", "")), ", ".join(kinds)))
    parts.append(table(("status", "when", "body"), rows))
    refused = about.get("x-error-codes", [])
    if refused:
        parts.append("Error codes: " + ", ".join(map(code, refused)) + ".")
    return parts


def _schema(name: str, schema: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    fields = _fields(schema, schemas)
    parts = [f"### {name}", schema.get("description", "")]
    return [*parts, fields or f"Type: {_type(schema)}"]


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = []
    for name, about, required in _properties(schema, schemas):
        meaning = cell(about.get("description", ""))
        if "default" in about:
            sentence = f"{meaning.rstrip('.')}. " if meaning else ""
            meaning = f"{sentence}Default: {code(json.dumps(about['default']))}"
        rows.append((code(name) + (" (required)" if required else ""), _type(about), meaning))
    return table(_HEAD, rows)


def _properties(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    if "$ref" in schema:
        yield from _properties(schemas[_name(schema["$ref"])], schemas)
    for part in schema.get("allOf", ()):
        yield from _properties(part, schemas)
    for name, about in schema.get("properties", {}).items():
        yield name, about, name in schema.get("required", ())


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = _name(schema["$ref"])
        return f"[{name}](#{name.lower()})"
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[word])))
    if "allOf" in schema:
        return " and ".join(map(_type, schema["allOf"]))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}" if "properties" not in schema.get("items", {}) else "array"
    if isinstance(kind, list):
        return " or ".join(kind)
    more = schema.get("additionalProperties")
    if kind == "object" and isinstance(more, dict):
        return f"object of {_type(more)}"
    return str(kind) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    if low is not None:
        return f", {low} or more"
    if high is not None:
        return f", at most {high}"
    return ""


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
