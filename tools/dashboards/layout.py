"""Dashboards as Grafana's JSON."""

from __future__ import annotations

from typing import Any

from tools.dashboards.panels import Panel

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF = 'job=~"$job", instance=~"$instance"'
_COLUMNS, _HEIGHT = 2, 8


def board(name: str, panels: tuple[Panel, ...], helps: dict[str, str]) -> dict[str, Any]:
    """A dashboard with two panels in each row. Raises `KeyError` for a metric without a help."""
    return {
        "uid": f"kvatlas-{name}",
        "title": f"kvatlas / {name}",
        "id": None,
        "tags": ["kvatlas"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("job", "label_values(kvatlas_build_info, job)"),
                _variable("instance", 'label_values(kvatlas_build_info{job=~"$job"}, instance)'),
            ]
        },
        "panels": [_panel(number, panel, helps) for number, panel in enumerate(panels)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel, helps: dict[str, str]) -> dict[str, Any]:
    width = 24 // _COLUMNS
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "description": "\n\n".join(f"`{name}`: {helps[name]}." for name in panel.metrics()),
        "datasource": _SOURCE,
        "gridPos": {"x": width * (number % _COLUMNS), "y": _HEIGHT * (number // _COLUMNS), "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.replace("$of", _OF),
                "legendFormat": legend,
            }
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }
