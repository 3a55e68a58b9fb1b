--! name    = "sizing"
--! doc     = "How much to reserve for the next week, per pool: the quantile of the last week's demand at the critical ratio of the prices, the rule that models of a week ahead hardly beat. A pool without a reserved (or owned) and an on-demand price in force is not here."
--! question = "How many GPUs should each pool reserve for the next week, and what would that save?"
--! example  = "SELECT pool, advised_gpus, peak_gpus_milli / 1000.0 AS peak, break_even_ppm / 10000 AS break_even_percent, utilisation_ppm / 10000 AS busy_percent, (cost_nothing_micros - cost_advised_micros) / 1000000 AS saved, currency FROM sizing ORDER BY saved DESC"
--! sources = ["usage_1h", "prices", "job_events"]
--! [columns]
--! cluster           = "Cluster."
--! pool              = "Partition, queue or node pool."
--! from_time         = "First hour of demand looked at: a week back, or the cluster's first."
--! to_time           = "End of the last hour that is over."
--! hours             = "Hours between; those without demand count as such."
--! currency          = "Currency of the prices, as in ISO 4217."
--! reserved_micros_per_gpu_hour  = "Price of a reserved or owned GPU-hour, used or not, millionths of the currency: the pool's own, else that of all pools."
--! on_demand_micros_per_gpu_hour = "Price of a GPU-hour on demand, the same way."
--! break_even_ppm    = "A reserved GPU pays if it is busy more than this share of the hours: reserved price / on-demand price, millionths."
--! mean_gpus_milli   = "Mean demand (held and waited for), thousandths of a GPU."
--! peak_gpus_milli   = "Highest demand of an hour, thousandths of a GPU."
--! quantile_gpus_milli = "Demand that is exceeded in the break-even share of the hours: the cheapest reservation were GPUs divisible."
--! advised_gpus      = "Whole GPUs to reserve: the cheaper of that rounded down and up."
--! utilisation_ppm   = "Share of the advised reservation that would have been busy in these hours, millionths; NULL if nothing is advised."
--! cost_advised_micros = "What these hours would have cost with it, the rest on demand, millionths of the currency."
--! cost_nothing_micros = "The same, all on demand."
--! cost_peak_micros    = "The same, with the peak reserved (whole GPUs)."
WITH observed AS (
    SELECT cluster, window_of(max(event_time), 3600000) AS to_time FROM job_events GROUP BY cluster
), begun AS (
    SELECT cluster, min(window_start) AS first_hour FROM usage_1h GROUP BY cluster
), span AS (
    SELECT o.cluster, o.to_time, greatest(b.first_hour, o.to_time - INTERVAL '168 hours') AS from_time
    FROM observed o
    JOIN begun b ON b.cluster = o.cluster AND b.first_hour < o.to_time
), timed AS (
    SELECT *, gpu_ms(1000, from_time, from_time, to_time) / 3600000 AS hours FROM span
), demand AS (
    -- GPU x ms of an hour / 3600 are thousandths of a GPU.
    SELECT u.cluster, u.pool, u.window_start, sum(u.gpu_ms_held + u.gpu_ms_queued) / 3600 AS gpus_milli
    FROM usage_1h u
    JOIN timed t ON t.cluster = u.cluster AND u.window_start >= t.from_time AND u.window_start < t.to_time
    WHERE u.pool IS NOT NULL
    GROUP BY u.cluster, u.pool, u.window_start
), in_force AS (
    SELECT p.cluster, p.pool, p.currency, p.price_micros_per_gpu_hour,
           CASE WHEN p.contract IN ('reserved', 'owned') THEN 'reserved' ELSE p.contract END AS contract
    FROM prices p
    JOIN timed t ON t.cluster = p.cluster AND p.from_time < t.to_time AND (p.to_time IS NULL OR p.to_time >= t.to_time)
    WHERE p.contract IN ('reserved', 'owned', 'on_demand') AND p.gpu_model IS NULL AND p.price_micros_per_gpu_hour > 0
), pools AS (
    SELECT cluster, pool, sum(gpus_milli) AS sum_milli, max(gpus_milli) AS peak_gpus_milli, count(*) AS busy_hours
    FROM demand
    GROUP BY cluster, pool
), priced AS (
    SELECT d.cluster, d.pool, d.sum_milli, d.peak_gpus_milli, d.busy_hours, f.currency,
           coalesce(max(CASE WHEN f.pool IS NOT NULL AND f.contract = 'reserved' THEN f.price_micros_per_gpu_hour END),
                    max(CASE WHEN f.pool IS NULL AND f.contract = 'reserved' THEN f.price_micros_per_gpu_hour END)) AS reserved,
           coalesce(max(CASE WHEN f.pool IS NOT NULL AND f.contract = 'on_demand' THEN f.price_micros_per_gpu_hour END),
                    max(CASE WHEN f.pool IS NULL AND f.contract = 'on_demand' THEN f.price_micros_per_gpu_hour END)) AS on_demand
    FROM pools d
    JOIN in_force f ON f.cluster = d.cluster AND (f.pool = d.pool OR f.pool IS NULL)
    GROUP BY d.cluster, d.pool, d.sum_milli, d.peak_gpus_milli, d.busy_hours, f.currency
), placed AS (
    -- Of the hours in order of demand, the one at the critical ratio 1 - reserved / on demand; those without demand come first.
    SELECT p.*, t.from_time, t.to_time, t.hours,
           (t.hours * greatest(p.on_demand - p.reserved, 0) + p.on_demand - 1) / p.on_demand - (t.hours - p.busy_hours) AS place
    FROM priced p
    JOIN timed t ON t.cluster = p.cluster
    WHERE p.reserved IS NOT NULL AND p.on_demand IS NOT NULL
), ranked AS (
    SELECT cluster, pool, gpus_milli, row_number() OVER (PARTITION BY cluster, pool ORDER BY gpus_milli, window_start) AS place
    FROM demand
), exact AS (
    SELECT p.*, coalesce(r.gpus_milli, 0) AS quantile_gpus_milli
    FROM placed p
    LEFT JOIN ranked r ON r.cluster = p.cluster AND r.pool = p.pool AND r.place = p.place
), above AS (
    -- What exceeds a reservation of whole GPUs: rounded down, rounded up, and the peak's.
    SELECT e.cluster, e.pool, e.currency,
           coalesce(sum(greatest(d.gpus_milli - e.quantile_gpus_milli / 1000 * 1000, 0)), 0) AS above_down,
           coalesce(sum(greatest(d.gpus_milli - (e.quantile_gpus_milli + 999) / 1000 * 1000, 0)), 0) AS above_up
    FROM exact e
    JOIN demand d ON d.cluster = e.cluster AND d.pool = e.pool
    GROUP BY e.cluster, e.pool, e.currency
), costed AS (
    SELECT e.*, a.above_down, a.above_up,
           (e.reserved * e.hours * (e.quantile_gpus_milli / 1000 * 1000) + e.on_demand * a.above_down) / 1000 AS cost_down,
           (e.reserved * e.hours * ((e.quantile_gpus_milli + 999) / 1000 * 1000) + e.on_demand * a.above_up) / 1000 AS cost_up
    FROM exact e
    JOIN above a ON a.cluster = e.cluster AND a.pool = e.pool AND a.currency = e.currency
), chosen AS (
    SELECT *,
           CASE WHEN cost_up < cost_down THEN (quantile_gpus_milli + 999) / 1000 ELSE quantile_gpus_milli / 1000 END AS advised_gpus,
           CASE WHEN cost_up < cost_down THEN above_up ELSE above_down END AS above_milli
    FROM costed
)
SELECT cluster, pool, from_time, to_time, hours, currency,
       reserved AS reserved_micros_per_gpu_hour, on_demand AS on_demand_micros_per_gpu_hour,
       reserved * 1000000 / on_demand AS break_even_ppm,
       sum_milli / hours AS mean_gpus_milli, peak_gpus_milli, quantile_gpus_milli, advised_gpus,
       CASE WHEN advised_gpus > 0 THEN (sum_milli - above_milli) * 1000 / (advised_gpus * hours) END AS utilisation_ppm,
       least(cost_down, cost_up) AS cost_advised_micros,
       on_demand * sum_milli / 1000 AS cost_nothing_micros,
       reserved * hours * ((peak_gpus_milli + 999) / 1000) AS cost_peak_micros
FROM chosen
