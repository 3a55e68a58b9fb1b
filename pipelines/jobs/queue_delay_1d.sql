--! name    = "queue_delay_1d"
--! doc     = "Histogram of the queue delay before the first start of jobs, per UTC day of the start. Any sum of rows is a histogram again."
--! question = "How has the wait before the first start changed, day by day?"
--! example  = "SELECT window_start, sum(jobs) AS jobs, sum(queue_ms) / nullif(sum(jobs), 0) / 1000 AS mean_s, max(delay_bucket_ms) / 1000 AS longest_at_least_s FROM queue_delay_1d WHERE window_start >= now() - INTERVAL '30 days' GROUP BY window_start ORDER BY window_start"
--! sources = ["jobs"]
--! window  = "1d"
--! extent  = { time = "start_time" }
--! key     = ["window_start", "cluster", "pool", "team", "delay_bucket_ms"]
--! [columns]
--! window_start    = "Start of the UTC day in which the jobs started."
--! cluster         = "Cluster."
--! pool            = "Partition, queue or node pool."
--! team            = "Account, group or virtual cluster."
--! delay_bucket_ms = "Lower bound of the queue delay, ms; the next bucket begins at most 12.5 % higher (log_bucket)."
--! jobs            = "Jobs that started with such a delay."
--! queue_ms        = "Sum of their exact delays, ms."
--! gpus_milli      = "Sum of the thousandths of a GPU that they started with."
SELECT window_start, cluster, pool, team, log_bucket(queue_ms) AS delay_bucket_ms,
       count(*) AS jobs, sum(queue_ms) AS queue_ms, sum(gpus_milli) AS gpus_milli
FROM jobs
WHERE queue_ms IS NOT NULL
GROUP BY window_start, cluster, pool, team, log_bucket(queue_ms)
