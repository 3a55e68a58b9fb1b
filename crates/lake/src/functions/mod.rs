//! SQL functions of the lake. All are immutable: the same arguments give the same result, on any
//! machine at any time.

mod date_trunc;
mod gathered;
mod latest;
mod occupancy;
mod quantiles;
mod scalar;
mod split_step;
mod sweep;
mod waits;

use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::SessionContext;

use self::date_trunc::DateTrunc;
use self::gathered::Gathered;
use self::latest::Latest;
use self::occupancy::function::Occupancy;
use self::quantiles::OrderStatistic;
use self::sweep::SweepAggregate;
use self::waits::function::WaitPieces;

/// Name, usage and description of every function added to SQL, for the reference.
pub const DOCS: [(&str, &str, &str); 24] = [
    (
        "gpu_ms",
        "gpu_ms(gpus_milli, begin, from, to)",
        "GPU-milliseconds of a hold of gpus_milli that began at `begin`, inside [from, to). Parts of one hold add up to the whole exactly.",
    ),
    ("ms_between", "ms_between(from, to)", "Whole milliseconds from one time to the other."),
    ("unix_ms", "unix_ms(time)", "Whole milliseconds since 1970."),
    (
        "share_of",
        "share_of(whole, before, part, total)",
        "Share of a part when a whole is divided in proportion to parts of `total`; `before` is the sum of earlier parts. Integers that add up to the whole exactly. 0 if total is 0.",
    ),
    ("plus_ms", "plus_ms(time, ms)", "The time that many milliseconds later."),
    (
        "millionths",
        "millionths(n, of)",
        "n × of / 1,000,000, rounded half up: for a ratio in ppm and a time the time, for bytes per second and a time in µs the bytes.",
    ),
    (
        "us_known",
        "us_known(value, us)",
        "`us` if both are known, else 0. Its sum is the time for which the value was known.",
    ),
    (
        "part_of",
        "part_of(n, from, to, whole)",
        "Part of n between `from` and `to` of `whole`: n × to / whole less n × from / whole, each rounded down, so that parts add up to n exactly.",
    ),
    (
        "cost_micros",
        "cost_micros(gpu_ms, price_micros_per_gpu_hour)",
        "Cost of GPU time in millionths of the currency: gpu_ms × price / 3,600,000, rounded half up.",
    ),
    (
        "gpu_cost_micros",
        "gpu_cost_micros(gpus_milli, begin, from, to, price_micros_per_gpu_hour)",
        "Cost of gpu_ms(gpus_milli, begin, from, to): the cost from `begin` up to `to` less the cost up to `from`. Parts of one hold at one price add up exactly, wherever it is cut.",
    ),
    (
        "split_step",
        "split_step(duration_us, is_redone, restore_us, checkpoint_us, data_wait_us, communication_us, compute_us)",
        "Parts of a training step as a struct: restore_us, redone_us, checkpoint_us, data_stall_us, communication_stall_us, productive_us. Each takes, in this order, at most what the ones before it left; together they are the duration. A part that is not reported is NULL.",
    ),
    (
        "pinball",
        "pinball(actual, bound, permille)",
        "Pinball loss of a forecast quantile of level permille / 1000, times 1000: permille × (actual − bound) where the actual value lies above, (1000 − permille) × (bound − actual) where it lies below.",
    ),
    (
        "log_bucket",
        "log_bucket(n)",
        "Lower bound of the bucket that n falls into. There are eight buckets per power of two, so a quantile read from them is at most 12.5 % low.",
    ),
    ("window_of", "window_of(time, width_ms)", "Start of the window of this width that contains the time."),
    (
        "window_starts",
        "window_starts(from, to, width_ms, low, high)",
        "Starts of the windows of this width that overlap [from, to), between low and high.",
    ),
    (
        "latest",
        "latest(value, time)",
        "Aggregate: the value with the greatest time, ignoring NULLs; of equal times the greatest value.",
    ),
    (
        "quantiles",
        "quantiles(value, q, …)",
        "Aggregate: the exact quantiles of ranks q, 0 to 1, as a list, interpolated linearly. One pass computes all of them: quantiles(power_mw, 0.5, 0.95, 0.99)[3].",
    ),
    (
        "gathered",
        "gathered(value)",
        "Aggregate: all values as a sorted list, whatever the order of the rows.",
    ),
    (
        "occupancy",
        "occupancy(facts, from_ms, to_ms)",
        "GPU time of a minute by node, device, job and class, as a list: the rules of docs/ledger.md over facts collected with gathered(named_struct(…)) from occupancy_facts.",
    ),
    (
        "idle_stretches",
        "idle_stretches(facts, from_ms)",
        "Stretches of GPU time that was not held, by class, as a list: the same rules where no agent watches.",
    ),
    (
        "wait_pieces",
        "wait_pieces(facts, from, to)",
        "Pieces of waits between two times in which one constraint bound, as a list, with what was free at the end of each: over facts on waits, nodes and quotas collected with gathered(named_struct(…)), as in pending_days.",
    ),
    ("mad", "mad(value)", "Aggregate: the exact median absolute deviation from the median."),
    (
        "least_in_force",
        "least_in_force(rank, from, to)",
        "Aggregate: which of the intervals [from, to) has the least rank, from when to when, as a list of {rank, from_time, to_time} for unnest(). An interval without `to` lasts.",
    ),
    (
        "placed",
        "placed(node, pools, pool, at, milli)",
        "Aggregate: assigns GPUs of which only the pool is known to nodes, as a list of changes {node, at, milli} for unnest(). A row with a node sets its idle GPUs from `at` on (NULL: it is gone) and the pools it serves (empty: all). A row without a node adds to what is held in the pool from `at` on. Nodes give in order of their names, pools take in order of theirs, jobs without a pool last.",
    ),
];

/// Registers the functions in a session.
pub fn register(ctx: &SessionContext) {
    for function in scalar::functions() {
        ctx.register_udf(ScalarUDF::from(function));
    }
    ctx.register_udf(DateTrunc::udf());
    ctx.register_udf(Occupancy::minute());
    ctx.register_udf(Occupancy::stretches());
    ctx.register_udf(WaitPieces::udf());
    ctx.register_udaf(Gathered::udaf());
    ctx.register_udaf(Latest::udaf());
    ctx.register_udaf(OrderStatistic::quantiles());
    ctx.register_udaf(OrderStatistic::mad());
    for sweep in SweepAggregate::udafs() {
        ctx.register_udaf(sweep);
    }
}

/// Its first argument, or where that is NULL the second one. Plans of pipelines have it in place of
/// some uses of `coalesce`. SQL cannot name it.
pub(crate) fn first_known() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(scalar::first_known()))
}

/// Whether the function never returns an error, whatever its arguments. Only then may a plan call
/// it for rows that do not need its result.
pub(crate) fn cannot_fail(function: &ScalarUDF) -> bool {
    matches!(function.name(), "millionths" | "us_known")
}
