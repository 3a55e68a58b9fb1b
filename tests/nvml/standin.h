/*
 * A stand-in for libnvidia-ml: what its parts share. See standin.c.
 *
 * Types and constants follow NVIDIA's nvml.h (CUDA 13), as far as they are used here.
 */
#ifndef TIDEGATE_STANDIN_H
#define TIDEGATE_STANDIN_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
};

#define MAX_DEVICES 16
#define MAX_RULES 256
#define ALL (-1)

/* A value over time: base + per_second * t + amplitude * sin(2 pi t / period), t in seconds since the scenario's start. */
struct curve {
    double base, per_second, amplitude, period;
};

/* Names of curves in scenario files, in this order. GPM's are percent, and MiB/s for the last four. */
#define CURVES(X)                                                                                                       \
    X(gpu_util) X(mem_util) X(power_mw) X(power_limit_mw) X(energy0_mj) X(temp) X(mem_temp) X(sm_clock) X(mem_clock)     \
    X(sm_clock_max) X(mem_clock_max) X(throttle) X(mem_used) X(mem_reserved) X(mem_total) X(enc_util) X(dec_util)        \
    X(pcie_replay) X(ecc_corrected) X(ecc_uncorrected) X(remap_cor) X(remap_unc) X(remap_pending) X(remap_failure)       \
    X(retired_sbe) X(retired_dbe) X(power_ns) X(thermal_ns) X(sync_ns) X(board_ns) X(reliability_ns) X(sw_therm_ns)      \
    X(hw_therm_ns) X(hw_brake_ns) X(pcie_tx) X(pcie_rx) X(nvlink_replay) X(nvlink_recovery) X(nvlink_flit)               \
    X(nvlink_data) X(nvlink_links) X(nvlink_tx_kib) X(nvlink_rx_kib) X(recovery)                                         \
    X(gpm_graphics) X(gpm_sm) X(gpm_occupancy) X(gpm_int) X(gpm_tensor) X(gpm_dfma) X(gpm_hmma) X(gpm_imma) X(gpm_dram)  \
    X(gpm_fp64) X(gpm_fp32) X(gpm_fp16) X(gpm_pcie_tx) X(gpm_pcie_rx) X(gpm_nvlink_rx) X(gpm_nvlink_tx)

#define AS_ENUM(name) C_##name,
enum curve_name { CURVES(AS_ENUM) CURVE_COUNT };

struct device {
    int is_mig; /* of struct mig too: what a handle points to begins with it */
    int index;
    struct curve curves[CURVE_COUNT];
    int no_gpm;
    int mig_mode;
};

struct mig {
    int is_mig;
    int parent;
    char uuid[64];
    unsigned gi, ci, slices;
    double memory, used, sm_percent;
    double from, to; /* ms */
};

/* Something that holds for a device (or ALL) and a function (or *) from one time to another, ms. */
struct rule {
    enum { FAIL, WEDGE, LOST, UNPLUG, DRIVER_CHANGE } what;
    int device;
    char function[64];
    int code;
    double from, to;
    char version[32];
};

struct event {
    int device;
    unsigned long long type, data;
    double at;
};

struct process {
    int device;
    char kind; /* c, g, m */
    unsigned pid;
    double bytes; /* < 0: the driver does not say */
    double from, to;
    int gi, ci;
};

struct scenario {
    double start_ms; /* wall clock, ms since 1970; 0: the first initialization */
    char driver[32];
    char model[96];
    int device_count;
    struct device devices[MAX_DEVICES];
    struct mig migs[MAX_RULES];
    int mig_count;
    struct rule rules[MAX_RULES];
    int rule_count;
    struct event events[MAX_RULES];
    int event_count;
    struct process processes[MAX_RULES];
    int process_count;
    unsigned host;
    char gpm_unit[32];
    double gpm_rate_scale;
    int pcie_bits;
    int coalesce;
    char counts[512];
};

extern struct scenario scenario;

/* Reads the scenario once. Ends the process with a message when a line cannot be read. */
void scenario_load(void);

/* ms since the scenario's start. */
double scenario_now(void);

double curve_at(const struct curve *c, double ms);
/* Integral from 0 to `ms`, in units of the curve times seconds. */
double curve_integral(const struct curve *c, double ms);

/* Counts a call; the counts are in the file the scenario names, 64 bytes each: 56 of name, 8 of count. */
void count_call(int *slot, const char *function);

#endif
