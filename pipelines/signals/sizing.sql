--! name    = "sizing"
--! doc     = "Advice on how much of each pool, and of the cluster, to reserve for a week, a month and a year: the latest. Week and month use ten rules (quantiles of the last day to four weeks at the critical ratio of the prices, and changes of demand over terms), blended by what each would have cost in past decisions. A year uses scenario paths. In whole nodes. `tidegate up` and `tidegate insight run` publish it once a day, for midnight. A year rests on assumed growth where the history does not determine it; no trace was long enough to verify it."
--! question = "How many GPUs should each pool reserve for the next week, month and year, and what would that save?"
--! example  = "SELECT pool, term, advised_nodes, advised_gpus, gpus_low, gpus_high, break_even_ppm / 10000 AS break_even_percent, utilisation_ppm / 10000 AS busy_percent, (expected_nothing_micros - expected_micros) / 1000000 AS saves, currency, reason FROM sizing ORDER BY pool, term_hours"
--! sources = ["sizing_advice"]
--! [columns]
--! cluster                       = "Cluster."
--! kind                          = "TOTAL or POOL."
--! pool                          = "Partition, queue or node pool; NULL for the whole cluster."
--! term                          = "WEEK, MONTH or YEAR."
--! from_time                     = "First hour of demand considered."
--! to_time                       = "Time of the advice: end of the last hour considered."
--! hours                         = "Latest hours considered: as many as the term has, or fewer."
--! known_hours                   = "Hours of known demand."
--! reason                        = "Why there is no advice: NO_RESERVED_PRICE, NO_ON_DEMAND_PRICE, CURRENCIES_DIFFER, LENDING_TOO_DEAR, TOO_LITTLE_HISTORY, DEMAND_TOO_LARGE or OUT_OF_RANGE."
--! currency                      = "Currency of the prices, as in ISO 4217."
--! reserved_micros_per_gpu_hour  = "Price of a reserved GPU-hour, used or not, millionths of the currency."
--! on_demand_micros_per_gpu_hour = "Price of a GPU-hour on demand, the same way."
--! spot_micros_per_gpu_hour      = "Price of a spot GPU-hour, the same way."
--! owned_micros_per_gpu_hour     = "Price of an owned GPU-hour, used or not, the same way."
--! lend_micros_per_gpu_hour      = "Revenue of an idle reserved or owned GPU-hour that is lent, the same way."
--! break_even_ppm                = "Share of busy hours above which a reserved GPU pays off, millionths."
--! mean_gpus_milli               = "Mean demand (held and waited for) of the hours considered, thousandths of a GPU."
--! peak_gpus_milli               = "Highest demand of one of these hours, thousandths of a GPU."
--! quantile_gpus_milli           = "Demand that is exceeded in the break-even share of the hours, thousandths of a GPU."
--! node_gpus                     = "GPUs of a node; NULL if no nodes are known, in which case GPUs are counted one by one."
--! advised_gpus                  = "GPUs to reserve, in whole nodes."
--! advised_nodes                 = "The same in nodes."
--! method                        = "BLEND (all rules, weighted by trailing regret), LAST_WEEK (no history to weight them yet) or PATHS (scenario paths)."
--! rule                          = "Rule of least trailing regret. It is replaced only by a rule that is better by the cost of a switch."
--! rule_gpus_milli               = "Commitment of that rule, thousandths of a GPU."
--! blend_gpus_milli              = "Commitment of all rules blended, thousandths of a GPU."
--! utilisation_ppm               = "Busy share of the advised GPUs in the hours considered, millionths; NULL without advice."
--! marginal_utilisation_ppm      = "Share of these hours in which the last node was needed, millionths."
--! cost_advised_micros           = "Cost of these hours with the advice, the rest on demand, millionths of the currency."
--! cost_nothing_micros           = "Cost with everything on demand."
--! cost_mean_micros              = "Cost with the mean reserved (whole nodes)."
--! cost_peak_micros              = "Cost with the peak reserved (whole nodes)."
--! cost_best_micros              = "Cost with the best number of whole nodes in hindsight."
--! term_hours                    = "Hours of the term."
--! expected_micros               = "Expected cost of the term, millionths of the currency."
--! expected_low_micros           = "Its quantile 10 % over scenario paths; NULL if history is too short."
--! expected_high_micros          = "Quantile 90 %."
--! expected_nothing_micros       = "Expected cost of the term with everything on demand."
--! gpus_low                      = "Cheapest number of GPUs, path by path: quantile 10 %."
--! gpus_high                     = "Quantile 90 %."
--! paths                         = "Scenario paths drawn."
--! lessons                       = "Past daily decisions whose term is over."
--! regret_rule_ppm               = "Regret of the current rule over them: cost relative to the best decision, minus one, millionths."
--! regret_last_ppm               = "Regret over them of the last hour's demand reserved: cost over that of the best, less one, millionths."
--! regret_last_week_ppm          = "Regret over them of the quantile of the last week: cost over that of the best, less one, millionths."
--! regret_mean_ppm               = "Regret over them of the mean of four weeks: cost over that of the best, less one, millionths."
--! regret_peak_ppm               = "Regret over them of the peak of four weeks: cost over that of the best, less one, millionths."
--! regret_nothing_ppm            = "Regret over them of nothing reserved: cost over that of the best, less one, millionths."
--! mix_hours                     = "For YEAR: hours over which the cheapest mix was searched."
--! mix_owned_gpus                = "GPUs to own in the mix; NULL without a price."
--! mix_reserved_gpus             = "GPUs to reserve in the mix; NULL without a price."
--! mix_spot_gpus_milli           = "Mean spot GPUs in the mix, thousandths; NULL without a price and its terms, or if they cost more than on demand."
--! mix_on_demand_gpus_milli      = "Mean GPUs on demand in the mix, thousandths."
--! mix_micros_per_hour           = "Expected cost of the mix an hour, millionths of the currency."
--! mix_low_micros_per_hour       = "Quantile 10 % of that over scenario paths."
--! mix_high_micros_per_hour      = "Quantile 90 %."
--! model                         = "Version of the rules."
WITH advice AS (
    -- One row per advice; place 1 is the latest.
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
FROM advice
WHERE place = 1
