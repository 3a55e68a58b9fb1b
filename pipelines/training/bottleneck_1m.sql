--! name    = "bottleneck_1m"
--! doc     = "Which wall a job hit in a UTC minute, with the evidence: the counters of the devices it held (gpu_holds x gpu_1m) and its step reports. Each wall has a share and a threshold; score = share / threshold. The wall with the highest score is the label, if its score is at least 1; of equal scores the one named first here. host: steps waited for input for 20 % of their time (TensorFlow Profiler calls a program highly input bound from there on) while SM activity is under 50 % (DCGM user guide: probably ineffective use), else its score is 0. imbalance: ranks waited in collectives for the slowest rank of the step for 20 %, which is what a rank that takes 1.25 x as long costs the others. communication: the rest of the time in collectives that computing did not hide, 20 % as well. nvlink, pcie: bytes of the busier direction, 60 % of what the link can carry (link_peaks). memory_bandwidth: DRAM active 60 % (about 80 % is the practical maximum, DCGM user guide). compute: the busiest of the tensor, FP64, FP32 and FP16 pipes, 60 %. The 60 % are those of Nsight Compute: below it on both sides of the roofline a program is latency bound; for links it is our choice. Without DRAM, tensor or SM activity the label is unknown, never a guess, unless what is known excludes what they could say; a link or a wait that is not known is not weighed against a wall that is met, but without it nothing is called none. Averages of a minute and of all devices of the job: a phase shorter than a minute and a device unlike the others do not show. Only devices that the job held alone for the whole minute count."
--! question = "Which wall does a job hit: computing, memory, input, links, the network, or its slowest rank?"
--! example  = "SELECT job_id, label, reason, count(*) AS minutes FROM bottleneck_1m WHERE window_start >= now() - INTERVAL '1 day' GROUP BY job_id, label, reason ORDER BY job_id, minutes DESC LIMIT 100"
--! sources = ["gpu_holds", "gpu_1m", "attempts", "steps", "gpu_1h", "link_peaks"]
--! [columns]
--! window_start              = "Start of the UTC minute."
--! cluster                   = "Cluster."
--! job_id                    = "Job."
--! label                     = "compute, memory_bandwidth, host, pcie, nvlink, communication or imbalance: the wall. starved: SM activity is under 50 %, the links are not full, and nobody told for what the devices waited (reason says what lacks). none: no wall (reason says what is known instead). unknown: reason says why."
--! reason                    = "Of unknown: no_devices (steps, but no device is known), no_samples, shared_device (others used the devices too, or it is not known whose they were), part_of_minute (the devices were not held for the whole minute), few_samples (samples for less than half of the time held), no_dram_active, no_tensor_active, no_sm_active, no_steps, few_steps (reports fill less than half of the minute), no_data_wait, no_communication, no_pcie, no_nvlink (bytes or capacity of the link not known): what would have to be known to say more. Of starved: what the steps did not tell. Of none: idle (SM activity under 1 % and no steps), low_activity (under 50 %, and steps name no wait: small kernels, launch gaps), below_thresholds (devices are busy and nothing is near its limit: latency). Of communication: imbalance_unknown (not all ranks told their computing time, so waiting for slow ranks is in it)."
--! strongest                 = "Wall with the highest score of those that are known; the label, where one is met."
--! strongest_score_ppm       = "Its share / threshold, millionths: from 1,000,000 on it is met."
--! second                    = "Wall with the second-highest score; NULL if there is none with a score over 0."
--! second_score_ppm          = "Its share / threshold, millionths; the margin is the difference."
--! devices                   = "Devices held in the minute, of whatever part; MIG slices count as one each."
--! nodes                     = "Nodes of those that were sampled. On one node communication is among its own devices."
--! held_us                   = "Time of devices held, µs."
--! alone_us                  = "Of it on devices that the job held alone for the whole minute: what follows is of these."
--! sampled_us                = "Time the samples of these speak of, µs; may be an interval more or less than alone_us."
--! sm_active_ppm             = "Share of time in which multiprocessors held a warp: sm_active_us / sm_active_known_us. As all shares here NULL if it is known for less than half of held_us."
--! sm_active_us              = "Numerator, µs."
--! sm_active_known_us        = "Denominator, µs."
--! engine_active_ppm         = "Share of time in which any kernel ran (graphics_active, else gpu_util): no less than SM activity, which it stands in for where it is under 50 %."
--! engine_active_us          = "Numerator, µs."
--! engine_active_known_us    = "Denominator, µs."
--! tensor_active_ppm         = "Share of time in which tensor cores were active."
--! tensor_active_us          = "Numerator, µs."
--! tensor_active_known_us    = "Denominator, µs."
--! fp_active_ppm             = "Share of the busiest of the FP64, FP32 and FP16 pipes, of those that are known."
--! fp64_active_us            = "Time in which the FP64 pipe was active, µs."
--! fp64_active_known_us      = "Time for which that is known, µs."
--! fp32_active_us            = "Time in which the FP32 pipe was active, µs."
--! fp32_active_known_us      = "Time for which that is known, µs."
--! fp16_active_us            = "Time in which the FP16 pipe was active, without tensor cores, µs."
--! fp16_active_known_us      = "Time for which that is known, µs."
--! dram_active_ppm           = "Share of time in which device memory moved data."
--! dram_active_us            = "Numerator, µs."
--! dram_active_known_us      = "Denominator, µs."
--! pcie_ppm                  = "Share of the busier direction of PCIe; NULL if bytes or capacity of a device are not known. Of a MIG slice the link is not its own, so it has no share."
--! pcie_tx_bytes             = "Bytes from device to host."
--! pcie_tx_capacity_bytes    = "What the links could have carried in the time for which that is known."
--! pcie_rx_bytes             = "Bytes from host to device."
--! pcie_rx_capacity_bytes    = "What the links could have carried in the time for which that is known."
--! nvlink_ppm                = "Share of the busier direction of NVLink; 0 for models without, else NULL if bytes or capacity of a device are not known."
--! nvlink_tx_bytes           = "Bytes sent."
--! nvlink_tx_capacity_bytes  = "What the links could have carried in the time for which that is known."
--! nvlink_rx_bytes           = "Bytes received."
--! nvlink_rx_capacity_bytes  = "What the links could have carried in the time for which that is known."
--! ranks                     = "Ranks that reported a step in the minute; NULL if none did, as what follows."
--! step_us                   = "Time of their steps in the minute, µs; a step is spread over the minutes it lasted."
--! data_wait_ppm             = "Share of step time waiting for input: data_wait_us / data_wait_known_us. As the following ones NULL if it was told for less than half of step_us, or if steps fill less than half of ranks x minute."
--! data_wait_us              = "Numerator, µs."
--! data_wait_known_us        = "Denominator, µs."
--! communication_ppm         = "Share of step time in collectives and not computing meanwhile, without imbalance_us."
--! communication_us          = "Numerator, µs: communication_us of the reports, at most what computing, waiting for input and checkpoints leave of the step, less imbalance_us."
--! communication_known_us    = "Denominator, µs: of steps that tell computing and communication."
--! imbalance_ppm             = "Share of step time in collectives waiting for the slowest rank of the step."
--! imbalance_us              = "Numerator, µs: of each step and rank what the slowest rank did longer than this one before its collectives (computing, input, checkpoint), at most its own time in collectives."
--! imbalance_known_us        = "Denominator, µs: of steps of which every rank of the job told computing and communication."
WITH holds AS (
    SELECT *,
           count(*) FILTER (WHERE step_id IS NULL) OVER (PARTITION BY cluster, job_id, node, gpu_uuid, mig_uuid, gpu_index) AS of_job
    FROM gpu_holds
    WHERE is_repeated = 0 AND from_time IS NOT NULL
), ends AS (
    SELECT cluster, job_id, CASE WHEN count(*) = count(to_time) THEN max(to_time) END AS end_time, max(as_of) AS as_of
    FROM attempts
    WHERE from_time IS NOT NULL
    GROUP BY cluster, job_id
), seen AS (
    SELECT cluster, plus_ms(max(window_start), 60000) AS seen_time FROM gpu_1m GROUP BY cluster
), spans AS (
    -- A step of a job shares its devices. A hold whose end nobody told ends with the job, or with
    -- what was sampled.
    SELECT h.cluster, h.job_id, coalesce(h.mig_uuid, h.gpu_uuid, h.node || '/' || CAST(h.gpu_index AS TEXT)) AS device,
           CASE WHEN h.quality = 'EXACT' AND (h.mig_uuid IS NOT NULL OR coalesce(h.share_milli, 1000) >= 1000)
                THEN 1 ELSE 0 END AS is_whole,
           h.from_time, coalesce(h.to_time, e.end_time, greatest(s.seen_time, e.as_of)) AS to_time
    FROM holds h
    LEFT JOIN ends e ON e.cluster = h.cluster AND e.job_id = h.job_id
    LEFT JOIN seen s ON s.cluster = h.cluster
    WHERE h.step_id IS NULL OR h.of_job = 0
), held_minutes AS (
    SELECT *, unnest(window_starts(from_time, to_time, 60000, from_time, to_time)) AS window_start FROM spans
), held AS (
    SELECT window_start, cluster, job_id, device, min(is_whole) AS is_whole,
           least(sum(ms_between(greatest(from_time, window_start), least(to_time, plus_ms(window_start, 60000)))) * 1000, 60000000)
               AS held_us
    FROM held_minutes
    GROUP BY window_start, cluster, job_id, device
), models AS (
    SELECT m.gpu_model, l.pcie_bytes_per_second, l.nvlink_bytes_per_second,
           row_number() OVER (PARTITION BY m.gpu_model ORDER BY character_length(l.model) DESC, l.model) AS place
    FROM (SELECT DISTINCT gpu_model FROM gpu_1h) m
    JOIN link_peaks l ON m.gpu_model LIKE l.model
), samples AS (
    -- Under both names that a hold may know the device by: its UUID, or node and number.
    SELECT g.*, CASE WHEN g.mig_uuid IS NULL THEN l.pcie_bytes_per_second END AS pcie_per_second,
           CASE WHEN g.mig_uuid IS NULL THEN l.nvlink_bytes_per_second END AS nvlink_per_second,
           unnest(make_array(coalesce(g.mig_uuid, g.gpu_uuid),
                             CASE WHEN g.mig_uuid IS NULL THEN g.node || '/' || CAST(g.gpu_index AS TEXT) END)) AS device
    FROM gpu_1m g
    LEFT JOIN models l ON l.gpu_model = g.gpu_model AND l.place = 1
), met AS (
    SELECT h.window_start, h.cluster, h.job_id, h.is_whole, h.held_us, s.node, coalesce(s.mig_uuid, s.gpu_uuid, h.device) AS device,
           s.us_sampled, s.sm_active_us, s.sm_active_known_us,
           CASE WHEN s.graphics_active_known_us > 0 THEN s.graphics_active_us ELSE s.gpu_util_us END             AS engine_active_us,
           CASE WHEN s.graphics_active_known_us > 0 THEN s.graphics_active_known_us ELSE s.gpu_util_known_us END AS engine_active_known_us,
           s.tensor_active_us, s.tensor_active_known_us, s.fp64_active_us, s.fp64_active_known_us, s.fp32_active_us,
           s.fp32_active_known_us, s.fp16_active_us, s.fp16_active_known_us, s.dram_active_us, s.dram_active_known_us,
           s.pcie_tx_bytes, s.pcie_tx_known_us, s.pcie_rx_bytes, s.pcie_rx_known_us, s.pcie_per_second,
           s.nvlink_tx_bytes, s.nvlink_tx_known_us, s.nvlink_rx_bytes, s.nvlink_rx_known_us, s.nvlink_per_second
    FROM held h
    LEFT JOIN samples s ON s.window_start = h.window_start AND s.cluster = h.cluster AND s.device = h.device
), shared AS (
    SELECT *, min(job_id) OVER of_device <> max(job_id) OVER of_device OR is_whole = 0 AS is_shared
    FROM met
    WINDOW of_device AS (PARTITION BY window_start, cluster, device)
), counted AS (
    SELECT *, CASE WHEN held_us = 60000000 AND NOT is_shared THEN 1 ELSE 0 END AS is_counted FROM shared
), by_job AS (
    SELECT window_start, cluster, job_id, count(DISTINCT device) AS devices, count(DISTINCT node) AS nodes, sum(held_us) AS held_us,
           count(us_sampled) AS devices_sampled,
           coalesce(sum(held_us) FILTER (WHERE is_shared), 0)              AS shared_us,
           coalesce(sum(held_us * is_counted), 0)                          AS alone_us,
           coalesce(sum(us_sampled * is_counted), 0)                       AS sampled_us,
           sum(sm_active_us) FILTER (WHERE is_counted = 1)                 AS sm_active_us,
           coalesce(sum(sm_active_known_us * is_counted), 0)               AS sm_active_known_us,
           sum(engine_active_us) FILTER (WHERE is_counted = 1)             AS engine_active_us,
           coalesce(sum(engine_active_known_us * is_counted), 0)           AS engine_active_known_us,
           sum(tensor_active_us) FILTER (WHERE is_counted = 1)             AS tensor_active_us,
           coalesce(sum(tensor_active_known_us * is_counted), 0)           AS tensor_active_known_us,
           sum(fp64_active_us) FILTER (WHERE is_counted = 1)               AS fp64_active_us,
           coalesce(sum(fp64_active_known_us * is_counted), 0)             AS fp64_active_known_us,
           sum(fp32_active_us) FILTER (WHERE is_counted = 1)               AS fp32_active_us,
           coalesce(sum(fp32_active_known_us * is_counted), 0)             AS fp32_active_known_us,
           sum(fp16_active_us) FILTER (WHERE is_counted = 1)               AS fp16_active_us,
           coalesce(sum(fp16_active_known_us * is_counted), 0)             AS fp16_active_known_us,
           sum(dram_active_us) FILTER (WHERE is_counted = 1)               AS dram_active_us,
           coalesce(sum(dram_active_known_us * is_counted), 0)             AS dram_active_known_us,
           sum(pcie_tx_bytes) FILTER (WHERE is_counted = 1)                AS pcie_tx_bytes,
           sum(part_of(pcie_per_second, 0, pcie_tx_known_us, 1000000)) FILTER (WHERE is_counted = 1)   AS pcie_tx_capacity_bytes,
           sum(pcie_rx_bytes) FILTER (WHERE is_counted = 1)                AS pcie_rx_bytes,
           sum(part_of(pcie_per_second, 0, pcie_rx_known_us, 1000000)) FILTER (WHERE is_counted = 1)   AS pcie_rx_capacity_bytes,
           coalesce(sum(least(pcie_tx_known_us, pcie_rx_known_us) * is_counted) FILTER (WHERE pcie_per_second IS NOT NULL), 0)
               AS pcie_known_us,
           max(CASE WHEN us_sampled IS NOT NULL AND pcie_per_second IS NULL THEN is_counted ELSE 0 END)   AS pcie_lacks,
           sum(nvlink_tx_bytes) FILTER (WHERE is_counted = 1)              AS nvlink_tx_bytes,
           sum(part_of(nvlink_per_second, 0, nvlink_tx_known_us, 1000000)) FILTER (WHERE is_counted = 1) AS nvlink_tx_capacity_bytes,
           sum(nvlink_rx_bytes) FILTER (WHERE is_counted = 1)              AS nvlink_rx_bytes,
           sum(part_of(nvlink_per_second, 0, nvlink_rx_known_us, 1000000)) FILTER (WHERE is_counted = 1) AS nvlink_rx_capacity_bytes,
           coalesce(sum(least(nvlink_tx_known_us, nvlink_rx_known_us) * is_counted) FILTER (WHERE nvlink_per_second > 0), 0)
               AS nvlink_known_us,
           max(CASE WHEN us_sampled IS NOT NULL AND nvlink_per_second IS NULL THEN is_counted ELSE 0 END) AS nvlink_lacks,
           max(CASE WHEN is_counted = 1 THEN nvlink_per_second END)  AS nvlink_most
    FROM counted
    GROUP BY window_start, cluster, job_id
), reports AS (
    -- A rank that went back does the same step again: its first turn is compared with the first
    -- ones of the others.
    SELECT cluster, job_id, attempt_id, rank, world_size, step, event_time, duration_us, communication_us, compute_us,
           CASE WHEN data_wait_us IS NOT NULL THEN least(data_wait_us, duration_us) END AS data_us,
           CASE WHEN compute_us IS NOT NULL
                THEN least(compute_us + coalesce(data_wait_us, 0) + coalesce(checkpoint_us, 0), duration_us) END AS own_us,
           row_number() OVER (PARTITION BY cluster, job_id, attempt_id, step, rank ORDER BY event_time, seq) AS turn
    FROM steps
    WHERE duration_us > 0
), stalls AS (
    SELECT *, CASE WHEN own_us IS NOT NULL AND communication_us IS NOT NULL
                   THEN least(communication_us, duration_us - own_us) END AS stall_us
    FROM reports
), compared AS (
    SELECT *, max(own_us) OVER of_step AS slowest_us, count(stall_us) OVER of_step AS ranks_told, max(world_size) OVER of_step AS ranks_all
    FROM stalls
    WINDOW of_step AS (PARTITION BY cluster, job_id, attempt_id, step, turn)
), waited AS (
    SELECT cluster, job_id, rank, event_time, duration_us, data_us, stall_us,
           CASE WHEN ranks_told >= ranks_all THEN least(stall_us, slowest_us - own_us) END AS behind_us
    FROM compared
), step_minutes AS (
    SELECT *, unnest(window_starts(event_time, end_time, 60000, event_time, end_time)) AS window_start
    FROM (SELECT *, CAST(event_time AS BIGINT) AS begin_us,
                 arrow_cast(CAST(event_time AS BIGINT) + duration_us, 'Timestamp(Microsecond, Some("UTC"))') AS end_time
          FROM waited)
), cut AS (
    SELECT *, greatest(CAST(window_start AS BIGINT) - begin_us, 0)                   AS cut_from_us,
           least(CAST(window_start AS BIGINT) + 60000000 - begin_us, duration_us) AS cut_to_us
    FROM step_minutes
), stepped AS (
    SELECT window_start AS minute, cluster AS in_cluster, job_id AS of_job, count(DISTINCT rank) AS ranks,
           sum(cut_to_us - cut_from_us)                                                             AS step_us,
           sum(part_of(data_us, cut_from_us, cut_to_us, duration_us))                               AS data_wait_us,
           sum(us_known(data_us, cut_to_us - cut_from_us))                                          AS data_wait_known_us,
           sum(part_of(stall_us - coalesce(behind_us, 0), cut_from_us, cut_to_us, duration_us))     AS communication_us,
           sum(us_known(stall_us, cut_to_us - cut_from_us))                                         AS communication_known_us,
           sum(part_of(behind_us, cut_from_us, cut_to_us, duration_us))                             AS imbalance_us,
           sum(us_known(behind_us, cut_to_us - cut_from_us))                                        AS imbalance_known_us
    FROM cut
    GROUP BY window_start, cluster, job_id
), joined AS (
    SELECT *, coalesce(step_us * 2 >= ranks * 60000000, false) AS are_steps_told
    FROM by_job
    FULL JOIN stepped ON minute = window_start AND in_cluster = cluster AND of_job = job_id
), shares AS (
    SELECT *,
           CASE WHEN sm_active_known_us * 2 >= held_us THEN part_of(1000000, 0, sm_active_us, sm_active_known_us) END AS sm_active_ppm,
           CASE WHEN engine_active_known_us * 2 >= held_us
                THEN part_of(1000000, 0, engine_active_us, engine_active_known_us) END                               AS engine_active_ppm,
           CASE WHEN tensor_active_known_us * 2 >= held_us
                THEN part_of(1000000, 0, tensor_active_us, tensor_active_known_us) END                               AS tensor_active_ppm,
           greatest(CASE WHEN fp64_active_known_us * 2 >= held_us THEN part_of(1000000, 0, fp64_active_us, fp64_active_known_us) END,
                    CASE WHEN fp32_active_known_us * 2 >= held_us THEN part_of(1000000, 0, fp32_active_us, fp32_active_known_us) END,
                    CASE WHEN fp16_active_known_us * 2 >= held_us THEN part_of(1000000, 0, fp16_active_us, fp16_active_known_us) END)
               AS fp_active_ppm,
           CASE WHEN dram_active_known_us * 2 >= held_us
                THEN part_of(1000000, 0, dram_active_us, dram_active_known_us) END                                   AS dram_active_ppm,
           CASE WHEN pcie_lacks = 0 AND pcie_known_us * 2 >= held_us
                THEN greatest(part_of(1000000, 0, pcie_tx_bytes, pcie_tx_capacity_bytes),
                              part_of(1000000, 0, pcie_rx_bytes, pcie_rx_capacity_bytes)) END                        AS pcie_ppm,
           CASE WHEN nvlink_lacks = 0 AND nvlink_most = 0 THEN 0
                WHEN nvlink_lacks = 0 AND nvlink_known_us * 2 >= held_us
                THEN greatest(part_of(1000000, 0, nvlink_tx_bytes, nvlink_tx_capacity_bytes),
                              part_of(1000000, 0, nvlink_rx_bytes, nvlink_rx_capacity_bytes)) END                    AS nvlink_ppm,
           CASE WHEN are_steps_told AND data_wait_known_us * 2 >= step_us
                THEN part_of(1000000, 0, data_wait_us, data_wait_known_us) END                                       AS data_wait_ppm,
           CASE WHEN are_steps_told AND communication_known_us * 2 >= step_us
                THEN part_of(1000000, 0, communication_us, communication_known_us) END                               AS communication_ppm,
           CASE WHEN are_steps_told AND imbalance_known_us * 2 >= step_us
                THEN part_of(1000000, 0, imbalance_us, imbalance_known_us) END                                       AS imbalance_ppm
    FROM joined
), lacking AS (
    -- A kernel that does not run uses no tensor core and hardly any memory, and a tensor core works
    -- only where a warp is.
    SELECT *, greatest(tensor_active_ppm, fp_active_ppm) AS compute_ppm,
           CASE WHEN held_us IS NULL THEN 'no_devices'
                WHEN devices_sampled = 0 THEN 'no_samples'
                WHEN alone_us * 2 < held_us THEN CASE WHEN shared_us > 0 THEN 'shared_device' ELSE 'part_of_minute' END
                WHEN sampled_us * 2 < held_us THEN 'few_samples'
                WHEN dram_active_ppm IS NULL AND NOT coalesce(engine_active_ppm < 500000, false) THEN 'no_dram_active'
                WHEN tensor_active_ppm IS NULL AND NOT coalesce(coalesce(sm_active_ppm, engine_active_ppm) < 500000, false)
                THEN 'no_tensor_active' END AS counters_lack,
           CASE WHEN step_us IS NULL THEN 'no_steps'
                WHEN NOT are_steps_told THEN 'few_steps'
                WHEN data_wait_ppm IS NULL THEN 'no_data_wait'
                WHEN communication_ppm IS NULL AND (devices > 1 OR ranks > 1) THEN 'no_communication' END AS steps_lack,
           CASE WHEN pcie_ppm IS NULL THEN 'no_pcie'
                WHEN nvlink_ppm IS NULL AND devices > 1 THEN 'no_nvlink' END AS links_lack
    FROM shares
), leveled AS (
    SELECT *, CASE WHEN coalesce(sm_active_ppm, engine_active_ppm) < 500000 THEN 1
                   WHEN sm_active_ppm >= 500000 OR compute_ppm >= 500000 THEN 0 END AS is_low
    FROM lacking
), scored AS (
    -- Score and wall in one number, so that the array sorts by score, then in the order of the doc.
    SELECT *, array_sort(make_array(
                  CASE WHEN is_low = 0 THEN 0 WHEN is_low = 1 OR data_wait_ppm < 200000 THEN data_wait_ppm * 5 END * 10 + 7,
                  imbalance_ppm * 5 * 10 + 6,
                  communication_ppm * 5 * 10 + 5,
                  nvlink_ppm * 1000000 / 600000 * 10 + 4,
                  pcie_ppm * 1000000 / 600000 * 10 + 3,
                  dram_active_ppm * 1000000 / 600000 * 10 + 2,
                  compute_ppm * 1000000 / 600000 * 10 + 1), 'DESC', 'NULLS LAST') AS scores
    FROM leveled
), ranked AS (
    SELECT *, CASE WHEN scores[1] >= 10 THEN scores[1] END AS top, CASE WHEN scores[2] >= 10 THEN scores[2] END AS next,
           make_array('compute', 'memory_bandwidth', 'pcie', 'nvlink', 'communication', 'imbalance', 'host') AS walls
    FROM scored
), named AS (
    SELECT *, walls[top % 10] AS strongest, top / 10 AS strongest_score_ppm, walls[next % 10] AS second, next / 10 AS second_score_ppm
    FROM ranked
), reasoned AS (
    SELECT *, counters_lack IS NULL AND coalesce(strongest_score_ppm >= 1000000, false) AS is_met,
           CASE WHEN counters_lack IS NOT NULL THEN counters_lack
                WHEN strongest_score_ppm >= 1000000
                THEN CASE WHEN strongest = 'communication' AND imbalance_ppm IS NULL THEN 'imbalance_unknown' END
                WHEN is_low IS NULL THEN 'no_sm_active'
                WHEN coalesce(sm_active_ppm, engine_active_ppm) < 10000 AND NOT are_steps_told THEN 'idle'
                WHEN steps_lack IS NOT NULL THEN steps_lack
                WHEN links_lack IS NOT NULL THEN links_lack
                WHEN is_low = 1 THEN 'low_activity'
                ELSE 'below_thresholds' END AS reason
    FROM named
)
SELECT coalesce(window_start, minute) AS window_start, coalesce(cluster, in_cluster) AS cluster, coalesce(job_id, of_job) AS job_id,
       CASE WHEN is_met THEN strongest
            WHEN reason IN ('idle', 'low_activity', 'below_thresholds') THEN 'none'
            WHEN counters_lack IS NULL AND is_low = 1 AND reason = steps_lack THEN 'starved'
            ELSE 'unknown' END AS label,
       reason, strongest, strongest_score_ppm, second, second_score_ppm, devices, nodes, held_us, alone_us, sampled_us,
       sm_active_ppm, sm_active_us, sm_active_known_us, engine_active_ppm, engine_active_us, engine_active_known_us,
       tensor_active_ppm, tensor_active_us, tensor_active_known_us,
       fp_active_ppm, fp64_active_us, fp64_active_known_us, fp32_active_us, fp32_active_known_us, fp16_active_us, fp16_active_known_us,
       dram_active_ppm, dram_active_us, dram_active_known_us,
       pcie_ppm, pcie_tx_bytes, pcie_tx_capacity_bytes, pcie_rx_bytes, pcie_rx_capacity_bytes,
       nvlink_ppm, nvlink_tx_bytes, nvlink_tx_capacity_bytes, nvlink_rx_bytes, nvlink_rx_capacity_bytes,
       ranks, step_us, data_wait_ppm, data_wait_us, data_wait_known_us, communication_ppm, communication_us, communication_known_us,
       imbalance_ppm, imbalance_us, imbalance_known_us
FROM reasoned
