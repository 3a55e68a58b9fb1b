"""What dashboards are made of: panels, variables and links, as Grafana's schema 39 writes them
(Grafana 10.3 and newer).

Rules for the SQL: Grafana expands a macro up to the first closing bracket, so that an argument has
none; and a variable is written `${name:sqlstring}`, which quotes one value and many, in every
version.
"""

from textwrap import dedent

SOURCE = {"type": "grafana-postgresql-datasource", "uid": "tidegate"}
# Width of a row of panels, in Grafana's columns.
ROW = 24
STATES = {
    "productive": "green", "active": "blue", "step": "orange", "held": "yellow", "free": "text",
    "unusable": "red", "unknown": "purple", "excess": "super-light-red",
}


def clean(sql: str) -> str:
    return dedent(sql).strip()


def variable(name: str, label: str, sql: str, *, many: bool = True) -> dict:
    """A variable with the values of a query; `many` allows several, and all."""
    all_of_them = {"text": "All", "value": "$__all"} if many else {}
    return {
        "type": "query", "name": name, "label": label, "datasource": SOURCE, "query": clean(sql), "definition": clean(sql),
        "refresh": 2, "sort": 0, "multi": many, "includeAll": many, "current": all_of_them, "options": [], "regex": "",
    }


CLUSTER = variable("cluster", "Cluster", "SELECT DISTINCT cluster FROM ledger_1d ORDER BY cluster")
POOL = variable(
    "pool", "Pool",
    """
    SELECT DISTINCT coalesce(pool, '(none)') FROM ledger_1d
    WHERE cluster IN (${cluster:sqlstring}) ORDER BY 1
    """,
)
TEAM = variable(
    "team", "Team",
    """
    SELECT DISTINCT coalesce(team, '(none)') FROM ledger_1d
    WHERE cluster IN (${cluster:sqlstring}) ORDER BY 1
    """,
)
IN_CLUSTER = "cluster IN (${cluster:sqlstring})"
IN_POOL = f"{IN_CLUSTER} AND coalesce(pool, '(none)') IN (${{pool:sqlstring}})"
IN_TEAM = f"{IN_POOL} AND coalesce(team, '(none)') IN (${{team:sqlstring}})"


def panel(kind: str, title: str, sql: str, *, width: int, height: int, says: str = "", series: bool = False,
          interval: str | None = None, unit: str | None = None, units: dict[str, str] | None = None,
          colors: dict[str, str] | None = None, options: dict | None = None, custom: dict | None = None) -> dict:
    """A panel with one query. `units` are those of single columns; `interval` is the shortest step
    of a series; `series` asks for columns by time instead of a table."""
    defaults: dict = {"custom": custom or {}}
    if unit:
        defaults["unit"] = unit
    overrides = [_override(name, "unit", value) for name, value in (units or {}).items()]
    overrides += [_override(name, "color", {"mode": "fixed", "fixedColor": color}) for name, color in (colors or {}).items()]
    target = {
        "refId": "A", "datasource": SOURCE, "format": "time_series" if series else "table", "rawQuery": True,
        "editorMode": "code", "rawSql": clean(sql),
    }
    return {
        "type": kind, "title": title, "description": says, "datasource": SOURCE, "targets": [target],
        **({"interval": interval} if interval else {}),
        "gridPos": {"w": width, "h": height}, "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": options or {},
    }


def _override(name: str, what: str, value) -> dict:
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": what, "value": value}]}


def stats(title: str, sql: str, **more) -> dict:
    """One row, each column of it a number."""
    options = {"reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": "/.*/"}, "colorMode": "none"}
    return panel("stat", title, sql, **{"width": ROW, "height": 4, "options": options, **more})


def lines(title: str, sql: str, *, stacked: bool = False, **more) -> dict:
    """Columns over time."""
    custom = {"fillOpacity": 60 if stacked else 0, "lineWidth": 1, "showPoints": "never"}
    if stacked:
        custom["stacking"] = {"mode": "normal"}
    legend = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, sql, **{"width": 12, "height": 9, "series": True, "options": legend, "custom": custom, **more})


def table(title: str, sql: str, **more) -> dict:
    return panel("table", title, sql, **{"width": 12, "height": 9, **more})


def bars(title: str, sql: str, **more) -> dict:
    """One bar a row: a column of text, and a number."""
    options = {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": {"values": True, "limit": 40}}
    return panel("bargauge", title, sql, **{"width": 12, "height": 12, "options": options, **more})


def board(uid: str, title: str, says: str, variables: list[dict], panels: list[dict], *, back: str = "now-7d",
          ahead: str = "now", annotations: list[dict] | None = None) -> dict:
    """A dashboard; its panels are laid out from left to right, in rows."""
    return {
        "uid": f"tidegate-{uid}", "title": f"Tidegate: {title}", "description": says, "tags": ["tidegate"],
        "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1, "timezone": "utc", "refresh": "1m",
        "time": {"from": back, "to": ahead},
        "links": [{"type": "dashboards", "title": "Tidegate", "tags": ["tidegate"], "asDropdown": True, "includeVars": True,
                   "keepTime": True}],
        "templating": {"list": variables}, "annotations": {"list": annotations or []}, "panels": _laid_out(panels),
    }


def annotation(name: str, sql: str, color: str) -> dict:
    target = {"refId": "Anno", "datasource": SOURCE, "format": "table", "rawQuery": True, "editorMode": "code", "rawSql": clean(sql)}
    return {"name": name, "datasource": SOURCE, "enable": True, "iconColor": color, "target": target}


def _laid_out(panels: list[dict]) -> list[dict]:
    x = y = tallest = 0
    for number, one in enumerate(panels, 1):
        place = one["gridPos"]
        if x + place["w"] > ROW:
            x, y, tallest = 0, y + tallest, 0
        place.update(x=x, y=y)
        one["id"] = number
        x, tallest = x + place["w"], max(tallest, place["h"])
    return panels
