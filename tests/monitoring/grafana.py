"""Every question of Grafana's dashboards, through the Postgres door of a demo.

Grafana's server is in no package registry, so what it sends is made here (macros.py says from what),
and sent as Grafana does: by the simple protocol, in text. Each panel and annotation must answer with
rows, or stand in WITHOUT_ROWS with the reason.
"""

import json
import re
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
from demo import Demo
from macros import View, expand, seconds

GRAFANA = Path(__file__).resolve().parent.parent.parent / "deploy/grafana"
# Longest wait for one answer, s.
ANSWER_S = 30
# Grafana draws at most about so many points.
POINTS = 1000
STEPS_S = [60, 300, 900, 3600, 21600, 86400]
# Panels that the demo has nothing for, and why.
WITHOUT_ROWS = {
    ("tidegate-autopilot", "For approval"): "the demo's policy acts and suggests, and asks for nothing",
    ("tidegate-autopilot", "Refused, by rule"): "no decision of the demo breaks a rule",
    ("tidegate-autopilot", "Why nothing was done"): "each plan of the demo has a decision",
}
# Types of columns that Grafana reads, by Postgres' number: others fail, or become text.
READ = {16: "bool", 20: "int8", 23: "int4", 25: "text", 701: "float8", 1043: "varchar", 1114: "timestamp", 1184: "timestamptz",
        1700: "numeric"}
NUMBERS = {"int8", "int4", "float8", "numeric"}
# The condition in what Grafana's editor asks: the schemas of the search path.
SEARCHED = """quote_ident(table_schema) IN (
    SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
    FROM generate_series(array_lower(string_to_array(current_setting('search_path'),','),1),
                         array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
         string_to_array(current_setting('search_path'),',') s)"""
# What Grafana asks by itself: the ping of "Save & test", versions, and what its editor completes.
OWN = {
    "ping": "-- ping",
    "version": "SELECT current_setting('server_version_num')::int/100 as version",
    "TimescaleDB": "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'",
    "tables": f"""SELECT CASE WHEN {SEARCHED} THEN quote_ident(table_name)
        ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS "table"
        FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog')
        ORDER BY CASE WHEN {SEARCHED} THEN 0 ELSE 1 END, 1""",
    "columns": f"""SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
        WHERE CASE WHEN array_length(parse_ident('public.jobs'),1) = 2
        THEN quote_ident(table_schema) = (parse_ident('public.jobs'))[1] AND quote_ident(table_name) = (parse_ident('public.jobs'))[2]
        ELSE quote_ident(table_name) = 'public.jobs' AND {SEARCHED} END""",
}


def files() -> list:
    return [("dashboards are as generated", generated)]


def asked_of(demo: Demo, show: str) -> list:
    boards = [json.loads(file.read_text()) for file in sorted((GRAFANA / "dashboards").glob("*.json"))]
    return [("what Grafana asks by itself", lambda: own(demo))] + [
        (board["uid"], lambda board=board: asked(demo, board, bool(show) and show in board["uid"])) for board in boards
    ]


def connected(demo: Demo):
    """A session of the simple protocol."""
    return psycopg.connect(
        f"host=127.0.0.1 port={demo.postgres_port} dbname=tidegate", autocommit=True, cursor_factory=psycopg.ClientCursor,
        options=f"-c statement_timeout={ANSWER_S * 1000}",
    )


