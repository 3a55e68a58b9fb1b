//! SQL functions of the lake. All are immutable: the same arguments give the same result, on any
//! machine at any time.

mod gathered;
mod latest;
mod occupancy;
mod quantiles;
mod scalar;
mod sweep;

use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::SessionContext;

use self::gathered::Gathered;
use self::latest::Latest;
use self::occupancy::function::Occupancy;
use self::quantiles::OrderStatistic;
use self::sweep::SweepAggregate;

/// Name, usage and description of every function added to SQL, for the reference.
pub const DOCS: [(&str, &str, &str); 20] = [
    (
        "gpu_ms",
        "gpu_ms(gpus_milli, begin, from, to)",
        "GPU-milliseconds of a hold of gpus_milli that began at `begin`, inside [from, to). Parts of one hold add up to the whole exactly.",
    ),
    ("ms_between", "ms_between(from, to)", "Whole milliseconds from one time to another."),
    ("unix_ms", "unix_ms(time)", "Whole milliseconds since 1970."),
    (
        "share_of",
        "share_of(whole, before, part, total)",
        "What falls to a part of a whole that is shared out among parts of `total`, where `before` is the sum of those that came \
         earlier: whole numbers that add up to the whole exactly. 0 where total is 0.",
    ),
    ("plus_ms", "plus_ms(time, ms)", "The time that many milliseconds later."),
    (
        "millionths",
        "millionths(n, of)",
        "n / 1,000,000 of `of`, rounded half up: of a ratio in ppm and a time, the time; of bytes per second and a time in µs, the bytes.",
    ),
    (
        "us_known",
        "us_known(value, us)",
        "The time where both are known, else 0: sums of it are the time for which the value was known.",
    ),
    (
        "part_of",
        "part_of(n, from, to, whole)",
        "What of n lies between from and to of whole: n × to / whole less n × from / whole, each rounded down, so that parts add up to n exactly.",
    ),
    (
        "cost_micros",
        "cost_micros(gpu_ms, price_micros_per_gpu_hour)",
        "Cost of GPU time in millionths of the currency: gpu_ms × price / 3,600,000, rounded half up.",
    ),
    (
        "log_bucket",
        "log_bucket(n)",
        "Lower bound of the bucket n falls into; buckets grow by an eighth of a power of two, so a quantile read from them is at most 12.5 % low.",
    ),
    ("window_of", "window_of(time, width_ms)", "Start of the window of that width that holds the time."),
    (
        "window_starts",
        "window_starts(from, to, width_ms, low, high)",
        "Starts of the windows of that width that [from, to) touches, between low and high.",
    ),
    (
        "latest",
        "latest(value, time)",
        "Aggregate: the value with the greatest time, NULLs left out; of equal times the greatest value.",
    ),
    (
        "quantiles",
        "quantiles(value, q, …)",
        "Aggregate: the exact quantiles of rank q, 0 to 1, as a list; between two values in proportion. One pass for all of them: \
         quantiles(power_mw, 0.5, 0.95, 0.99)[3].",
    ),
    (
        "gathered",
        "gathered(value)",
        "Aggregate: all values as a list, in an order of their own, which is the same however rows come.",
    ),
    (
        "occupancy",
        "occupancy(facts, from_ms, to_ms)",
        "Where the GPU time of a minute went, by node, device and job, as a list: the rules of docs/ledger.md over facts gathered with \
         gathered(named_struct(…)) from occupancy_facts.",
    ),
    (
        "idle_stretches",
        "idle_stretches(facts)",
        "How long how many GPUs that nobody held were of which class, as a list: the same rules where no agent watches.",
    ),
    ("mad", "mad(value)", "Aggregate: the exact median of the distances from the median."),
    (
        "least_in_force",
        "least_in_force(rank, from, to)",
        "Aggregate: which of the intervals [from, to) has the least rank, from when to when, as a list of {rank, from_time, to_time} \
         for unnest(). Without `to` an interval lasts.",
    ),
    (
        "placed",
        "placed(node, pools, pool, at, milli)",
        "Aggregate: on which nodes GPUs are taken to be of which only the pool is known, as a list of changes {node, at, milli} for \
         unnest(). Rows with a node: from `at` on so much of it is idle (NULL: it is gone), and it serves these pools, none: all. \
         Rows without: from `at` on so much more is held in the pool. Nodes give in order of their names, pools take in order of \
         theirs, jobs without a pool last.",
    ),
];

/// Registers the functions in a session.
pub fn register(ctx: &SessionContext) {
    for function in scalar::functions() {
        ctx.register_udf(ScalarUDF::from(function));
    }
    ctx.register_udf(Occupancy::minute());
    ctx.register_udf(Occupancy::stretches());
    ctx.register_udaf(Gathered::udaf());
    ctx.register_udaf(Latest::udaf());
    ctx.register_udaf(OrderStatistic::quantiles());
    ctx.register_udaf(OrderStatistic::mad());
    for sweep in SweepAggregate::udafs() {
        ctx.register_udaf(sweep);
    }
}
