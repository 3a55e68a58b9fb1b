--! name    = "gpu_1m"
--! version = 2
--! doc     = "What each GPU and MIG slice did, per UTC minute: sums and the time for which they are known, so that any grouping is exact. Growth of a counter counts for the sample that ends it."
--! question = "What has each GPU been doing for the last minutes: SMs, tensor cores, memory, power?"
--! example  = "SELECT node, max(gpu_index) AS gpu_index, 100 * sum(sm_active_us) / nullif(sum(sm_active_known_us), 0) AS sm_percent, 100 * sum(tensor_active_us) / nullif(sum(tensor_active_known_us), 0) AS tensor_percent, max(framebuffer_used_max_bytes) / 1048576 AS memory_mib, 1000 * sum(energy_mj) / nullif(sum(energy_known_us), 0) AS watts FROM gpu_1m WHERE mig_uuid IS NULL AND window_start >= now() - INTERVAL '10 minutes' GROUP BY cluster, node, gpu_uuid ORDER BY node, gpu_index LIMIT 100"
--! sources = ["gpu_samples"]
--! window  = "1m"
--! extent  = { time = "event_time" }
--! key     = ["window_start", "cluster", "node", "gpu_uuid", "mig_uuid", "gpu_model"]
--! [columns]
--! window_start                      = "Start of the UTC minute."
--! cluster                           = "Cluster."
--! node                              = "Node the GPU is in."
--! gpu_uuid                          = "GPU, by its UUID; of a MIG slice the GPU it is cut from."
--! mig_uuid                          = "MIG slice; NULL for a whole GPU."
--! gpu_model                         = "Model of the GPU as the driver names it."
--! gpu_index                         = "Number of the GPU in its node; the greatest one if it changed."
--! samples                           = "Samples of the window, of whatever could be read."
--! us_sampled                        = "Time the samples speak of, µs: the sum of their intervals. A sample counts wholly in the window of its time, so one minute may hold an interval more or less than it lasts. What is left is not known, not idle."
--! active_us                         = "Time in which a kernel ran for at least 1 % of it, or multiprocessors held warps for as long, µs; NULL if neither was ever known."
--! idle_us                           = "Time in which neither was, and a process was there, µs; NULL if it was never known."
--! empty_us                          = "Time in which neither was, and no process was there, µs; NULL if it was never known. What us_sampled has beside these three is not known."
--! gpu_util_us                       = "Time in which any kernel ran, µs: gpu_util_ppm x interval_us, summed; NULL if it was never known."
--! gpu_util_known_us                 = "Of us_sampled, the time for which gpu_util_us is known: divide by this."
--! memory_util_us                    = "Time in which device memory was read or written, µs: memory_util_ppm x interval_us, summed; NULL if it was never known."
--! memory_util_known_us              = "Of us_sampled, the time for which memory_util_us is known: divide by this."
--! graphics_active_us                = "Time in which the graphics or compute engine was active, µs: graphics_active_ppm x interval_us, summed; NULL if it was never known."
--! graphics_active_known_us          = "Of us_sampled, the time for which graphics_active_us is known: divide by this."
--! sm_active_us                      = "Time in which multiprocessors held a warp, averaged over all, µs: sm_active_ppm x interval_us, summed; NULL if it was never known."
--! sm_active_known_us                = "Of us_sampled, the time for which sm_active_us is known: divide by this."
--! sm_occupancy_us                   = "Time in which multiprocessors' warp slots were taken, averaged over all, µs: sm_occupancy_ppm x interval_us, summed; NULL if it was never known."
--! sm_occupancy_known_us             = "Of us_sampled, the time for which sm_occupancy_us is known: divide by this."
--! tensor_active_us                  = "Time in which tensor cores were active, µs: tensor_active_ppm x interval_us, summed; NULL if it was never known."
--! tensor_active_known_us            = "Of us_sampled, the time for which tensor_active_us is known: divide by this."
--! tensor_clock_count                = "Clocks of the multiprocessors in which tensor cores were active: tensor_active_ppm x interval_us x sm_clock_mhz, summed; NULL if it was never known."
--! tensor_clock_known_us             = "Of us_sampled, the time for which tensor_clock_count is known: divide by this."
--! tensor_hmma_active_us             = "Time in which tensor cores were active on FP16 or BF16, µs: tensor_hmma_active_ppm x interval_us, summed; NULL if it was never known."
--! tensor_hmma_active_known_us       = "Of us_sampled, the time for which tensor_hmma_active_us is known: divide by this."
--! tensor_imma_active_us             = "Time in which tensor cores were active on integers, µs: tensor_imma_active_ppm x interval_us, summed; NULL if it was never known."
--! tensor_imma_active_known_us       = "Of us_sampled, the time for which tensor_imma_active_us is known: divide by this."
--! tensor_dfma_active_us             = "Time in which tensor cores were active on FP64, µs: tensor_dfma_active_ppm x interval_us, summed; NULL if it was never known."
--! tensor_dfma_active_known_us       = "Of us_sampled, the time for which tensor_dfma_active_us is known: divide by this."
--! fp64_active_us                    = "Time in which FP64 units were active, µs: fp64_active_ppm x interval_us, summed; NULL if it was never known."
--! fp64_active_known_us              = "Of us_sampled, the time for which fp64_active_us is known: divide by this."
--! fp32_active_us                    = "Time in which FP32 units were active, µs: fp32_active_ppm x interval_us, summed; NULL if it was never known."
--! fp32_active_known_us              = "Of us_sampled, the time for which fp32_active_us is known: divide by this."
--! fp16_active_us                    = "Time in which FP16 units were active, without tensor cores, µs: fp16_active_ppm x interval_us, summed; NULL if it was never known."
--! fp16_active_known_us              = "Of us_sampled, the time for which fp16_active_us is known: divide by this."
--! int_active_us                     = "Time in which integer units were active, µs: int_active_ppm x interval_us, summed; NULL if it was never known."
--! int_active_known_us               = "Of us_sampled, the time for which int_active_us is known: divide by this."
--! dram_active_us                    = "Time in which device memory moved data, µs: dram_active_ppm x interval_us, summed; NULL if it was never known."
--! dram_active_known_us              = "Of us_sampled, the time for which dram_active_us is known: divide by this."
--! encoder_util_us                   = "Time in which the video encoder was used, µs: encoder_util_ppm x interval_us, summed; NULL if it was never known."
--! encoder_util_known_us             = "Of us_sampled, the time for which encoder_util_us is known: divide by this."
--! decoder_util_us                   = "Time in which the video decoder was used, µs: decoder_util_ppm x interval_us, summed; NULL if it was never known."
--! decoder_util_known_us             = "Of us_sampled, the time for which decoder_util_us is known: divide by this."
--! energy_mj                         = "Energy drawn, mJ: growth of the counter; NULL if it was never known."
--! energy_known_us                   = "Time for which energy_mj is known, µs."
--! pcie_tx_bytes                     = "Bytes sent from device to host over PCIe: growth of the counter, or rate x interval_us where there is none; NULL if it was never known."
--! pcie_tx_known_us                  = "Time for which pcie_tx_bytes is known, µs."
--! pcie_rx_bytes                     = "Bytes sent from host to device over PCIe: growth of the counter, or rate x interval_us where there is none; NULL if it was never known."
--! pcie_rx_known_us                  = "Time for which pcie_rx_bytes is known, µs."
--! nvlink_tx_bytes                   = "Bytes sent over all NVLinks: growth of the counter, or rate x interval_us where there is none; NULL if it was never known."
--! nvlink_tx_known_us                = "Time for which nvlink_tx_bytes is known, µs."
--! nvlink_rx_bytes                   = "Bytes received over all NVLinks: growth of the counter, or rate x interval_us where there is none; NULL if it was never known."
--! nvlink_rx_known_us                = "Time for which nvlink_rx_bytes is known, µs."
--! power_throttled_us                = "Time in which the power limit held the clocks down, µs: growth of the counter; NULL if it was never known."
--! power_throttled_known_us          = "Time for which power_throttled_us is known, µs."
--! thermal_throttled_us              = "Time in which heat held the clocks down, µs: growth of the counter; NULL if it was never known."
--! thermal_throttled_known_us        = "Time for which thermal_throttled_us is known, µs."
--! sw_power_cap_throttled_us         = "Time in which the driver held the clocks down to keep to the power limit, µs: growth of the counter; NULL if it was never known."
--! sw_power_cap_throttled_known_us   = "Time for which sw_power_cap_throttled_us is known, µs."
--! sw_thermal_throttled_us           = "Time in which the driver held the clocks down for heat, µs: growth of the counter; NULL if it was never known."
--! hw_thermal_throttled_us           = "Time in which the hardware held the clocks down for heat, µs: growth of the counter; NULL if it was never known."
--! hw_power_brake_throttled_us       = "Time in which the node's power brake held the clocks down, µs: growth of the counter; NULL if it was never known."
--! sw_thermal_throttled_known_us     = "Time for which sw_thermal_throttled_us is known, µs."
--! hw_thermal_throttled_known_us     = "Time for which hw_thermal_throttled_us is known, µs."
--! hw_power_brake_throttled_known_us = "Time for which hw_power_brake_throttled_us is known, µs."
--! sync_boost_throttled_us           = "Time in which a sync boost group held the clocks down, µs: growth of the counter; NULL if it was never known."
--! sync_boost_throttled_known_us     = "Time for which sync_boost_throttled_us is known, µs."
--! board_limit_throttled_us          = "Time in which limits of the board held the clocks down, µs: growth of the counter; NULL if it was never known."
--! board_limit_throttled_known_us    = "Time for which board_limit_throttled_us is known, µs."
--! reliability_throttled_us          = "Time in which the reliability voltage held the clocks down, µs: growth of the counter; NULL if it was never known."
--! reliability_throttled_known_us    = "Time for which reliability_throttled_us is known, µs."
--! pcie_replay_count                 = "Retransmissions on PCIe: growth of the counter; NULL if it was never known."
--! pcie_replay_known_us              = "Time for which pcie_replay_count is known, µs."
--! nvlink_error_count                = "Errors on all NVLinks: growth of the counter; NULL if it was never known."
--! nvlink_error_known_us             = "Time for which nvlink_error_count is known, µs."
--! ecc_corrected_count               = "Memory errors that ECC corrected: growth of the counter; NULL if it was never known."
--! ecc_corrected_known_us            = "Time for which ecc_corrected_count is known, µs."
--! ecc_uncorrected_count             = "Memory errors that ECC could not correct: growth of the counter; NULL if it was never known."
--! ecc_uncorrected_known_us          = "Time for which ecc_uncorrected_count is known, µs."
--! remapped_rows_count               = "Rows of memory replaced by spare ones: growth of the counter; NULL if it was never known."
--! remapped_rows_known_us            = "Time for which remapped_rows_count is known, µs."
--! power_max_mw                      = "Most power drawn, mW; NULL if it was never known."
--! gpu_temp_max_celsius              = "Highest temperature of the GPU, °C; NULL if it was never known."
--! memory_temp_max_celsius           = "Highest temperature of the memory, °C; NULL if it was never known."
--! framebuffer_used_max_bytes        = "Most device memory taken, bytes; NULL if it was never known."
--! framebuffer_total_max_bytes       = "Device memory there is, bytes; NULL if it was never known."
--! mig_slices_max_count              = "Of a MIG slice, sevenths of the GPU's compute that it has; NULL if it was never known."
--! process_max_count                 = "Most processes on the device at a time; NULL if it was never known."
--! remapped_rows_pending_max_count   = "Most rows of memory that waited for a reset to be replaced; NULL if it was never known."
--! remapped_rows_failed_max_count    = "Rows of memory for which no spare one was left; NULL if it was never known."
--! unread_not_supported_count        = "Values that could not be read as the device has no such value."
--! unread_no_permission_count        = "Values that could not be read as the agent may not read them."
--! unread_stale_count                = "Values that could not be read as the driver did not answer in time."
--! unread_device_lost_count          = "Values that could not be read as the device was gone."
SELECT window_start, cluster, node, gpu_uuid, mig_uuid, gpu_model,
       max(gpu_index)                                                                                                                AS gpu_index,
       count(*)                                                                                                                      AS samples,
       sum(us_known(interval_us, interval_us))                                                                                       AS us_sampled,
       sum(CASE WHEN gpu_util_ppm >= 10000 OR sm_active_ppm >= 10000 THEN interval_us END)                                          AS active_us,
       sum(CASE WHEN coalesce(gpu_util_ppm, sm_active_ppm) < 10000 AND coalesce(sm_active_ppm, 0) < 10000
                 AND (process_count > 0 OR (process_count IS NULL AND framebuffer_used_bytes > 104857600)) THEN interval_us END)     AS idle_us,
       sum(CASE WHEN coalesce(gpu_util_ppm, sm_active_ppm) < 10000 AND coalesce(sm_active_ppm, 0) < 10000
                 AND (process_count = 0 OR (process_count IS NULL AND framebuffer_used_bytes <= 104857600)) THEN interval_us END)    AS empty_us,
       sum(millionths(gpu_util_ppm, interval_us))                                                                                    AS gpu_util_us,
       sum(us_known(gpu_util_ppm, interval_us))                                                                                      AS gpu_util_known_us,
       sum(millionths(memory_util_ppm, interval_us))                                                                                 AS memory_util_us,
       sum(us_known(memory_util_ppm, interval_us))                                                                                   AS memory_util_known_us,
       sum(millionths(graphics_active_ppm, interval_us))                                                                             AS graphics_active_us,
       sum(us_known(graphics_active_ppm, interval_us))                                                                               AS graphics_active_known_us,
       sum(millionths(sm_active_ppm, interval_us))                                                                                   AS sm_active_us,
       sum(us_known(sm_active_ppm, interval_us))                                                                                     AS sm_active_known_us,
       sum(millionths(sm_occupancy_ppm, interval_us))                                                                                AS sm_occupancy_us,
       sum(us_known(sm_occupancy_ppm, interval_us))                                                                                  AS sm_occupancy_known_us,
       sum(millionths(tensor_active_ppm, interval_us))                                                                               AS tensor_active_us,
       sum(us_known(tensor_active_ppm, interval_us))                                                                                 AS tensor_active_known_us,
       sum(millionths(tensor_active_ppm, interval_us) * sm_clock_mhz)                                                                AS tensor_clock_count,
       sum(us_known(tensor_active_ppm + sm_clock_mhz, interval_us))                                                                  AS tensor_clock_known_us,
       sum(millionths(tensor_hmma_active_ppm, interval_us))                                                                          AS tensor_hmma_active_us,
       sum(us_known(tensor_hmma_active_ppm, interval_us))                                                                            AS tensor_hmma_active_known_us,
       sum(millionths(tensor_imma_active_ppm, interval_us))                                                                          AS tensor_imma_active_us,
       sum(us_known(tensor_imma_active_ppm, interval_us))                                                                            AS tensor_imma_active_known_us,
       sum(millionths(tensor_dfma_active_ppm, interval_us))                                                                          AS tensor_dfma_active_us,
       sum(us_known(tensor_dfma_active_ppm, interval_us))                                                                            AS tensor_dfma_active_known_us,
       sum(millionths(fp64_active_ppm, interval_us))                                                                                 AS fp64_active_us,
       sum(us_known(fp64_active_ppm, interval_us))                                                                                   AS fp64_active_known_us,
       sum(millionths(fp32_active_ppm, interval_us))                                                                                 AS fp32_active_us,
       sum(us_known(fp32_active_ppm, interval_us))                                                                                   AS fp32_active_known_us,
       sum(millionths(fp16_active_ppm, interval_us))                                                                                 AS fp16_active_us,
       sum(us_known(fp16_active_ppm, interval_us))                                                                                   AS fp16_active_known_us,
       sum(millionths(int_active_ppm, interval_us))                                                                                  AS int_active_us,
       sum(us_known(int_active_ppm, interval_us))                                                                                    AS int_active_known_us,
       sum(millionths(dram_active_ppm, interval_us))                                                                                 AS dram_active_us,
       sum(us_known(dram_active_ppm, interval_us))                                                                                   AS dram_active_known_us,
       sum(millionths(encoder_util_ppm, interval_us))                                                                                AS encoder_util_us,
       sum(us_known(encoder_util_ppm, interval_us))                                                                                  AS encoder_util_known_us,
       sum(millionths(decoder_util_ppm, interval_us))                                                                                AS decoder_util_us,
       sum(us_known(decoder_util_ppm, interval_us))                                                                                  AS decoder_util_known_us,
       sum(energy_mj_growth)                                                                                                         AS energy_mj,
       sum(us_known(energy_mj_growth, energy_mj_growth_us))                                                                          AS energy_known_us,
       sum(coalesce(pcie_tx_bytes_growth, millionths(pcie_tx_bytes_per_second, interval_us)))                                        AS pcie_tx_bytes,
       sum(us_known(coalesce(pcie_tx_bytes_growth, pcie_tx_bytes_per_second), coalesce(pcie_tx_bytes_growth_us, interval_us)))       AS pcie_tx_known_us,
       sum(coalesce(pcie_rx_bytes_growth, millionths(pcie_rx_bytes_per_second, interval_us)))                                        AS pcie_rx_bytes,
       sum(us_known(coalesce(pcie_rx_bytes_growth, pcie_rx_bytes_per_second), coalesce(pcie_rx_bytes_growth_us, interval_us)))       AS pcie_rx_known_us,
       sum(coalesce(nvlink_tx_bytes_growth, millionths(nvlink_tx_bytes_per_second, interval_us)))                                    AS nvlink_tx_bytes,
       sum(us_known(coalesce(nvlink_tx_bytes_growth, nvlink_tx_bytes_per_second), coalesce(nvlink_tx_bytes_growth_us, interval_us))) AS nvlink_tx_known_us,
       sum(coalesce(nvlink_rx_bytes_growth, millionths(nvlink_rx_bytes_per_second, interval_us)))                                    AS nvlink_rx_bytes,
       sum(us_known(coalesce(nvlink_rx_bytes_growth, nvlink_rx_bytes_per_second), coalesce(nvlink_rx_bytes_growth_us, interval_us))) AS nvlink_rx_known_us,
       sum(power_throttled_us_growth)                                                                                                AS power_throttled_us,
       sum(us_known(power_throttled_us_growth, power_throttled_us_growth_us))                                                        AS power_throttled_known_us,
       sum(thermal_throttled_us_growth)                                                                                              AS thermal_throttled_us,
       sum(us_known(thermal_throttled_us_growth, thermal_throttled_us_growth_us))                                                    AS thermal_throttled_known_us,
       sum(sw_power_cap_throttled_us_growth)                                                                                         AS sw_power_cap_throttled_us,
       sum(us_known(sw_power_cap_throttled_us_growth, sw_power_cap_throttled_us_growth_us))                                          AS sw_power_cap_throttled_known_us,
       sum(sw_thermal_throttled_us_growth)                                                                                           AS sw_thermal_throttled_us,
       sum(hw_thermal_throttled_us_growth)                                                                                           AS hw_thermal_throttled_us,
       sum(hw_power_brake_throttled_us_growth)                                                                                       AS hw_power_brake_throttled_us,
       sum(us_known(sw_thermal_throttled_us_growth, sw_thermal_throttled_us_growth_us))                                              AS sw_thermal_throttled_known_us,
       sum(us_known(hw_thermal_throttled_us_growth, hw_thermal_throttled_us_growth_us))                                              AS hw_thermal_throttled_known_us,
       sum(us_known(hw_power_brake_throttled_us_growth, hw_power_brake_throttled_us_growth_us))                                      AS hw_power_brake_throttled_known_us,
       sum(sync_boost_throttled_us_growth)                                                                                           AS sync_boost_throttled_us,
       sum(us_known(sync_boost_throttled_us_growth, sync_boost_throttled_us_growth_us))                                              AS sync_boost_throttled_known_us,
       sum(board_limit_throttled_us_growth)                                                                                          AS board_limit_throttled_us,
       sum(us_known(board_limit_throttled_us_growth, board_limit_throttled_us_growth_us))                                            AS board_limit_throttled_known_us,
       sum(reliability_throttled_us_growth)                                                                                          AS reliability_throttled_us,
       sum(us_known(reliability_throttled_us_growth, reliability_throttled_us_growth_us))                                            AS reliability_throttled_known_us,
       sum(pcie_replay_count_growth)                                                                                                 AS pcie_replay_count,
       sum(us_known(pcie_replay_count_growth, pcie_replay_count_growth_us))                                                          AS pcie_replay_known_us,
       sum(nvlink_error_count_growth)                                                                                                AS nvlink_error_count,
       sum(us_known(nvlink_error_count_growth, nvlink_error_count_growth_us))                                                        AS nvlink_error_known_us,
       sum(ecc_corrected_count_growth)                                                                                               AS ecc_corrected_count,
       sum(us_known(ecc_corrected_count_growth, ecc_corrected_count_growth_us))                                                      AS ecc_corrected_known_us,
       sum(ecc_uncorrected_count_growth)                                                                                             AS ecc_uncorrected_count,
       sum(us_known(ecc_uncorrected_count_growth, ecc_uncorrected_count_growth_us))                                                  AS ecc_uncorrected_known_us,
       sum(remapped_rows_count_growth)                                                                                               AS remapped_rows_count,
       sum(us_known(remapped_rows_count_growth, remapped_rows_count_growth_us))                                                      AS remapped_rows_known_us,
       max(power_mw)                                                                                                                 AS power_max_mw,
       max(gpu_temp_celsius)                                                                                                         AS gpu_temp_max_celsius,
       max(memory_temp_celsius)                                                                                                      AS memory_temp_max_celsius,
       max(framebuffer_used_bytes)                                                                                                   AS framebuffer_used_max_bytes,
       max(framebuffer_total_bytes)                                                                                                  AS framebuffer_total_max_bytes,
       max(mig_slice_count) AS mig_slices_max_count,
       max(process_count)                                                                                                            AS process_max_count,
       max(remapped_rows_pending_count)                                                                                              AS remapped_rows_pending_max_count,
       max(remapped_rows_failed_count)                                                                                               AS remapped_rows_failed_max_count,
       sum(unread_not_supported)                                                                                                     AS unread_not_supported_count,
       sum(unread_no_permission)                                                                                                     AS unread_no_permission_count,
       sum(unread_stale)                                                                                                             AS unread_stale_count,
       sum(unread_device_lost)                                                                                                       AS unread_device_lost_count
FROM gpu_samples
GROUP BY window_start, cluster, node, gpu_uuid, mig_uuid, gpu_model
