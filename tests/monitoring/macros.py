"""Makes SQL of a panel's query, as Grafana does.

What was taken from Grafana's source (pkg/tsdb/grafana-postgresql-datasource/macros.go, Grafana 10 to
12; public/app/plugins/datasource/grafana-postgresql-datasource/datasource.ts):

1. The browser replaces variables. `${name:sqlstring}` becomes 'value', or 'one','two' of several or
   all values, a quote doubled. How it writes a plain `$name` depends on the version: dashboards here
   have none. It replaces `$__interval` and `$__interval_ms` by the step of the panel too.
2. The server replaces macros, each up to its first closing bracket:

   $__timeFilter(c)              c BETWEEN '2026-11-19T00:00:00Z' AND '2026-11-26T00:00:00Z'
   $__timeFrom(), $__timeTo()    '2026-11-19T00:00:00Z'
   $__timeGroup(c, 5m)           floor(extract(epoch from c)/300)*300
   $__timeGroupAlias(c, 5m)      the same AS "time"

3. It sends the text in one message of the simple protocol, and reads the answer as text. A column
   `time` of a number is seconds since 1970.

Other macros are not expanded here, and an unknown one fails.
"""

import re
from dataclasses import dataclass
from datetime import datetime

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MACRO = re.compile(r"\$([_a-zA-Z0-9]+)\(([^)]*)\)")
VARIABLE = re.compile(r"\$\{(\w+):sqlstring\}")


@dataclass(frozen=True)
class View:
    """What somebody looks at: a span of time, the step of series, and the values of variables."""

    begin: datetime
    end: datetime
    step_s: int
    values: dict[str, list[str]]


def seconds(interval: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smhd])", interval.strip().strip("'")).groups()
    return int(number) * UNITS_S[unit]


def interval(step_s: int) -> str:
    """A step as Grafana writes it: in the largest unit that divides it."""
    unit = next(unit for unit in "dhms" if step_s % UNITS_S[unit] == 0)
    return f"{step_s // UNITS_S[unit]}{unit}"


def expand(sql: str, view: View) -> str:
    def of_variable(found: re.Match) -> str:
        return ",".join("'" + value.replace("'", "''") + "'" for value in view.values[found[1]])

    def moment(at: datetime) -> str:
        return f"'{at:%Y-%m-%dT%H:%M:%SZ}'"

    def of_macro(found: re.Match) -> str:
        arguments = [argument.strip() for argument in found[2].split(",")]
        match found[1]:
            case "__timeFilter":
                return f"{arguments[0]} BETWEEN {moment(view.begin)} AND {moment(view.end)}"
            case "__timeFrom":
                return moment(view.begin)
            case "__timeTo":
                return moment(view.end)
            case "__timeGroup" | "__timeGroupAlias" as name:
                step = seconds(arguments[1])
                alias = ' AS "time"' if name == "__timeGroupAlias" else ""
                return f"floor(extract(epoch from {arguments[0]})/{step})*{step}{alias}"
            case name:
                raise ValueError(f"the macro ${name} is not known here")

    sql = VARIABLE.sub(of_variable, sql)
    sql = sql.replace("$__interval_ms", str(view.step_s * 1000)).replace("$__interval", interval(view.step_s))
    sql = MACRO.sub(of_macro, sql)
    if "$" in sql:
        raise ValueError(f"something is left to expand: {sql}")
    return sql
