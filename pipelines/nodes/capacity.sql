--! name    = "capacity"
--! version = 3
--! doc     = "History of quotas, reservations, limits and partitions: one row per value and the time in which it was in force. Prices are in prices. A row with previous_gpus_milli is a change."
--! question = "What GPU entitlements are in force, and when did quotas, reservations and limits change?"
--! example  = "SELECT from_time, owner, kind, name, pool, previous_gpus_milli / 1000.0 AS gpus_before, gpus_milli / 1000.0 AS gpus FROM capacity WHERE from_time >= now() - INTERVAL '30 days' ORDER BY from_time DESC LIMIT 100"
--! sources = ["capacity_events"]
--! per     = ["cluster", "owner"]
--! key     = ["cluster", "owner", "kind", "name", "pool", "gpu_model", "from_time"]
--! [columns]
--! cluster             = "Cluster."
--! owner               = "Team or virtual cluster that is entitled; `total` is the whole cluster."
--! kind                = "QUOTA_SET, RESERVATION_SET, LIMIT_SET or PARTITION_SET."
--! name                = "Name of the reservation."
--! pool                = "Pool the entitlement is in."
--! gpu_model           = "GPU model that it applies to."
--! gpus_milli          = "Thousandths of a GPU; NULL for a limit that was lifted, and if not reported."
--! nodes               = "Nodes that the reservation or partition names, comma separated. A reservation of named nodes adds no capacity."
--! accounts            = "Accounts that may use it, comma separated."
--! users               = "Users that may use it, comma separated."
--! flags               = "Flags in the scheduler's words, comma separated. MAINT marks a reservation for maintenance."
--! state               = "State of the partition or reservation in the scheduler's words."
--! previous_gpus_milli = "Previous value; NULL for the first known value."
--! from_time           = "Start; for a reservation not before it begins."
--! to_time             = "End: the next value, the scheduled end, or the removal; NULL for the value in force."
WITH settings AS (
    -- One row per entitlement and time at which it was set or removed.
    SELECT cluster, owner,
           CASE kind WHEN 'RESERVATION_REMOVED' THEN 'RESERVATION_SET' WHEN 'PARTITION_REMOVED' THEN 'PARTITION_SET' ELSE kind END AS kind,
           name,
           -- A removal names the entitlement and may leave out the rest.
           CASE WHEN name IS NULL THEN pool END AS of_pool,
           CASE WHEN name IS NULL AND kind NOT IN ('PARTITION_SET', 'PARTITION_REMOVED') THEN gpu_model END AS of_model,
           event_time,
           max(CASE WHEN kind IN ('RESERVATION_REMOVED', 'PARTITION_REMOVED') THEN 0 ELSE 1 END) AS is_set,
           max(pool) AS pool, max(gpu_model) AS gpu_model,
           max(gpus_milli) AS gpus_milli, max(state) AS state,
           max(nodes) AS nodes, max(accounts) AS accounts, max(users) AS users, max(flags) AS flags, max(start_time) AS start_time, max(end_time) AS end_time
    FROM capacity_events
    WHERE kind <> 'PRICE_SET'
    GROUP BY cluster, owner, 3, name, 5, 6, event_time
), detailed AS (
    -- The same rows, with all details as one text for comparison.
    SELECT *, concat_ws('/', coalesce(pool, ''), coalesce(gpu_model, ''), coalesce(nodes, ''), coalesce(accounts, ''),
                        coalesce(users, ''), coalesce(flags, '')) AS detail
    FROM settings
), compared AS (
    -- The same rows, beside the setting before.
    SELECT *,
           lag(gpus_milli) OVER entitlement AS previous_gpus_milli,
           lag(is_set)     OVER entitlement AS was_set,
           lag(state)      OVER entitlement AS was_state,
           lag(start_time) OVER entitlement AS was_start,
           lag(end_time)   OVER entitlement AS was_end,
           lag(detail)     OVER entitlement AS was_detail
    FROM detailed
    WINDOW entitlement AS (PARTITION BY cluster, owner, kind, name, of_pool, of_model ORDER BY event_time)
), changes AS (
    -- Only rows that change anything.
    SELECT * FROM compared
    WHERE (was_set IS DISTINCT FROM is_set) OR (previous_gpus_milli IS DISTINCT FROM gpus_milli)
       OR (was_state IS DISTINCT FROM state) OR (was_start IS DISTINCT FROM start_time) OR (was_end IS DISTINCT FROM end_time)
       OR (was_detail IS DISTINCT FROM detail)
), spans AS (
    -- The same rows, with start and next change.
    SELECT *,
           greatest(event_time, coalesce(start_time, event_time)) AS from_time,
           lead(event_time) OVER (PARTITION BY cluster, owner, kind, name, of_pool, of_model ORDER BY event_time) AS next_time
    FROM changes
)
SELECT cluster, owner, kind, name, pool, gpu_model, gpus_milli, nodes, accounts, users, flags, state,
       CASE WHEN was_set = 1 THEN previous_gpus_milli END AS previous_gpus_milli,
       from_time,
       least(next_time, end_time) AS to_time
FROM spans
-- A value that was changed or removed before it began was never in force.
WHERE is_set = 1 AND coalesce(from_time < least(next_time, end_time), true)
