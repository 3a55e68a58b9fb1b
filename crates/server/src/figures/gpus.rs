//! `/metrics/gpus`: GPUs under the names and labels of NVIDIA's dcgm-exporter, so that dashboards
//! and alerts written for that go on.
//!
//! Values are of the last minutes that samples are there for, means where the exporter has the
//! moment's. Of its labels `pci_bus_id` and those of Kubernetes are left out.

use super::{Figure, Gauge, Page};

/// Most GPUs: each has eleven series.
const GPUS_MOST: usize = 2048;

pub(crate) const GPUS: Page = Page { prefix: "tidegate_gpus", figures: &[BUSY] };

const BUSY: Figure = Figure {
    name: "gpus",
    sql: "SELECT cluster, CAST(gpu_index AS VARCHAR) AS gpu, gpu_uuid AS \"UUID\", \
          'nvidia' || CAST(gpu_index AS VARCHAR) AS device, gpu_model AS \"modelName\", node AS \"Hostname\", \
          100.0 * sum(gpu_util_us) / nullif(sum(gpu_util_known_us), 0) AS gpu_util, \
          100.0 * sum(memory_util_us) / nullif(sum(memory_util_known_us), 0) AS memory_util, \
          max(framebuffer_used_max_bytes) / 1048576 AS used, \
          (max(framebuffer_total_max_bytes) - max(framebuffer_used_max_bytes)) / 1048576 AS free, \
          max(gpu_temp_max_celsius) AS gpu_temp, max(memory_temp_max_celsius) AS memory_temp, \
          1000.0 * sum(energy_mj) / nullif(sum(energy_known_us), 0) AS power, \
          1.0 * sum(graphics_active_us) / nullif(sum(graphics_active_known_us), 0) AS graphics, \
          1.0 * sum(sm_active_us) / nullif(sum(sm_active_known_us), 0) AS sm, \
          1.0 * sum(tensor_active_us) / nullif(sum(tensor_active_known_us), 0) AS tensor, \
          1.0 * sum(dram_active_us) / nullif(sum(dram_active_known_us), 0) AS dram \
          FROM gpu_1m WHERE mig_uuid IS NULL \
          AND window_start >= date_trunc('minute', now()) - INTERVAL '2 minutes' AND window_start <= now() \
          GROUP BY cluster, gpu_index, gpu_uuid, gpu_model, node",
    labels: &["gpu", "UUID", "device", "modelName", "Hostname", "cluster"],
    gauges: &[
        Gauge { column: "gpu_util", name: "DCGM_FI_DEV_GPU_UTIL", help: "GPU utilization (in %)" },
        Gauge { column: "memory_util", name: "DCGM_FI_DEV_MEM_COPY_UTIL", help: "Memory utilization (in %)" },
        Gauge { column: "used", name: "DCGM_FI_DEV_FB_USED", help: "Framebuffer memory used (in MiB)" },
        Gauge { column: "free", name: "DCGM_FI_DEV_FB_FREE", help: "Framebuffer memory not used (in MiB)" },
        Gauge {
            column: "gpu_temp",
            name: "DCGM_FI_DEV_GPU_TEMP",
            help: "GPU temperature (in C), the highest",
        },
        Gauge {
            column: "memory_temp",
            name: "DCGM_FI_DEV_MEMORY_TEMP",
            help: "Memory temperature (in C), the highest",
        },
        Gauge { column: "power", name: "DCGM_FI_DEV_POWER_USAGE", help: "Power draw (in W)" },
        Gauge {
            column: "graphics",
            name: "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            help: "Share of time in which the graphics engine was active",
        },
        Gauge {
            column: "sm",
            name: "DCGM_FI_PROF_SM_ACTIVE",
            help: "Share of time in which multiprocessors held a warp",
        },
        Gauge {
            column: "tensor",
            name: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            help: "Share of time in which tensor cores were active",
        },
        Gauge {
            column: "dram",
            name: "DCGM_FI_PROF_DRAM_ACTIVE",
            help: "Share of time in which device memory transferred data",
        },
    ],
    most: GPUS_MOST,
};
