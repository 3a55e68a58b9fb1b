"""DuckDB, in two versions, and delta-rs with Arrow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow
import pyarrow.compute
from deltalake import DeltaTable
from duckdb_extensions import import_extension

# Tables with integers encoded as BYTE_STREAM_SPLIT, which DuckDB reads since 2.0. The Delta
# extension of 2.0 is not on PyPI, so delta-rs lists the files and DuckDB reads those.
SPLIT = ["gpu_1h", "gpu_1m", "gpu_samples", "training_1m"]
NEWER = """
import duckdb, json, sys
duckdb.sql("SET TimeZone = 'UTC'")
print(json.dumps([str(value) for value in duckdb.sql(sys.stdin.read()).fetchall()[0]]))
"""


class DuckDb:
    def __init__(self):
        self.connection = duckdb.connect()
        import_extension("delta", con=self.connection)
        self.connection.execute("LOAD delta; SET TimeZone = 'UTC'")

    def numbers(self, sql: str, name: str, table: DeltaTable) -> tuple[int, ...]:
        """Runs a query that returns one row of integers. `{table}` in it stands for this version of
        the table.
        """
        if name in SPLIT and (files := table.file_uris()):
            row = newer(sql.replace("{table}", f"read_parquet({files}, hive_partitioning => false)"))
        else:
            scan = f"delta_scan('{table.table_uri}', version => {table.version()})"
            row = self.connection.sql(sql.replace("{table}", scan)).fetchall()[0]
        return tuple(int(value) for value in row)

    def columns(self, file: Path) -> list[str]:
        return self.connection.sql(f"SELECT * FROM read_parquet('{file}')").columns


def newer(sql: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(sys.executable).parent.parent / "newer")}
    asked = subprocess.run([sys.executable, "-c", NEWER], input=sql, env=environment, capture_output=True, text=True)
    if asked.returncode:
        raise RuntimeError(f"{asked.stderr.splitlines()[-1]} ({sql[:200]}...)")
    return json.loads(asked.stdout)


def whole_numbers(table: DeltaTable) -> list[str]:
    """Its integer columns, without Tidegate's own."""
    fields = table.schema().fields
    return [field.name for field in fields if field.type.type == "long" and not field.name.startswith("_")]


def sums_by_delta_rs(table: DeltaTable) -> tuple[int, ...]:
    """The number of rows, and the sum of each integer column."""
    columns = whole_numbers(table)
    rows = table.to_pyarrow_dataset().to_table(columns=columns)
    exact = (rows[column].cast(pyarrow.decimal128(38, 0)) for column in columns)
    return rows.num_rows, *(int(pyarrow.compute.sum(values).as_py() or 0) for values in exact)


def sums_by_duckdb(duck: DuckDb, name: str, table: DeltaTable) -> tuple[int, ...]:
    sums = "".join(f', coalesce(sum("{column}"), 0)' for column in whole_numbers(table))
    return duck.numbers(f"SELECT count(*){sums} FROM {{table}}", name, table)
