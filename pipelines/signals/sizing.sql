--! name    = "sizing"
--! doc     = "How much to reserve of each pool, and of the cluster, for a week, a month and a year: the newest advice. A week and a month by ten rules (quantiles of the last day to four weeks at the critical ratio of the prices, and how demand changed over terms), blended by what each would have cost in decisions of the past; a year by scenario paths. In whole nodes. The decision is of a midnight; `tidegate up` and `tidegate insight run` say it. A year rests on what is believed of growth where the weeks do not tell it, and no trace was long enough to check it."
--! question = "How many GPUs should each pool reserve for the next week, month and year, and what would that save?"
--! example  = "SELECT pool, term, advised_nodes, advised_gpus, gpus_low, gpus_high, break_even_ppm / 10000 AS break_even_percent, utilisation_ppm / 10000 AS busy_percent, (expected_nothing_micros - expected_micros) / 1000000 AS saves, currency, reason FROM sizing ORDER BY pool, term_hours"
--! sources = ["sizing_advice"]
--! [columns]
--! cluster                       = "Cluster."
--! kind                          = "TOTAL or POOL."
--! pool                          = "Partition, queue or node pool; NULL for the whole cluster."
--! term                          = "WEEK, MONTH or YEAR."
--! from_time                     = "First hour of demand looked at."
--! to_time                       = "When it was advised: end of the last hour looked at."
--! hours                         = "Hours looked at, the last ones: as many as the term has, or fewer."
--! known_hours                   = "Hours of demand known."
--! reason                        = "Why nothing is advised: NO_RESERVED_PRICE, NO_ON_DEMAND_PRICE, CURRENCIES_DIFFER, LENDING_TOO_DEAR, TOO_LITTLE_HISTORY, DEMAND_TOO_LARGE or OUT_OF_RANGE."
--! currency                      = "Currency of the prices, as in ISO 4217."
--! reserved_micros_per_gpu_hour  = "Price of a reserved GPU-hour, used or not, millionths of the currency."
--! on_demand_micros_per_gpu_hour = "Price of a GPU-hour on demand, the same way."
--! spot_micros_per_gpu_hour      = "Price of a spot GPU-hour, the same way."
--! owned_micros_per_gpu_hour     = "Price of an owned GPU-hour, used or not, the same way."
--! lend_micros_per_gpu_hour      = "Earned for an idle reserved or owned GPU-hour, the same way."
--! break_even_ppm                = "A reserved GPU pays if it is busy more than this share of the hours, millionths."
--! mean_gpus_milli               = "Mean demand (held and waited for) of the hours looked at, thousandths of a GPU."
--! peak_gpus_milli               = "Highest demand of one of these hours, thousandths of a GPU."
--! quantile_gpus_milli           = "Demand that is exceeded in the break-even share of the hours looked at, thousandths of a GPU."
--! node_gpus                     = "GPUs of a node; NULL where no nodes are known, and GPUs are counted one by one."
--! advised_gpus                  = "GPUs to reserve: whole nodes."
--! advised_nodes                 = "The same in nodes."
--! method                        = "BLEND (all rules, weighed by trailing regret), LAST_WEEK (nothing was seen yet to weigh them by) or PATHS (scenario paths)."
--! rule                          = "Rule of least trailing regret; it is left only for one that is better by the cost of a switch."
--! rule_gpus_milli               = "What it would commit to, thousandths of a GPU."
--! blend_gpus_milli              = "What all rules together would, thousandths of a GPU."
--! utilisation_ppm               = "Share of it that was busy in the hours looked at, millionths; NULL if nothing is advised."
--! marginal_utilisation_ppm      = "Share of these hours in which its last node was needed, millionths."
--! cost_advised_micros           = "What these hours would have cost with it, the rest on demand, millionths of the currency."
--! cost_nothing_micros           = "The same, all on demand."
--! cost_mean_micros              = "The same, with the mean reserved (whole nodes)."
--! cost_peak_micros              = "The same, with the peak reserved (whole nodes)."
--! cost_best_micros              = "The same, with the best number of whole nodes, known afterwards."
--! term_hours                    = "Hours of the term."
--! expected_micros               = "What the term is expected to cost, millionths of the currency."
--! expected_low_micros           = "Quantile 10 % of that over scenario paths; NULL where history is too short for any."
--! expected_high_micros          = "Quantile 90 %."
--! expected_nothing_micros       = "What the term is expected to cost with all on demand."
--! gpus_low                      = "Cheapest number, path by path: quantile 10 %."
--! gpus_high                     = "Quantile 90 %."
--! paths                         = "Scenario paths drawn."
--! lessons                       = "Decisions of the past, a day each, whose term is over."
--! regret_rule_ppm               = "Regret over them of the rule that is followed: cost over that of the best, less one, millionths."
--! regret_last_ppm               = "Regret over them of the last hour's demand reserved: cost over that of the best, less one, millionths."
--! regret_last_week_ppm          = "Regret over them of the quantile of the last week: cost over that of the best, less one, millionths."
--! regret_mean_ppm               = "Regret over them of the mean of four weeks: cost over that of the best, less one, millionths."
--! regret_peak_ppm               = "Regret over them of the peak of four weeks: cost over that of the best, less one, millionths."
--! regret_nothing_ppm            = "Regret over them of nothing reserved: cost over that of the best, less one, millionths."
--! mix_hours                     = "Of YEAR: hours over which the cheapest mix was looked for."
--! mix_owned_gpus                = "GPUs of it to own; NULL without a price."
--! mix_reserved_gpus             = "GPUs of it to reserve; NULL without a price."
--! mix_spot_gpus_milli           = "Spot GPUs used in the mean, thousandths; NULL without a price and its terms, or where they cost more than on demand."
--! mix_on_demand_gpus_milli      = "GPUs on demand used in the mean, thousandths."
--! mix_micros_per_hour           = "Expected cost of the mix an hour, millionths of the currency."
--! mix_low_micros_per_hour       = "Quantile 10 % of that over scenario paths."
--! mix_high_micros_per_hour      = "Quantile 90 %."
--! model                         = "Version of the rules."
WITH latest_said AS (
    SELECT *,
           row_number() OVER (PARTITION BY cluster, kind, name, term
                              ORDER BY event_time DESC, prices_entered_time DESC NULLS LAST, source) AS place
    FROM sizing_advice
)
SELECT cluster, kind, CASE kind WHEN 'POOL' THEN name END AS pool, term, plus_ms(event_time, -3600000 * hours) AS from_time,
       event_time AS to_time, hours, known_hours, reason, currency, reserved_micros_per_gpu_hour,
       on_demand_micros_per_gpu_hour, spot_micros_per_gpu_hour, owned_micros_per_gpu_hour, lend_micros_per_gpu_hour,
       break_even_ppm, mean_gpus_milli, peak_gpus_milli, quantile_gpus_milli, node_gpus, advised_gpus, advised_nodes, method,
       rule, rule_gpus_milli, blend_gpus_milli, utilisation_ppm, marginal_utilisation_ppm, cost_advised_micros,
       cost_nothing_micros, cost_mean_micros, cost_peak_micros, cost_best_micros, term_hours, expected_micros,
       expected_low_micros, expected_high_micros, expected_nothing_micros, gpus_low, gpus_high, paths, lessons,
       regret_rule_ppm, regret_last_ppm, regret_last_week_ppm, regret_mean_ppm, regret_peak_ppm, regret_nothing_ppm,
       mix_hours, mix_owned_gpus, mix_reserved_gpus, mix_spot_gpus_milli, mix_on_demand_gpus_milli, mix_micros_per_hour,
       mix_low_micros_per_hour, mix_high_micros_per_hour, model
FROM latest_said
WHERE place = 1
