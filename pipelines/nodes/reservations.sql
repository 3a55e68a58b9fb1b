--! name    = "reservations"
--! doc     = "Reservations as last reported by the scheduler, including removed ones."
--! question = "Which reservations are there or still to come, and for whom?"
--! example  = "SELECT name, owner, pool, gpus_milli / 1000.0 AS gpus, nodes, accounts, start_time, end_time, state FROM reservations WHERE removed_time IS NULL AND coalesce(end_time > now(), true) ORDER BY start_time"
--! sources = ["capacity_events"]
--! [columns]
--! cluster      = "Cluster."
--! name         = "Name of the reservation."
--! owner        = "Team that is entitled."
--! pool         = "Pool of the reservation."
--! gpus_milli   = "Thousandths of a GPU."
--! nodes        = "Host names, comma separated."
--! accounts     = "Accounts that may use it, comma separated."
--! users        = "Users that may use it, comma separated."
--! flags        = "Flags in the scheduler's words, comma separated."
--! state        = "State in the scheduler's words."
--! first_time   = "Time at which it was first reported."
--! start_time   = "Scheduled start."
--! end_time     = "Scheduled end."
--! removed_time = "Time of removal; NULL if it was not removed, or set again since."
WITH latest_reports AS (
    -- One row per reservation, with the latest value of each field.
    SELECT cluster, name, owner,
           latest(pool, event_time) AS pool,
           latest(gpus_milli, event_time) AS gpus_milli,
           latest(nodes, event_time) AS nodes,
           latest(accounts, event_time) AS accounts,
           latest(users, event_time) AS users,
           latest(flags, event_time) AS flags,
           latest(state, event_time) AS state,
           min(event_time) AS first_time,
           latest(CAST(date_part('epoch', start_time) * 1000 AS BIGINT), event_time) AS start_ms,
           latest(CAST(date_part('epoch', end_time) * 1000 AS BIGINT), event_time) AS end_ms,
           max(event_time) FILTER (WHERE kind = 'RESERVATION_SET') AS set_time,
           max(event_time) FILTER (WHERE kind = 'RESERVATION_REMOVED') AS gone_time
    FROM capacity_events
    WHERE name IS NOT NULL AND kind IN ('RESERVATION_SET', 'RESERVATION_REMOVED')
    GROUP BY cluster, name, owner
)
SELECT cluster, name, owner, pool, gpus_milli, nodes, accounts, users, flags, state, first_time,
       plus_ms(arrow_cast(0, 'Timestamp(Microsecond, Some("UTC"))'), start_ms) AS start_time,
       plus_ms(arrow_cast(0, 'Timestamp(Microsecond, Some("UTC"))'), end_ms) AS end_time,
       CASE WHEN set_time IS NULL OR gone_time > set_time THEN gone_time END AS removed_time
FROM latest_reports
