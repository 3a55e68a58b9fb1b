//! Queries that would take all memory.

/// Allowed ends of a query.
#[derive(Debug, Clone, Copy)]
pub enum Ends {
    /// With this answer, as CSV without its header.
    Right(&'static str),
    /// With an error that names a limit.
    Limited,
    /// With an error that names the limit of memory, which the query fills within moments.
    OutOfMemory,
    /// With either: which of them depends on the machine.
    Either(&'static str),
    /// With an error that names a limit; from 1 GiB of query memory on, with this answer or such an
    /// error.
    LimitedUntil1G(&'static str),
    /// An endless result: with some rows, or with an error that names a limit.
    Streams,
}

use Ends::{Either, Limited, LimitedUntil1G, OutOfMemory, Right, Streams};

pub fn queries() -> Vec<(String, Ends)> {
    let fixed = FIXED.iter().map(|(sql, ends)| ((*sql).to_owned(), *ends));
    fixed.chain(long_ones()).collect()
}

const FIXED: &[(&str, Ends)] = &[
    // Single values, and functions that expand their input.
    ("SELECT repeat('x', 1000000000)", OutOfMemory),
    ("SELECT lpad('x', 2000000000, 'y')", OutOfMemory),
    ("SELECT length(replace(s, 'x', s)) FROM (SELECT repeat('x', 100000) s) a", OutOfMemory),
    ("SELECT length(regexp_replace(s, 'x', s, 'g')) FROM (SELECT repeat('x', 100000) s) a", OutOfMemory),
    ("SELECT array_repeat(array_repeat(1, 100000), 100000)", OutOfMemory),
    ("SELECT array_length(range(1, 10000000000))", OutOfMemory),
    ("SELECT sum(length(repeat('x', value))) FROM generate_series(1, 20000)", Right("200010000")),
    (
        "SELECT sum(length(concat(s, s, s))) FROM (SELECT repeat('x', value) s FROM generate_series(1, 9000)) a",
        Right("121513500"),
    ),
    (
        "WITH a AS (SELECT repeat('x', 100000) s), b AS (SELECT s||s||s||s||s||s||s||s s FROM a), \
      c AS (SELECT s||s||s||s||s||s||s||s s FROM b), d AS (SELECT s||s||s||s||s||s||s||s s FROM c) \
      SELECT length(s) FROM d",
        LimitedUntil1G("51200000"),
    ),
    ("SELECT value, repeat('x', 100000) FROM generate_series(1, 1000000)", Streams),
    // Lists.
    ("SELECT array_length(array_agg(value)) FROM generate_series(1, 100000000)", OutOfMemory),
    ("SELECT length(string_agg(value::text, ',')) FROM generate_series(1, 100000000)", OutOfMemory),
    (
        "SELECT count(*), sum(array_length(v)) FROM (SELECT value % 1000 k, array_agg(value) v \
      FROM generate_series(1, 1000000) GROUP BY 1) x",
        Right("1000,1000000"),
    ),
    (
        "SELECT a.list, g.value FROM (SELECT array_agg(value) list FROM generate_series(1, 300000)) a, \
      generate_series(1, 1000000) g",
        Streams,
    ),
    (
        "SELECT count(*), sum(array_length(a.list)) FROM (SELECT array_agg(value) list FROM generate_series(1, 10000)) a, \
      generate_series(1, 1000) g",
        Right("1000,10000000"),
    ),
    (
        "SELECT count(*), sum(item) FROM (SELECT unnest(range(1, 1001)) item, value FROM generate_series(1, 2000)) x",
        Right("2000000,1001000000"),
    ),
    (
        "SELECT count(*) FROM (SELECT unnest(range(1, 500000)) item, value FROM generate_series(1, 500000)) x",
        Limited,
    ),
    // Groups, sorts and windows.
    ("SELECT count(DISTINCT value) FROM generate_series(1, 100000000)", Either("100000000")),
    (
        "SELECT count(*) FROM (SELECT value k, count(*) FROM generate_series(1, 5000000) GROUP BY 1) x",
        Either("5000000"),
    ),
    ("SELECT median(value) FROM generate_series(1, 100000000)", OutOfMemory),
    (
        "SELECT value, (value * 7919) % 1000003 o, repeat('z', 100) FROM generate_series(1, 3000000) ORDER BY o",
        Streams,
    ),
    (
        "SELECT max(c) FROM (SELECT count(*) OVER (PARTITION BY value % 3) c FROM generate_series(1, 30000000)) x",
        LimitedUntil1G("10000000"),
    ),
    (
        "SELECT max(c) FROM (SELECT sum(value) OVER () c, avg(value) OVER () d FROM generate_series(1, 30000000)) x",
        OutOfMemory,
    ),
    (
        "SELECT max(c) FROM (SELECT lead(value, 10000000) OVER (ORDER BY value) c FROM generate_series(1, 30000000)) x",
        Either("30000000"),
    ),
    (
        "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY value) r FROM generate_series(1, 500000)) x",
        Right("500000"),
    ),
    // Joins and recursion.
    (
        "SELECT count(*) FROM generate_series(1, 50000000) a JOIN generate_series(1, 50000000) b ON a.value = b.value",
        OutOfMemory,
    ),
    (
        "SELECT count(*) FROM generate_series(1, 200000) a JOIN generate_series(1, 200000) b ON a.value = b.value",
        Right("200000"),
    ),
    (
        "SELECT count(*) FROM generate_series(1, 300000) a JOIN generate_series(1, 300000) b ON a.value % 3 = b.value % 3",
        Limited,
    ),
    (
        "SELECT count(*) FROM generate_series(1, 20000000) a JOIN generate_series(1, 20000000) b ON a.value < b.value",
        Limited,
    ),
    (
        "SELECT count(*), max(length(a.s)) FROM (SELECT repeat('x', 100000) s) a, generate_series(1, 5000) g",
        Right("5000,100000"),
    ),
    ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t", Limited),
    (
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT t.n + g.value FROM t, generate_series(1, 10) g) \
      SELECT count(*) FROM t",
        Limited,
    ),
    (
        "WITH RECURSIVE t AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
        OutOfMemory,
    ),
    (
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 1000) SELECT sum(n) FROM t",
        Right("500500"),
    ),
    ("SELECT sum(value) FROM generate_series(1, 1000000000000)", Limited),
    // Our own views, of which some are computed once and kept.
    ("SELECT count(*) FROM jobs", Right("500")),
    ("SELECT count(*) > 0 FROM pending a, pool_fit b", Right("false")),
    ("SELECT count(*) > 0 FROM ledger_stretches", Right("true")),
    ("SELECT a.*, b.pool FROM ledger_stretches a, ledger_stretches b, ledger_stretches c", Streams),
];

/// Queries whose text is long.
fn long_ones() -> Vec<(String, Ends)> {
    let columns: Vec<String> = (0..5000).map(|n| format!("value+{n}")).collect();
    let listed: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let jobs = vec!["SELECT * FROM jobs"; 100].join(" UNION ALL ");
    let name = "n".repeat(60_000);
    vec![
        (format!("SELECT {} FROM generate_series(1, 1000000)", columns.join(", ")), Streams),
        (
            format!("SELECT count(*) FROM generate_series(1, 1000000) WHERE value IN ({})", listed.join(",")),
            Right("9999"),
        ),
        (format!("SELECT count(*) FROM ({jobs}) x"), Either("50000")),
        (format!("SELECT 1 AS \"{name}\" FROM generate_series(1, 1000000)"), Streams),
        (format!("SELECT '{name}' AS text, value FROM generate_series(1, 1000000)"), Streams),
        (
            format!(
                "SELECT array_agg(named_struct('{}', value)) FROM generate_series(1, 1000000)",
                &name[..30_000]
            ),
            Limited,
        ),
    ]
}
