//! Columns of `sizing_advice`.

use tidegate_events::v1::{SeriesKind, SizingAdvice};

use super::{CLUSTER_DOC, Columns, EPOCH_DOC, Read, SEQ_DOC, SOURCE_DOC, env, int};

pub(in crate::raw) const SIZING: Columns<SizingAdvice> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    (
        "kind",
        Read::Text(|e| Some(SeriesKind::try_from(e.kind).map_or("", |k| k.as_str_name()))),
        "TOTAL or POOL.",
    ),
    ("name", Read::Text(|e| Some(&e.name)), "Pool, or `total`."),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "Time of the decision. All hours before it are known.",
    ),
    ("term", Read::Text(|e| Some(&e.term)), "WEEK, MONTH or YEAR."),
    ("term_hours", Read::Int(|e| Some(e.term_hours.into())), "Hours of the term."),
    ("known_hours", Read::Int(|e| Some(e.known_hours.into())), "Hours of demand known."),
    (
        "hours",
        Read::Int(|e| Some(e.hours.into())),
        "Hours considered: the last ones, at most as many as the term has.",
    ),
    (
        "mean_gpus_milli",
        Read::Int(|e| int(Some(e.mean_gpus_milli))),
        "Mean demand (held and waited for) of the hours considered, thousandths of a GPU.",
    ),
    (
        "peak_gpus_milli",
        Read::Int(|e| int(Some(e.peak_gpus_milli))),
        "Highest demand of one of these hours, thousandths of a GPU.",
    ),
    (
        "reason",
        Read::Text(|e| e.reason.as_deref()),
        "Why nothing is advised: NO_RESERVED_PRICE, NO_ON_DEMAND_PRICE, CURRENCIES_DIFFER, LENDING_TOO_DEAR, TOO_LITTLE_HISTORY, DEMAND_TOO_LARGE or OUT_OF_RANGE.",
    ),
    (
        "prices_entered_time",
        Read::Time(|e| e.prices_entered_ms),
        "When the newest entry of the price book was entered that holds by then; of several statements for one time the one with the latest holds.",
    ),
    ("currency", Read::Text(|e| e.currency.as_deref()), "Currency of the prices, as in ISO 4217."),
    (
        "reserved_micros_per_gpu_hour",
        Read::Int(|e| int(e.reserved_micros_per_gpu_hour)),
        "Price of a reserved GPU-hour, used or not, millionths of the currency.",
    ),
    (
        "on_demand_micros_per_gpu_hour",
        Read::Int(|e| int(e.on_demand_micros_per_gpu_hour)),
        "Price of a GPU-hour on demand, the same way.",
    ),
    (
        "spot_micros_per_gpu_hour",
        Read::Int(|e| int(e.spot_micros_per_gpu_hour)),
        "Price of a spot GPU-hour, the same way.",
    ),
    (
        "owned_micros_per_gpu_hour",
        Read::Int(|e| int(e.owned_micros_per_gpu_hour)),
        "Price of an owned GPU-hour, used or not, the same way.",
    ),
    (
        "lend_micros_per_gpu_hour",
        Read::Int(|e| int(e.lend_micros_per_gpu_hour)),
        "Earned for an idle reserved or owned GPU-hour, the same way.",
    ),
    (
        "break_even_ppm",
        Read::Int(|e| e.break_even_ppm.map(i64::from)),
        "A reserved GPU pays off if it is busy more than this share of the hours, millionths.",
    ),
    (
        "node_gpus",
        Read::Int(|e| e.node_gpus.map(i64::from)),
        "GPUs per node; NULL if no nodes are known, and GPUs are counted one by one.",
    ),
    (
        "quantile_gpus_milli",
        Read::Int(|e| int(e.quantile_gpus_milli)),
        "Demand that is exceeded in the break-even share of the hours considered, thousandths of a GPU.",
    ),
    (
        "method",
        Read::Text(|e| e.method.as_deref()),
        "BLEND (all rules, weighted by trailing regret), LAST_WEEK (no data yet to weight them) or PATHS (scenario paths).",
    ),
    (
        "rule",
        Read::Text(|e| e.rule.as_deref()),
        "Rule of least trailing regret. It changes only to one that is better by the cost of a switch.",
    ),
    (
        "rule_gpus_milli",
        Read::Int(|e| int(e.rule_gpus_milli)),
        "Commitment by that rule, thousandths of a GPU.",
    ),
    (
        "blend_gpus_milli",
        Read::Int(|e| int(e.blend_gpus_milli)),
        "Commitment by all rules together, thousandths of a GPU.",
    ),
    ("advised_gpus", Read::Int(|e| int(e.advised_gpus)), "GPUs to reserve: whole nodes."),
    ("advised_nodes", Read::Int(|e| int(e.advised_nodes)), "The same in nodes."),
    (
        "utilisation_ppm",
        Read::Int(|e| e.utilisation_ppm.map(i64::from)),
        "Share of it that was busy in the hours considered, millionths; NULL if nothing is advised.",
    ),
    (
        "marginal_utilisation_ppm",
        Read::Int(|e| e.marginal_utilisation_ppm.map(i64::from)),
        "Share of these hours in which its last node was needed, millionths.",
    ),
    (
        "cost_advised_micros",
        Read::Int(|e| int(e.cost_advised_micros)),
        "What these hours would have cost with it, the rest on demand, millionths of the currency.",
    ),
    ("cost_nothing_micros", Read::Int(|e| int(e.cost_nothing_micros)), "The same, all on demand."),
    (
        "cost_mean_micros",
        Read::Int(|e| int(e.cost_mean_micros)),
        "The same, with the mean reserved (whole nodes).",
    ),
    (
        "cost_peak_micros",
        Read::Int(|e| int(e.cost_peak_micros)),
        "The same, with the peak reserved (whole nodes).",
    ),
    (
        "cost_best_micros",
        Read::Int(|e| int(e.cost_best_micros)),
        "The same, with the best number of whole nodes, known afterwards.",
    ),
    (
        "expected_micros",
        Read::Int(|e| int(e.expected_micros)),
        "What the term is expected to cost, millionths of the currency.",
    ),
    (
        "expected_low_micros",
        Read::Int(|e| int(e.expected_low_micros)),
        "Quantile 10 % of that over scenario paths; NULL where history is too short for any.",
    ),
    ("expected_high_micros", Read::Int(|e| int(e.expected_high_micros)), "Quantile 90 %."),
    (
        "expected_nothing_micros",
        Read::Int(|e| int(e.expected_nothing_micros)),
        "What the term is expected to cost with all on demand.",
    ),
    ("gpus_low", Read::Int(|e| int(e.gpus_low)), "Cheapest number, path by path: quantile 10 %."),
    ("gpus_high", Read::Int(|e| int(e.gpus_high)), "Quantile 90 %."),
    ("paths", Read::Int(|e| Some(e.paths.into())), "Number of scenario paths."),
    ("lessons", Read::Int(|e| Some(e.lessons.into())), "Past decisions, one per day, whose term is over."),
    (
        "lessons_best_micros",
        Read::Int(|e| int(e.lessons_best_micros)),
        "Cost of those with the best number for each.",
    ),
    (
        "regret_last_ppm",
        Read::Int(|e| regret(e, "LAST")),
        "Regret over them of the last hour's demand reserved: cost over that of the best, less one, millionths.",
    ),
    (
        "regret_last_week_ppm",
        Read::Int(|e| regret(e, "QUANTILE_168H")),
        "Regret over them of the quantile of the last week: cost over that of the best, less one, millionths.",
    ),
    (
        "regret_nothing_ppm",
        Read::Int(|e| regret(e, "NOTHING")),
        "Regret over them of nothing reserved: cost over that of the best, less one, millionths.",
    ),
    (
        "regret_mean_ppm",
        Read::Int(|e| regret(e, "MEAN_672H")),
        "Regret over them of the mean of four weeks: cost over that of the best, less one, millionths.",
    ),
    (
        "regret_peak_ppm",
        Read::Int(|e| regret(e, "PEAK_672H")),
        "Regret over them of the peak of four weeks: cost over that of the best, less one, millionths.",
    ),
    (
        "regret_rule_ppm",
        Read::Int(|e| regret(e, e.rule.as_deref()?)),
        "Regret over them of the rule that is followed: cost over that of the best, less one, millionths.",
    ),
    (
        "mix_hours",
        Read::Int(|e| e.mix_hours.map(i64::from)),
        "YEAR: hours over which the cheapest mix was computed.",
    ),
    ("mix_owned_gpus", Read::Int(|e| int(e.mix_owned_gpus)), "GPUs of it to own; NULL without a price."),
    (
        "mix_reserved_gpus",
        Read::Int(|e| int(e.mix_reserved_gpus)),
        "GPUs of it to reserve; NULL without a price.",
    ),
    (
        "mix_spot_gpus_milli",
        Read::Int(|e| int(e.mix_spot_gpus_milli)),
        "Spot GPUs used in the mean, thousandths; NULL without a price and its terms, or where they cost more than on demand.",
    ),
    (
        "mix_on_demand_gpus_milli",
        Read::Int(|e| int(e.mix_on_demand_gpus_milli)),
        "GPUs on demand used in the mean, thousandths.",
    ),
    (
        "mix_micros_per_hour",
        Read::Int(|e| int(e.mix_micros_per_hour)),
        "Expected cost of the mix an hour, millionths of the currency.",
    ),
    (
        "mix_low_micros_per_hour",
        Read::Int(|e| int(e.mix_low_micros_per_hour)),
        "Quantile 10 % of that over scenario paths.",
    ),
    ("mix_high_micros_per_hour", Read::Int(|e| int(e.mix_high_micros_per_hour)), "Quantile 90 %."),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the rules."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

/// Regret of a rule, if past decisions are enough to measure it.
fn regret(advice: &SizingAdvice, rule: &str) -> Option<i64> {
    let at = advice.regret_rule.iter().position(|known| known == rule)?;
    advice.regret_ppm.get(at).copied()
}
