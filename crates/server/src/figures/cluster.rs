//! `/metrics/cluster`: capacity, holds, waits, where the money goes, and findings.

use super::{Figure, Gauge, Page};

/// Most series of a gauge by pool, or by class and state.
const BY_POOL: usize = 500;
/// Most series of a gauge by team.
const BY_TEAM: usize = 500;

pub(crate) const CLUSTER: Page = Page {
    prefix: "tidegate_cluster",
    figures: &[CAPACITY, HELD, WAITING, LEDGER, STRAGGLERS, NODES, DEVICES, DECISIONS, FORECASTS, COLLECTORS],
};

const CAPACITY: Figure = Figure {
    name: "capacity",
    sql: "SELECT cluster, pool, sum(gpus_milli) / 1000.0 AS gpus, \
          sum(CASE WHEN is_usable = 1 THEN gpus_milli ELSE 0 END) / 1000.0 AS usable \
          FROM node_capacity WHERE to_time IS NULL GROUP BY cluster, pool",
    labels: &["cluster", "pool"],
    gauges: &[
        Gauge { column: "gpus", name: "tidegate_cluster_gpus", help: "GPUs of the nodes that are there" },
        Gauge {
            column: "usable",
            name: "tidegate_cluster_gpus_usable",
            help: "GPUs of the nodes that jobs can start on",
        },
    ],
    most: BY_POOL,
};

const HELD: Figure = Figure {
    name: "held",
    sql: "SELECT cluster, pool, team, sum(gpus_milli) / 1000.0 AS gpus, \
          count(DISTINCT job_id) AS jobs FROM allocations WHERE to_time IS NULL GROUP BY cluster, pool, team",
    labels: &["cluster", "pool", "team"],
    gauges: &[
        Gauge { column: "gpus", name: "tidegate_cluster_gpus_held", help: "GPUs that running jobs hold" },
        Gauge { column: "jobs", name: "tidegate_cluster_jobs_running", help: "Jobs that hold GPUs" },
    ],
    most: BY_TEAM,
};

const WAITING: Figure = Figure {
    name: "waiting",
    sql: "SELECT cluster, pool, team, sum(gpus_milli) / 1000.0 AS gpus, \
          count(DISTINCT job_id) AS jobs, date_part('epoch', now()) - date_part('epoch', min(waited_from)) AS oldest \
          FROM pending WHERE until IS NULL GROUP BY cluster, pool, team",
    labels: &["cluster", "pool", "team"],
    gauges: &[
        Gauge {
            column: "gpus",
            name: "tidegate_cluster_gpus_waited_for",
            help: "GPUs that waiting jobs ask for",
        },
        Gauge { column: "jobs", name: "tidegate_cluster_jobs_waiting", help: "Jobs that wait for GPUs" },
        Gauge {
            column: "oldest",
            name: "tidegate_cluster_oldest_wait_seconds",
            help: "How long the job that waits longest has waited",
        },
    ],
    most: BY_TEAM,
};

/// An hour counts from ten minutes after its end: by then its events are there.
const LEDGER: Figure = Figure {
    name: "ledger",
    sql: "SELECT cluster, pool, class, sum(gpu_ms) / 3600000.0 AS gpus, sum(cost_micros) / 1000000.0 AS cost \
          FROM ledger_1h \
          WHERE window_start = date_trunc('hour', now() - INTERVAL '10 minutes') - INTERVAL '1 hour' \
          GROUP BY cluster, pool, class",
    labels: &["cluster", "pool", "class"],
    gauges: &[
        Gauge {
            column: "gpus",
            name: "tidegate_cluster_ledger_gpus",
            help: "Where GPU time went in the last whole hour, by class of the ledger: mean GPUs",
        },
        Gauge {
            column: "cost",
            name: "tidegate_cluster_ledger_cost",
            help: "What it cost in that hour, in the currency of the prices; no series without prices",
        },
    ],
    most: BY_POOL,
};

const STRAGGLERS: Figure = Figure {
    name: "stragglers",
    sql: "SELECT cluster, class, count(*) AS episodes, sum(lost_gpu_ms) / 1000.0 AS lost \
          FROM stragglers WHERE state = 'CONFIRMED' GROUP BY cluster, class",
    labels: &["cluster", "class"],
    gauges: &[
        Gauge {
            column: "episodes",
            name: "tidegate_cluster_stragglers",
            help: "Confirmed stragglers that last",
        },
        Gauge {
            column: "lost",
            name: "tidegate_cluster_straggler_lost_gpu_seconds",
            help: "GPU-seconds that those have cost their jobs so far",
        },
    ],
    most: BY_POOL,
};

const NODES: Figure = Figure {
    name: "nodes",
    sql: "SELECT cluster, state, count(*) AS nodes FROM node_health GROUP BY cluster, state",
    labels: &["cluster", "state"],
    gauges: &[Gauge {
        column: "nodes",
        name: "tidegate_cluster_nodes",
        help: "Nodes by health, of those that were judged",
    }],
    most: BY_POOL,
};

const DEVICES: Figure = Figure {
    name: "devices",
    sql: "SELECT cluster, kind, count(*) AS devices FROM device_faults WHERE to_time IS NULL GROUP BY cluster, kind",
    labels: &["cluster", "kind"],
    gauges: &[Gauge {
        column: "devices",
        name: "tidegate_cluster_devices_faulty",
        help: "GPUs and MIG slices that are lost or do not respond",
    }],
    most: BY_POOL,
};

const DECISIONS: Figure = Figure {
    name: "decisions",
    sql: "SELECT cluster, decision_kind AS kind, count(*) AS decisions FROM decisions \
          WHERE mode = 'approve' AND state = 'PROPOSED' AND role <> 'shadow' AND expires_time > now() \
          GROUP BY cluster, decision_kind",
    labels: &["cluster", "kind"],
    gauges: &[Gauge {
        column: "decisions",
        name: "tidegate_cluster_decisions_waiting",
        help: "Decisions of the autopilot that wait for approval",
    }],
    most: BY_POOL,
};

const FORECASTS: Figure = Figure {
    name: "forecasts",
    sql: "SELECT cluster, state, count(*) AS series FROM forecast_coverage \
          WHERE state <> 'HOLDS' GROUP BY cluster, state",
    labels: &["cluster", "state"],
    gauges: &[Gauge {
        column: "series",
        name: "tidegate_cluster_forecasts_not_trusted",
        help: "Forecasts, by series and horizon, whose bounds do not hold",
    }],
    most: BY_POOL,
};

const COLLECTORS: Figure = Figure {
    name: "collectors",
    sql: "SELECT cluster, sum(records_dropped) AS dropped, sum(conflicts) AS conflicts, \
          max(abs(clock_skew_ms)) / 1000.0 AS skew FROM collectors GROUP BY cluster",
    labels: &["cluster"],
    gauges: &[
        Gauge {
            column: "dropped",
            name: "tidegate_cluster_collectors_dropped",
            help: "Records that collectors have dropped so far",
        },
        Gauge {
            column: "conflicts",
            name: "tidegate_cluster_collectors_conflicts",
            help: "How often two collectors reported under one name so far",
        },
        Gauge {
            column: "skew",
            name: "tidegate_cluster_collectors_clock_skew_seconds",
            help: "Furthest that the clock of a node is from the log's",
        },
    ],
    most: BY_POOL,
};