def generated() -> str:
    done = subprocess.run([sys.executable, GRAFANA / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return "every file"


def own(demo: Demo) -> str:
    answers = {}
    with connected(demo) as session:
        for name, sql in OWN.items():
            cursor = session.execute(sql)
            answers[name] = cursor.fetchall() if cursor.description else []
    assert answers["version"] == [(1500,)], answers
    assert answers["ping"] == answers["TimescaleDB"] == [], answers
    assert ("public.jobs",) in answers["tables"], answers["tables"]
    # Types have the engine's names there: the editor shows them, and asks the same.
    assert "gpus_milli" in {row[0] for row in answers["columns"]}, answers["columns"]
    return f"{len(answers)} answers"


def asked(demo: Demo, board: dict, show: bool) -> str:
    """Every panel of a board, with all values of its variables, with one of each, and with one that
    is not there."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    begin, end = (moment(now, board["time"][side]) for side in ("from", "to"))
    step_s = next(step for step in STEPS_S if (end - begin).total_seconds() / step <= POINTS)
    slowest, empty = (0.0, ""), []
    with connected(demo) as session:
        values = variables(session, board, begin, end, step_s)
        one = {name: chosen[:1] for name, chosen in values.items()}
        none = {name: ["O'Brien; --"] for name in values}
        for title, target, shortest in questions(board):
            view = View(begin, end, max(step_s, seconds(shortest or "1m")), values)
            since = time.monotonic()
            rows = checked(session, title, target, expand(target["rawSql"], view))
            slowest = max(slowest, (time.monotonic() - since, title))
            if show:
                print(f"  {title}", *(f"    {row}" for row in rows[:3]), sep="\n")
            if why := WITHOUT_ROWS.get((board["uid"], title)):
                assert not rows, f"{title} has rows: take it out of WITHOUT_ROWS ({why})"
                empty.append(title)
            else:
                assert rows, f"{title} has no rows"
            for chosen in (one, none):
                session.execute(expand(target["rawSql"], View(begin, end, view.step_s, chosen))).fetchall()
    said = f"{len(questions(board))} queries; slowest {slowest[0]:.1f} s, {slowest[1]}"
    return said + (f"; without rows: {', '.join(empty)}" if empty else "")


def variables(session, board: dict, begin: datetime, end: datetime, step_s: int) -> dict[str, list[str]]:
    """The values of a board's variables, each of which may depend on those before it."""
    values: dict[str, list[str]] = {}
    for variable in board["templating"]["list"]:
        rows = session.execute(expand(variable["query"], View(begin, end, step_s, values))).fetchall()
        assert rows and all(row[0] for row in rows), f"the variable {variable['name']} has the values {rows[:5]}"
        values[variable["name"]] = [row[0] for row in rows] if variable["multi"] else [rows[0][0]]
    return values


def questions(board: dict) -> list[tuple[str, dict, str | None]]:
    """Title, target and shortest step of all that a board asks."""
    panels = [(panel["title"], panel["targets"][0], panel.get("interval")) for panel in board["panels"]]
    return panels + [(of["name"], of["target"], None) for of in board["annotations"]["list"]]


def moment(now: datetime, written: str) -> datetime:
    """now, now-7d, now+1d."""
    found = re.fullmatch(r"now(?:([+-]\d+)([hd]))?", written)
    return now + timedelta(**{{"h": "hours", "d": "days"}[found[2]]: int(found[1])}) if found[1] else now


def checked(session, title: str, target: dict, sql: str) -> list[tuple]:
    """The rows of a panel, which Grafana can draw."""
    cursor = session.execute(sql)
    rows = cursor.fetchall()
    kinds = {column.name: READ.get(column.type_code) for column in cursor.description}
    assert len(kinds) == len(cursor.description), f"{title}: two columns have one name"
    assert None not in kinds.values(), f"{title}: Grafana does not read {[(c.name, c.type_code) for c in cursor.description]}"
    names = list(kinds)
    numbers = [place for place, name in enumerate(names) if kinds[name] in NUMBERS and name != "time"]
    if target["format"] == "time_series":
        assert names[0] == "time", f"{title}: its first column is {names[0]}"
        labels = [place for place, name in enumerate(names) if kinds[name] in ("text", "varchar")]
        times = [row[0] for row in rows]
        assert None not in times and times == sorted(times), f"{title}: its times do not rise"
        keys = [(row[0], *(row[place] for place in labels)) for row in rows]
        assert len(set(keys)) == len(keys), f"{title}: two values at one time"
        assert not rows or any(row[place] is not None for row in rows for place in numbers), f"{title}: every value is NULL"
    assert numbers or target["format"] == "table", f"{title}: it has no number"
    return rows

