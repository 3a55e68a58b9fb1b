--! name    = "job_energy"
--! doc     = "Energy of jobs, from the energy counters of the devices that they held (gpu_spans x gpu_1m). The growth of each minute is divided among the jobs that held the device, by time and share, and for a slice by its sevenths, so no device's energy counts twice. GPUs only: no CPUs, fans or cooling."
--! question = "How much energy did a job use, and how many joules per million tokens?"
--! example  = "SELECT job_id, energy_mj / 34200000000.0 AS kwh, quality, uj_per_token AS joules_per_million_tokens, token_reason FROM job_energy ORDER BY energy_mj DESC NULLS LAST LIMIT 20"
--! sources = ["gpu_spans", "gpu_1m", "steps"]
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! energy_mj   = "Energy of the devices while the job held them, mJ: the sum of the next three; NULL if never known. Time without data contributes nothing."
--! exact_mj    = "In minutes in which the device belonged to the job alone."
--! edge_mj     = "In minutes that the job held the device in part, by the fraction of the minute: an estimate."
--! shared_mj   = "On devices that other jobs held too, or of which the job held a part, by its part: an estimate, because the draw of a part is not measurable. Holds of unknown share get nothing."
--! held_us     = "Time of devices held, weighted by share where it is known, µs."
--! known_us    = "Part of held_us for which the counter is known, µs. Growth over a gap in the samples counts in the minute that ends the gap."
--! quality     = "EXACT; EDGES_ESTIMATED: edge_mj is not 0; SHARED_ESTIMATED: shared_mj is not 0; PARTLY_UNKNOWN: known_us is under 99 % of held_us, or a share is not known; UNKNOWN: nothing is known. The worst that applies."
--! devices     = "Devices held that were sampled in at least one minute."
--! tokens      = "Tokens that its ranks reported."
--! uj_per_token = "Energy per token, µJ, rounded down; NULL if token_reason is set."
--! token_reason = "no_tokens: none reported; some_ranks: not all ranks report tokens; no_energy; energy_unknown_in_part."
WITH spans AS (
    -- One row per hold; part in seven-thousandths of a GPU: share x sevenths.
    SELECT cluster, job_id, device, gpu_uuid, from_time, to_time, share_milli * sevenths AS part FROM gpu_spans
), minutes AS (
    -- One row per minute and GPU.
    SELECT window_start, plus_ms(window_start, 60000) AS window_end, cluster, node, gpu_uuid,
           max(gpu_index) AS gpu_index, sum(energy_mj) AS energy_mj, sum(energy_known_us) AS energy_known_us
    FROM gpu_1m
    WHERE mig_uuid IS NULL
    GROUP BY window_start, cluster, node, gpu_uuid
), held_minutes AS (
    -- One row per minute, GPU and hold. A GPU that is not known for the whole hold may be known by
    -- its index in each minute.
    SELECT m.window_start, m.window_end, m.cluster, m.gpu_uuid, m.energy_mj, m.energy_known_us, h.job_id, h.part, h.from_time, h.to_time
    FROM minutes m
    JOIN spans h ON h.cluster = m.cluster AND h.gpu_uuid = m.gpu_uuid AND h.from_time < m.window_end AND h.to_time > m.window_start
    UNION ALL
    SELECT m.window_start, m.window_end, m.cluster, m.gpu_uuid, m.energy_mj, m.energy_known_us, h.job_id, h.part, h.from_time, h.to_time
    FROM minutes m
    JOIN spans h ON h.gpu_uuid IS NULL AND h.cluster = m.cluster AND h.device = concat(m.node, '/', CAST(m.gpu_index AS TEXT))
                AND h.from_time < m.window_end AND h.to_time > m.window_start
), claims AS (
    -- One row per minute, GPU and job: how much of it the job claims.
    SELECT window_start, cluster, gpu_uuid, job_id, energy_mj, energy_known_us,
           -- least() ignores NULL, so a missing share is checked first: without it there is no claim.
           CASE WHEN count(part) > 0
                THEN least(sum(ms_between(greatest(from_time, window_start), least(to_time, window_end)) * part), 420000000)
           END AS claim,
           max(CASE WHEN part IS NULL THEN 1 ELSE 0 END) AS share_unknown,
           max(CASE WHEN part < 7000 THEN 1 ELSE 0 END)  AS is_part
    FROM held_minutes
    GROUP BY window_start, cluster, gpu_uuid, job_id, energy_mj, energy_known_us
), divided AS (
    -- The same rows, with the sum of all claims.
    SELECT *,
           greatest(sum(claim) OVER device_minute, 420000000) AS divisor,
           count(*) OVER device_minute                          AS holders
    FROM claims
    WINDOW device_minute AS (PARTITION BY window_start, cluster, gpu_uuid)
), given AS (
    -- The same rows, with the energy of the job.
    SELECT *, part_of(energy_mj, 0, claim, divisor) AS given_mj,
           CASE WHEN energy_mj IS NULL THEN 0 ELSE part_of(energy_known_us, 0, claim, 420000000) END AS given_us
    FROM divided
), by_job AS (
    -- One row per job with energy.
    SELECT cluster, job_id, sum(given_mj) AS energy_mj,
           coalesce(sum(given_mj) FILTER (WHERE holders = 1 AND is_part = 0 AND claim = 420000000), 0) AS exact_mj,
           coalesce(sum(given_mj) FILTER (WHERE holders = 1 AND is_part = 0 AND claim < 420000000), 0) AS edge_mj,
           coalesce(sum(given_mj) FILTER (WHERE holders > 1 OR is_part = 1), 0)                          AS shared_mj,
           coalesce(sum(given_us), 0) AS known_us, max(share_unknown) AS share_unknown, count(DISTINCT gpu_uuid) AS devices
    FROM given
    GROUP BY cluster, job_id
), held AS (
    -- One row per job.
    SELECT cluster, job_id, sum(ms_between(from_time, to_time) * coalesce(part, 7000)) / 7 AS held_us,
           max(CASE WHEN part IS NULL THEN 1 ELSE 0 END) AS share_unknown
    FROM spans
    GROUP BY cluster, job_id
), trained AS (
    -- One row per job that reports steps.
    SELECT cluster, job_id, sum(tokens) AS tokens, count(DISTINCT rank) FILTER (WHERE tokens IS NOT NULL) AS ranks,
           count(DISTINCT rank) AS all_ranks, max(world_size) AS world_max_ranks
    FROM steps
    GROUP BY cluster, job_id
), explained AS (
    -- One row per job, with quality and reason.
    SELECT h.cluster, h.job_id, b.energy_mj,
           CASE WHEN b.energy_mj IS NOT NULL THEN b.exact_mj END  AS exact_mj,
           CASE WHEN b.energy_mj IS NOT NULL THEN b.edge_mj END   AS edge_mj,
           CASE WHEN b.energy_mj IS NOT NULL THEN b.shared_mj END AS shared_mj,
           h.held_us, coalesce(b.known_us, 0) AS known_us,
           CASE WHEN b.energy_mj IS NULL THEN 'UNKNOWN'
                WHEN h.share_unknown = 1 OR b.known_us * 100 < h.held_us * 99 THEN 'PARTLY_UNKNOWN'
                WHEN b.shared_mj > 0 THEN 'SHARED_ESTIMATED'
                WHEN b.edge_mj > 0 THEN 'EDGES_ESTIMATED'
                ELSE 'EXACT' END AS quality,
           coalesce(b.devices, 0) AS devices, t.tokens,
           CASE WHEN coalesce(t.tokens, 0) = 0 THEN 'no_tokens'
                WHEN t.ranks < greatest(t.all_ranks, t.world_max_ranks) THEN 'some_ranks'
                WHEN b.energy_mj IS NULL THEN 'no_energy'
                WHEN h.share_unknown = 1 OR b.known_us * 100 < h.held_us * 99 THEN 'energy_unknown_in_part' END AS token_reason
    FROM held h
    LEFT JOIN by_job b ON b.cluster = h.cluster AND b.job_id = h.job_id
    LEFT JOIN trained t ON t.cluster = h.cluster AND t.job_id = h.job_id
)
SELECT cluster, job_id, energy_mj, exact_mj, edge_mj, shared_mj, held_us, known_us, quality, devices, tokens,
       CASE WHEN token_reason IS NULL THEN part_of(energy_mj, 0, 1000, tokens) END AS uj_per_token,
       token_reason
FROM explained
