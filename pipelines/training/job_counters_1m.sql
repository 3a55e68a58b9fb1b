--! name    = "job_counters_1m"
--! doc     = "Counters of the devices that a job held, per UTC minute: sums of gpu_1m over the devices that it held alone for the whole minute (held_devices_1m), with the capacity of their links (link_peaks). The first step of bottleneck_1m."
--! question = "What did the devices of a job do in a given minute, all of them added up?"
--! example  = "SELECT window_start, devices, 100 * sm_active_us / nullif(sm_active_known_us, 0) AS sm_percent, 100 * pcie_tx_bytes / nullif(pcie_tx_capacity_bytes, 0) AS pcie_percent FROM job_counters_1m WHERE job_id = '4711' ORDER BY window_start DESC LIMIT 20"
--! sources = ["held_devices_1m", "gpu_1m", "gpu_1h", "link_peaks"]
--! [columns]
--! window_start             = "Start of the UTC minute."
--! cluster                  = "Cluster."
--! job_id                   = "Job."
--! devices                  = "Devices held in the minute, of any share; each MIG slice counts as one."
--! nodes                    = "Nodes of the devices that were sampled."
--! held_us                  = "Time of devices held, µs."
--! devices_sampled          = "Devices held that were sampled in the minute."
--! shared_us                = "Part of held_us on devices that another job held too, or that the job held in part, µs."
--! alone_us                 = "Part of held_us on devices that the job held alone for the whole minute, µs. All following columns cover these devices only."
--! sampled_us               = "Time that their samples cover, µs; may exceed alone_us by one sampling interval."
--! sm_active_us             = "Time in which multiprocessors held a warp, µs."
--! sm_active_known_us       = "Time for which sm_active_us is known, µs."
--! engine_active_us         = "Time in which any kernel ran, µs: graphics_active, else gpu_util."
--! engine_active_known_us   = "Time for which engine_active_us is known, µs."
--! tensor_active_us         = "Time in which tensor cores were active, µs."
--! tensor_active_known_us   = "Time for which tensor_active_us is known, µs."
--! fp64_active_us           = "Time in which the FP64 pipe was active, µs."
--! fp64_active_known_us     = "Time for which fp64_active_us is known, µs."
--! fp32_active_us           = "Time in which the FP32 pipe was active, µs."
--! fp32_active_known_us     = "Time for which fp32_active_us is known, µs."
--! fp16_active_us           = "Time in which the FP16 pipe was active, without tensor cores, µs."
--! fp16_active_known_us     = "Time for which fp16_active_us is known, µs."
--! dram_active_us           = "Time in which device memory transferred data, µs."
--! dram_active_known_us     = "Time for which dram_active_us is known, µs."
--! pcie_tx_bytes            = "Bytes from device to host over PCIe."
--! pcie_tx_capacity_bytes   = "Bytes that the links could have carried in the time for which pcie_tx_bytes is known."
--! pcie_rx_bytes            = "Bytes from host to device over PCIe."
--! pcie_rx_capacity_bytes   = "Bytes that the links could have carried in the time for which pcie_rx_bytes is known."
--! pcie_known_us            = "Time for which bytes of both directions and the capacity of PCIe are known, µs."
--! pcie_lacks               = "1 if the PCIe capacity of a sampled device is not known, else 0."
--! nvlink_tx_bytes          = "Bytes sent over NVLink."
--! nvlink_tx_capacity_bytes = "Bytes that the links could have carried in the time for which nvlink_tx_bytes is known."
--! nvlink_rx_bytes          = "Bytes received over NVLink."
--! nvlink_rx_capacity_bytes = "Bytes that the links could have carried in the time for which nvlink_rx_bytes is known."
--! nvlink_known_us          = "The same of NVLink, µs."
--! nvlink_lacks             = "1 if the NVLink capacity of a sampled device is not known, else 0."
--! nvlink_most              = "Highest NVLink capacity of a device, bytes per second; 0 if all devices are models without NVLink."
WITH links AS (
    -- One row per sampled GPU model and row of link_peaks that fits it; place 1 is the best fit.
    SELECT m.gpu_model, l.pcie_bytes_per_second, l.nvlink_bytes_per_second,
           row_number() OVER (PARTITION BY m.gpu_model ORDER BY character_length(l.model) DESC, l.model) AS place
    FROM (SELECT DISTINCT gpu_model FROM gpu_1h) m
    JOIN link_peaks l ON m.gpu_model LIKE l.model
), samples AS (
    -- Two rows per minute and device, under the two names by which a hold may know it: its UUID,
    -- and node/index.
    SELECT g.*, CASE WHEN g.mig_uuid IS NULL THEN l.pcie_bytes_per_second END AS pcie_per_second,
           CASE WHEN g.mig_uuid IS NULL THEN l.nvlink_bytes_per_second END AS nvlink_per_second,
           unnest(make_array(coalesce(g.mig_uuid, g.gpu_uuid),
                             CASE WHEN g.mig_uuid IS NULL THEN g.node || '/' || CAST(g.gpu_index AS TEXT) END)) AS device
    FROM gpu_1m g
    LEFT JOIN links l ON l.gpu_model = g.gpu_model AND l.place = 1
), sampled_holds AS (
    -- One row per minute, job and device held, with its counters; NULL where it was not sampled.
    SELECT h.window_start, h.cluster, h.job_id, h.is_whole, h.held_us, s.node, coalesce(s.mig_uuid, s.gpu_uuid, h.device) AS device,
           s.us_sampled, s.sm_active_us, s.sm_active_known_us,
           CASE WHEN s.graphics_active_known_us > 0 THEN s.graphics_active_us ELSE s.gpu_util_us END             AS engine_active_us,
           CASE WHEN s.graphics_active_known_us > 0 THEN s.graphics_active_known_us ELSE s.gpu_util_known_us END AS engine_active_known_us,
           s.tensor_active_us, s.tensor_active_known_us, s.fp64_active_us, s.fp64_active_known_us, s.fp32_active_us,
           s.fp32_active_known_us, s.fp16_active_us, s.fp16_active_known_us, s.dram_active_us, s.dram_active_known_us,
           s.pcie_tx_bytes, s.pcie_tx_known_us, s.pcie_rx_bytes, s.pcie_rx_known_us, s.pcie_per_second,
           s.nvlink_tx_bytes, s.nvlink_tx_known_us, s.nvlink_rx_bytes, s.nvlink_rx_known_us, s.nvlink_per_second
    FROM held_devices_1m h
    LEFT JOIN samples s ON s.window_start = h.window_start AND s.cluster = h.cluster AND s.device = h.device
), shared AS (
    -- The same rows, marked if another job held the device in the minute or the hold is only of a part.
    SELECT *, min(job_id) OVER of_device <> max(job_id) OVER of_device OR is_whole = 0 AS is_shared
    FROM sampled_holds
    WINDOW of_device AS (PARTITION BY window_start, cluster, device)
), counted AS (
    -- The same rows; is_counted = 1 for devices that the job held alone for the whole minute.
    SELECT *, CASE WHEN held_us = 60000000 AND NOT is_shared THEN 1 ELSE 0 END AS is_counted FROM shared
)
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
