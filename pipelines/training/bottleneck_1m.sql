--! name    = "bottleneck_1m"
--! doc     = "Bottleneck of a job per UTC minute, with the evidence: counters of the devices that it held (job_counters_1m) and its step reports (step_waits_1m). Each bottleneck has a share and a threshold; score = share / threshold. The label is the bottleneck with the highest score, if it is at least 1; of equal scores the one listed first here. host: steps waited for input for 20 % of their time (TensorFlow Profiler calls a program highly input bound from there on) while SM activity is under 50 % (DCGM user guide: probably ineffective use); else its score is 0. imbalance: ranks waited in collectives for the slowest rank of the step for 20 %, which is the cost of a rank that takes 1.25 x as long. communication: the remaining time in collectives that computing did not hide, also 20 %. nvlink, pcie: bytes of the busier direction, 60 % of the link's capacity (link_peaks). memory_bandwidth: DRAM active 60 % (about 80 % is the practical maximum, DCGM user guide). compute: the busiest of the tensor, FP64, FP32 and FP16 pipes, 60 %. The 60 % are those of Nsight Compute: below them on both sides of the roofline a program is latency bound; for links they are our choice. Without DRAM, tensor or SM activity the label is unknown, unless the known values exclude what the missing ones could show; it is never a guess. An unknown link or wait is ignored if another bottleneck is met, but without it the label is never none. Values are means over a minute and all devices of the job, so shorter phases and a single unusual device do not show. Only devices that the job held alone for the whole minute count."
--! question = "What limits a job: computing, memory, input, links, the network, or its slowest rank?"
--! example  = "SELECT job_id, label, reason, count(*) AS minutes FROM bottleneck_1m WHERE window_start >= now() - INTERVAL '1 day' GROUP BY job_id, label, reason ORDER BY job_id, minutes DESC LIMIT 100"
--! sources = ["job_counters_1m", "step_waits_1m"]
--! [columns]
--! window_start              = "Start of the UTC minute."
--! cluster                   = "Cluster."
--! job_id                    = "Job."
--! label                     = "The bottleneck: compute, memory_bandwidth, host, pcie, nvlink, communication or imbalance. starved: SM activity is under 50 % and the links are not full, but reports do not say what the devices waited for (reason says what is missing). none: no bottleneck (reason says more). unknown: see reason."
--! reason                    = "For unknown, the missing data: no_devices (steps, but no known device), no_samples, shared_device (other jobs used the devices too, or their owner is not known), part_of_minute (the devices were not held for the whole minute), few_samples (samples for less than half of the time held), no_dram_active, no_tensor_active, no_sm_active, no_steps, few_steps (reports cover less than half of the minute), no_data_wait, no_communication, no_pcie, no_nvlink (bytes or capacity of the link not known). For starved: what the steps did not report. For none: idle (SM activity under 1 % and no steps), low_activity (under 50 %, and steps report no wait: small kernels, launch gaps), below_thresholds (devices are busy and nothing is near its limit: latency). For communication: imbalance_unknown (not all ranks reported their computing time, so waiting for slow ranks is included)."
--! strongest                 = "Known bottleneck with the highest score; the label, if its score is at least 1."
--! strongest_score_ppm       = "Its share / threshold, millionths; from 1,000,000 it is met."
--! second                    = "Bottleneck with the second-highest score; NULL if no other score is above 0."
--! second_score_ppm          = "Its share / threshold, millionths. The margin is the difference."
--! devices                   = "Devices held in the minute, of any share; each MIG slice counts as one."
--! nodes                     = "Nodes of the sampled devices. On one node, communication is among its own devices."
--! held_us                   = "Time of devices held, µs."
--! alone_us                  = "Part of held_us on devices that the job held alone for the whole minute. The following columns cover these devices only."
--! sampled_us                = "Time that their samples cover, µs; may exceed alone_us by one sampling interval."
--! sm_active_ppm             = "Share of time in which multiprocessors held a warp: sm_active_us / sm_active_known_us. NULL, as all shares here, if known for less than half of held_us."
--! sm_active_us              = "Numerator, µs."
--! sm_active_known_us        = "Denominator, µs."
--! engine_active_ppm         = "Share of time in which any kernel ran (graphics_active, else gpu_util). It is never below SM activity, and replaces it where it is under 50 %."
--! engine_active_us          = "Numerator, µs."
--! engine_active_known_us    = "Denominator, µs."
--! tensor_active_ppm         = "Share of time in which tensor cores were active."
--! tensor_active_us          = "Numerator, µs."
--! tensor_active_known_us    = "Denominator, µs."
--! fp_active_ppm             = "Share of the busiest of the FP64, FP32 and FP16 pipes that are known."
--! fp64_active_us            = "Time in which the FP64 pipe was active, µs."
--! fp64_active_known_us      = "Time for which that is known, µs."
--! fp32_active_us            = "Time in which the FP32 pipe was active, µs."
--! fp32_active_known_us      = "Time for which that is known, µs."
--! fp16_active_us            = "Time in which the FP16 pipe was active, without tensor cores, µs."
--! fp16_active_known_us      = "Time for which that is known, µs."
--! dram_active_ppm           = "Share of time in which device memory transferred data."
--! dram_active_us            = "Numerator, µs."
--! dram_active_known_us      = "Denominator, µs."
--! pcie_ppm                  = "Share of the busier direction of PCIe; NULL if bytes or capacity of a device are not known. A MIG slice has no link of its own, so it has no share."
--! pcie_tx_bytes             = "Bytes from device to host."
--! pcie_tx_capacity_bytes    = "Bytes that the links could have carried in the time for which the count is known."
--! pcie_rx_bytes             = "Bytes from host to device."
--! pcie_rx_capacity_bytes    = "Bytes that the links could have carried in the time for which the count is known."
--! nvlink_ppm                = "Share of the busier direction of NVLink; 0 for models without it, else NULL if bytes or capacity of a device are not known."
--! nvlink_tx_bytes           = "Bytes sent."
--! nvlink_tx_capacity_bytes  = "Bytes that the links could have carried in the time for which the count is known."
--! nvlink_rx_bytes           = "Bytes received."
--! nvlink_rx_capacity_bytes  = "Bytes that the links could have carried in the time for which the count is known."
--! ranks                     = "Ranks that reported a step in the minute; NULL if none did, as the following columns."
--! step_us                   = "Time of their steps in the minute, µs. A step is spread over the minutes that it lasted."
--! data_wait_ppm             = "Share of step time waiting for input: data_wait_us / data_wait_known_us. NULL, as the following shares, if reported for less than half of step_us, or if steps cover less than half of ranks x minute."
--! data_wait_us              = "Numerator, µs."
--! data_wait_known_us        = "Denominator, µs."
--! communication_ppm         = "Share of step time in collectives that computing does not hide, without imbalance_us."
--! communication_us          = "Numerator, µs: communication_us of the reports, at most what computing, input and checkpoints leave of the step, less imbalance_us."
--! communication_known_us    = "Denominator, µs: steps that report computing and communication."
--! imbalance_ppm             = "Share of step time in collectives waiting for the slowest rank of the step."
--! imbalance_us              = "Numerator, µs: for each step and rank, how much longer the slowest rank took before its collectives (computing, input, checkpoint), at most the rank's own time in collectives."
--! imbalance_known_us        = "Denominator, µs: steps of which every rank of the job reported computing and communication."
WITH sides AS (
    -- Two rows per minute and job at most: counters of its devices, and waits of its steps. Not a
    -- full join: through one, a time range in a query would not reach the tables.
    SELECT window_start, cluster, job_id,
           devices, nodes, held_us, devices_sampled, shared_us, alone_us, sampled_us, sm_active_us, sm_active_known_us,
           engine_active_us, engine_active_known_us, tensor_active_us, tensor_active_known_us, fp64_active_us, fp64_active_known_us,
           fp32_active_us, fp32_active_known_us, fp16_active_us, fp16_active_known_us, dram_active_us, dram_active_known_us,
           pcie_tx_bytes, pcie_tx_capacity_bytes, pcie_rx_bytes, pcie_rx_capacity_bytes, pcie_known_us, pcie_lacks, nvlink_tx_bytes,
           nvlink_tx_capacity_bytes, nvlink_rx_bytes, nvlink_rx_capacity_bytes, nvlink_known_us, nvlink_lacks, nvlink_most,
           CAST(NULL AS BIGINT) AS ranks, CAST(NULL AS BIGINT) AS step_us, CAST(NULL AS BIGINT) AS data_wait_us,
           CAST(NULL AS BIGINT) AS data_wait_known_us, CAST(NULL AS BIGINT) AS communication_us,
           CAST(NULL AS BIGINT) AS communication_known_us, CAST(NULL AS BIGINT) AS imbalance_us,
           CAST(NULL AS BIGINT) AS imbalance_known_us
    FROM job_counters_1m
    UNION ALL
    SELECT window_start, cluster, job_id,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           ranks, step_us, data_wait_us, data_wait_known_us, communication_us, communication_known_us, imbalance_us,
           imbalance_known_us
    FROM step_waits_1m
), activity AS (
    -- One row per minute and job that held devices or reported steps.
    SELECT window_start, cluster, job_id,
           max(devices) AS devices, max(nodes) AS nodes, max(held_us) AS held_us, max(devices_sampled) AS devices_sampled,
           max(shared_us) AS shared_us, max(alone_us) AS alone_us, max(sampled_us) AS sampled_us, max(sm_active_us) AS sm_active_us,
           max(sm_active_known_us) AS sm_active_known_us, max(engine_active_us) AS engine_active_us,
           max(engine_active_known_us) AS engine_active_known_us, max(tensor_active_us) AS tensor_active_us,
           max(tensor_active_known_us) AS tensor_active_known_us, max(fp64_active_us) AS fp64_active_us,
           max(fp64_active_known_us) AS fp64_active_known_us, max(fp32_active_us) AS fp32_active_us,
           max(fp32_active_known_us) AS fp32_active_known_us, max(fp16_active_us) AS fp16_active_us,
           max(fp16_active_known_us) AS fp16_active_known_us, max(dram_active_us) AS dram_active_us,
           max(dram_active_known_us) AS dram_active_known_us, max(pcie_tx_bytes) AS pcie_tx_bytes,
           max(pcie_tx_capacity_bytes) AS pcie_tx_capacity_bytes, max(pcie_rx_bytes) AS pcie_rx_bytes,
           max(pcie_rx_capacity_bytes) AS pcie_rx_capacity_bytes, max(pcie_known_us) AS pcie_known_us, max(pcie_lacks) AS pcie_lacks,
           max(nvlink_tx_bytes) AS nvlink_tx_bytes, max(nvlink_tx_capacity_bytes) AS nvlink_tx_capacity_bytes,
           max(nvlink_rx_bytes) AS nvlink_rx_bytes, max(nvlink_rx_capacity_bytes) AS nvlink_rx_capacity_bytes,
           max(nvlink_known_us) AS nvlink_known_us, max(nvlink_lacks) AS nvlink_lacks, max(nvlink_most) AS nvlink_most,
           max(ranks) AS ranks, max(step_us) AS step_us, max(data_wait_us) AS data_wait_us,
           max(data_wait_known_us) AS data_wait_known_us, max(communication_us) AS communication_us,
           max(communication_known_us) AS communication_known_us, max(imbalance_us) AS imbalance_us,
           max(imbalance_known_us) AS imbalance_known_us,
           coalesce(max(step_us) * 2 >= max(ranks) * 60000000, false) AS has_enough_steps
    FROM sides
    GROUP BY window_start, cluster, job_id
), shares AS (
    -- The same rows, with the share of time or capacity for each resource, millionths.
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
           CASE WHEN has_enough_steps AND data_wait_known_us * 2 >= step_us
                THEN part_of(1000000, 0, data_wait_us, data_wait_known_us) END                                       AS data_wait_ppm,
           CASE WHEN has_enough_steps AND communication_known_us * 2 >= step_us
                THEN part_of(1000000, 0, communication_us, communication_known_us) END                               AS communication_ppm,
           CASE WHEN has_enough_steps AND imbalance_known_us * 2 >= step_us
                THEN part_of(1000000, 0, imbalance_us, imbalance_known_us) END                                       AS imbalance_ppm
    FROM activity
), missing AS (
    -- The same rows, with what is missing to judge counters, steps and links.
    -- Without a running kernel, tensor cores are idle and memory almost is. Tensor cores work only
    -- where a warp is resident.
    SELECT *, greatest(tensor_active_ppm, fp_active_ppm) AS compute_ppm,
           CASE WHEN held_us IS NULL THEN 'no_devices'
                WHEN devices_sampled = 0 THEN 'no_samples'
                WHEN alone_us * 2 < held_us THEN CASE WHEN shared_us > 0 THEN 'shared_device' ELSE 'part_of_minute' END
                WHEN sampled_us * 2 < held_us THEN 'few_samples'
                WHEN dram_active_ppm IS NULL AND NOT coalesce(engine_active_ppm < 500000, false) THEN 'no_dram_active'
                WHEN tensor_active_ppm IS NULL AND NOT coalesce(coalesce(sm_active_ppm, engine_active_ppm) < 500000, false)
                THEN 'no_tensor_active' END AS counters_lack,
           CASE WHEN step_us IS NULL THEN 'no_steps'
                WHEN NOT has_enough_steps THEN 'few_steps'
                WHEN data_wait_ppm IS NULL THEN 'no_data_wait'
                WHEN communication_ppm IS NULL AND (devices > 1 OR ranks > 1) THEN 'no_communication' END AS steps_lack,
           CASE WHEN pcie_ppm IS NULL THEN 'no_pcie'
                WHEN nvlink_ppm IS NULL AND devices > 1 THEN 'no_nvlink' END AS links_lack
    FROM shares
), activity_levels AS (
    -- The same rows; is_low = 1 if SM activity is under 50 %, 0 if it is not, NULL if unknown.
    SELECT *, CASE WHEN coalesce(sm_active_ppm, engine_active_ppm) < 500000 THEN 1
                   WHEN sm_active_ppm >= 500000 OR compute_ppm >= 500000 THEN 0 END AS is_low
    FROM missing
), scored AS (
    -- The same rows, with the scores of all bottlenecks in descending order.
    -- Score and bottleneck share one number, so the array sorts by score, then in the order of the
    -- documentation.
    SELECT *, array_sort(make_array(
                  CASE WHEN is_low = 0 THEN 0 WHEN is_low = 1 OR data_wait_ppm < 200000 THEN data_wait_ppm * 5 END * 10 + 7,
                  imbalance_ppm * 5 * 10 + 6,
                  communication_ppm * 5 * 10 + 5,
                  nvlink_ppm * 1000000 / 600000 * 10 + 4,
                  pcie_ppm * 1000000 / 600000 * 10 + 3,
                  dram_active_ppm * 1000000 / 600000 * 10 + 2,
                  compute_ppm * 1000000 / 600000 * 10 + 1), 'DESC', 'NULLS LAST') AS scores
    FROM activity_levels
), ranked AS (
    -- The same rows, with the two highest scores.
    SELECT *, CASE WHEN scores[1] >= 10 THEN scores[1] END AS top, CASE WHEN scores[2] >= 10 THEN scores[2] END AS next,
           make_array('compute', 'memory_bandwidth', 'pcie', 'nvlink', 'communication', 'imbalance', 'host') AS bottlenecks
    FROM scored
), named AS (
    -- The same rows, with the names of these two.
    SELECT *, bottlenecks[top % 10] AS strongest, top / 10 AS strongest_score_ppm, bottlenecks[next % 10] AS second, next / 10 AS second_score_ppm
    FROM ranked
), explained AS (
    -- The same rows, with the reason for the label.
    SELECT *, counters_lack IS NULL AND coalesce(strongest_score_ppm >= 1000000, false) AS is_met,
           CASE WHEN counters_lack IS NOT NULL THEN counters_lack
                WHEN strongest_score_ppm >= 1000000
                THEN CASE WHEN strongest = 'communication' AND imbalance_ppm IS NULL THEN 'imbalance_unknown' END
                WHEN is_low IS NULL THEN 'no_sm_active'
                WHEN coalesce(sm_active_ppm, engine_active_ppm) < 10000 AND NOT has_enough_steps THEN 'idle'
                WHEN steps_lack IS NOT NULL THEN steps_lack
                WHEN links_lack IS NOT NULL THEN links_lack
                WHEN is_low = 1 THEN 'low_activity'
                ELSE 'below_thresholds' END AS reason
    FROM named
)
SELECT window_start, cluster, job_id,
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
FROM explained
