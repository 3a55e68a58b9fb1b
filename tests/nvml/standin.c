/*
 * A stand-in for libnvidia-ml.so: the functions of NVML that Tidegate calls, answered from a scenario file, so that the real
 * way through nvml-wrapper runs where there is no GPU.
 *
 * The scenario is the file TIDEGATE_NVML_SCENARIO names or, without it, the library's own path with .scenario at its end; with
 * neither it is eight H100s that compute. One statement a line; times are ms since start_ms; DEV is a number or *:
 *
 *   start_ms MS                     wall clock of time 0, ms since 1970; otherwise the first initialization
 *   driver VERSION                  model NAME                      devices N   (before what names a device)
 *   host N                          in the UUIDs, so that those of several nodes differ
 *   set DEV VALUE BASE              a value of standin.h's CURVES; or a function of time:
 *   ramp DEV VALUE BASE PER_SECOND  wave DEV VALUE BASE AMPLITUDE PERIOD_S
 *   fail DEV FUNCTION CODE FROM TO  calls return CODE; FUNCTION may be *
 *   wedge DEV FUNCTION FROM TO      calls made from FROM on return at TO
 *   lost DEV FROM TO                off the bus, and back
 *   unplug DEV FROM TO              gone; back for who initializes anew
 *   driver_change FROM TO VERSION   another driver: who initialized before is refused from FROM on, everyone until TO
 *   xid DEV CODE AT                 event DEV TYPE DATA AT          coalesce   (events tell the last XID, as NVML may)
 *   mig DEV UUID GI CI SLICES BYTES USED FROM TO [SM_PERCENT]
 *   process DEV compute|graphics|mps PID BYTES FROM TO [GI CI]      BYTES -1: not known
 *   no_gpm DEV                      gpm_unit TEXT SCALE             pcie_bits 32|64
 *   counts FILE                     where calls are counted
 *
 * Energy is energy0_mj plus the integral of power_mw; a GPM metric is the mean of its curve between the two samples. So a
 * reader can compute what each call must have said.
 */
#define _GNU_SOURCE
#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *nvmlDevice_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized;
static double session_ms;

static int holds(const struct rule *r, int device, const char *function, double now) {
    return now >= r->from && now < r->to && (r->device == ALL || r->device == device)
        && (!r->function[0] || !strcmp(r->function, "*") || !strcmp(r->function, function));
}

/* Whether a driver came since this session began; and which runs now. */
static const struct rule *driver_change(double now, int since_session) {
    const struct rule *found = NULL;
    for (int i = 0; i < scenario.rule_count; i++) {
        const struct rule *r = &scenario.rules[i];
        if (r->what == DRIVER_CHANGE && now >= r->from && (!since_session || session_ms < r->to)) found = r;
    }
    return found;
}

static const char *driver_version(void) {
    const char *version = scenario.driver;
    for (int i = 0; i < scenario.rule_count; i++)
        if (scenario.rules[i].what == DRIVER_CHANGE && session_ms >= scenario.rules[i].to) version = scenario.rules[i].version;
    return version;
}

static int unplugged(int device, double at) {
    for (int i = 0; i < scenario.rule_count; i++)
        if (scenario.rules[i].what == UNPLUG && holds(&scenario.rules[i], device, "", at)) return 1;
    return 0;
}

/* What every call does first: waits where it must, and refuses where it must. `device` -2: of the system. */
static nvmlReturn_t enter(const char *function, int device, int cached) {
    if (!initialized) return UNINITIALIZED;
    double now = scenario_now();
    for (int i = 0; i < scenario.rule_count; i++) {
        const struct rule *r = &scenario.rules[i];
        if (r->what != WEDGE || !holds(r, device, function, now)) continue;
        while (scenario_now() < r->to) usleep(2000);
    }
    now = scenario_now();
    if (driver_change(now, 1)) return LIB_RM_VERSION_MISMATCH;
    if (device >= 0 && !cached) {
        for (int i = 0; i < scenario.rule_count; i++) {
            const struct rule *r = &scenario.rules[i];
            if (r->what == LOST && holds(r, device, function, now)) return GPU_IS_LOST;
            int gone = r->what == UNPLUG && (r->device == ALL || r->device == device);
            if (gone && now >= r->from && session_ms < r->from) return GPU_IS_LOST;
        }
    }
    for (int i = 0; i < scenario.rule_count; i++)
        if (scenario.rules[i].what == FAIL && holds(&scenario.rules[i], device, function, now)) return scenario.rules[i].code;
    return SUCCESS;
}

static int number_of(nvmlDevice_t handle) {
    struct mig *mig = handle;
    return mig->is_mig ? mig->parent : ((struct device *)handle)->index;
}

#define COUNTED                                                                                                         \
    static int slot_ = -1;                                                                                              \
    count_call(&slot_, __func__)
#define CALL(handle)                                                                                                    \
    COUNTED;                                                                                                            \
    do {                                                                                                                \
        nvmlReturn_t refused_ = enter(__func__, number_of(handle), 0);                                                  \
        if (refused_) return refused_;                                                                                  \
    } while (0)
#define NOT_OF_MIG(handle)                                                                                              \
    if (((struct mig *)(handle))->is_mig) return NOT_SUPPORTED

static double value(nvmlDevice_t d, enum curve_name c) {
    return curve_at(&scenario.devices[number_of(d)].curves[c], scenario_now());
}

nvmlReturn_t nvmlInit_v2(void) {
    scenario_load();
    COUNTED;
    pthread_mutex_lock(&lock);
    double now = scenario_now();
    const struct rule *change = driver_change(now, 0);
    nvmlReturn_t result = change && now < change->to ? LIB_RM_VERSION_MISMATCH : SUCCESS;
    for (int i = 0; i < scenario.rule_count; i++)
        if (scenario.rules[i].what == FAIL && holds(&scenario.rules[i], -2, __func__, now)) result = scenario.rules[i].code;
    if (result == SUCCESS && initialized++ == 0) session_ms = now;
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvmlShutdown(void) {
    COUNTED;
    pthread_mutex_lock(&lock);
    if (initialized) initialized--;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    COUNTED;
    nvmlReturn_t refused = enter(__func__, -2, 0);
    if (refused) return refused;
    snprintf(version, length, "%s", driver_version());
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    COUNTED;
    nvmlReturn_t refused = enter(__func__, -2, 0);
    if (refused) return refused;
    *count = 0;
    for (int i = 0; i < scenario.device_count; i++) *count += !unplugged(i, session_ms);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle) {
    COUNTED;
    nvmlReturn_t refused = enter(__func__, -2, 0);
    if (refused) return refused;
    for (int i = 0; i < scenario.device_count; i++) {
        if (unplugged(i, session_ms) || index--) continue;
        *handle = &scenario.devices[i];
        return enter(__func__, i, 0);
    }
    return INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length) {
    CALL(d);
    struct mig *mig = d;
    if (mig->is_mig)
        snprintf(uuid, length, "%s", mig->uuid);
    else
        snprintf(uuid, length, "GPU-5742a8c0-%04x-4000-8000-%012d", scenario.host & 0xffff, number_of(d));
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length) {
    CALL(d);
    snprintf(name, length, "%s", scenario.model);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor) {
    CALL(d);
    *minor = number_of(d);
    return SUCCESS;
}

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

/* Answers for a device that fell off, as it is known since it was found. */
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, struct pci_info *pci) {
    COUNTED;
    nvmlReturn_t refused = enter(__func__, number_of(d), 1);
    if (refused) return refused;
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x17 + 0x10 * number_of(d);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, unsigned rates[2]) {
    CALL(d);
    NOT_OF_MIG(d);
    if (scenario.devices[number_of(d)].mig_mode) return NOT_SUPPORTED;
    rates[0] = value(d, C_gpu_util);
    rates[1] = value(d, C_mem_util);
    return SUCCESS;
}

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, struct memory *m) {
    CALL(d);
    if (m->version != (sizeof *m | 2u << 24)) return INVALID_ARGUMENT;
    struct mig *mig = d;
    m->total = mig->is_mig ? mig->memory : value(d, C_mem_total);
    m->used = mig->is_mig ? mig->used : value(d, C_mem_used);
    m->reserved = mig->is_mig ? 0 : value(d, C_mem_reserved);
    m->free = m->total - m->reserved - m->used;
    return SUCCESS;
}

#define NUMBER(function, curve)                                                                                         \
    nvmlReturn_t function(nvmlDevice_t d, unsigned *out) {                                                              \
        CALL(d);                                                                                                        \
        NOT_OF_MIG(d);                                                                                                  \
        *out = value(d, curve);                                                                                         \
        return SUCCESS;                                                                                                 \
    }
NUMBER(nvmlDeviceGetPowerUsage, C_power_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, C_power_limit_mw)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *out) {
    CALL(d);
    if (sensor != 0) return INVALID_ARGUMENT;
    *out = value(d, C_temp);
    return SUCCESS;
}

static nvmlReturn_t clock_of(nvmlDevice_t d, int domain, unsigned *out, enum curve_name sm, enum curve_name memory) {
    if (domain != 1 && domain != 2) return INVALID_ARGUMENT;
    *out = value(d, domain == 1 ? sm : memory);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int domain, unsigned *out) {
    CALL(d);
    return clock_of(d, domain, out, C_sm_clock, C_mem_clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int domain, unsigned *out) {
    CALL(d);
    return clock_of(d, domain, out, C_sm_clock_max, C_mem_clock_max);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *bits) {
    CALL(d);
    NOT_OF_MIG(d);
    *bits = value(d, C_throttle);
    return SUCCESS;
}

#define MEDIA(function, curve)                                                                                          \
    nvmlReturn_t function(nvmlDevice_t d, unsigned *percent, unsigned *period_us) {                                     \
        CALL(d);                                                                                                        \
        NOT_OF_MIG(d);                                                                                                  \
        *percent = value(d, curve);                                                                                     \
        *period_us = 167000;                                                                                            \
        return SUCCESS;                                                                                                 \
    }
MEDIA(nvmlDeviceGetEncoderUtilization, C_enc_util)
MEDIA(nvmlDeviceGetDecoderUtilization, C_dec_util)

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *count) {
    CALL(d);
    NOT_OF_MIG(d);
    if (counter != 0) return INVALID_ARGUMENT;
    *count = value(d, type == 0 ? C_ecc_corrected : C_ecc_uncorrected);
    return SUCCESS;
}

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    nvmlReturn_t result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

/* Since 580.82 the fields 251 to 255 have the numbers 269 to 273, and 251 to 268 are others. */
static unsigned field_before_580_82(unsigned field) {
    int major = 0, minor = 0;
    sscanf(driver_version(), "%d.%d", &major, &minor);
    if (major < 580 || (major == 580 && minor < 82)) return field;
    return field >= 269 && field <= 273 ? field - 18 : field >= 251 && field <= 268 ? 0 : field;
}

static const struct {
    unsigned field, type; /* 1: unsigned, 3: unsigned long long */
    enum curve_name curve;
} fields[] = {
    {29, 3, C_retired_sbe}, {30, 3, C_retired_dbe}, {38, 3, C_nvlink_flit}, {45, 3, C_nvlink_data}, {52, 3, C_nvlink_replay},
    {59, 3, C_nvlink_recovery}, {74, 3, C_power_ns}, {75, 3, C_thermal_ns}, {76, 3, C_sync_ns}, {77, 3, C_board_ns},
    {79, 3, C_reliability_ns}, {82, 1, C_mem_temp}, {91, 1, C_nvlink_links}, {94, 1, C_pcie_replay},
    {138, 3, C_nvlink_tx_kib}, {139, 3, C_nvlink_rx_kib}, {142, 1, C_remap_cor}, {143, 1, C_remap_unc},
    {144, 1, C_remap_pending}, {145, 1, C_remap_failure}, {197, 3, C_pcie_tx}, {198, 3, C_pcie_rx}, {230, 1, C_recovery},
    {251, 3, C_sw_therm_ns}, {252, 3, C_hw_therm_ns}, {253, 3, C_hw_brake_ns},
};

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, struct field_value *values) {
    CALL(d);
    NOT_OF_MIG(d);
    double now = scenario_now();
    for (int v = 0; v < count; v++) {
        unsigned field = field_before_580_82(values[v].field);
        char name[32];
        snprintf(name, sizeof name, "field_%u", field);
        values[v].timestamp = (long long)(scenario.start_ms + now) * 1000;
        values[v].result = enter(name, number_of(d), 0);
        if (values[v].result) continue;
        if (field == 83) {
            const struct curve *c = scenario.devices[number_of(d)].curves;
            values[v].type = 3;
            values[v].value.ull = c[C_energy0_mj].base + curve_integral(&c[C_power_mw], now);
            continue;
        }
        values[v].result = NOT_SUPPORTED;
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
            if (fields[f].field != field) continue;
            double is = value(d, fields[f].curve);
            int narrow = fields[f].type == 1 || ((field == 197 || field == 198) && scenario.pcie_bits == 32);
            values[v].result = SUCCESS;
            values[v].type = narrow ? 1 : 3;
            if (narrow)
                values[v].value.u = (unsigned)(unsigned long long)is;
            else
                values[v].value.ull = is;
        }
    }
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gi, ci;
};

static nvmlReturn_t processes(nvmlDevice_t d, char kind, unsigned *count, struct process_info *out) {
    double now = scenario_now();
    struct mig *mig = d;
    unsigned room = *count, found = 0;
    for (int i = 0; i < scenario.process_count; i++) {
        struct process *p = &scenario.processes[i];
        if (p->kind != kind || (p->device != ALL && p->device != number_of(d)) || now < p->from || now >= p->to) continue;
        if (mig->is_mig && (p->gi != (int)mig->gi || p->ci != (int)mig->ci)) continue;
        if (out && found < room) {
            unsigned long long bytes = p->bytes < 0 ? ~0ULL : (unsigned long long)p->bytes;
            out[found] = (struct process_info){p->pid, bytes, p->gi, p->ci};
        }
        found++;
    }
    *count = found;
    return found > room || (found && !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(function, kind)                                                                                       \
    nvmlReturn_t function(nvmlDevice_t d, unsigned *count, struct process_info *out) {                                  \
        CALL(d);                                                                                                        \
        return processes(d, kind, count, out);                                                                          \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')

static struct mig *mig_at(int device, unsigned index, double now) {
    for (int i = 0; i < scenario.mig_count; i++) {
        struct mig *m = &scenario.migs[i];
        if (m->parent == device && now >= m->from && now < m->to && !index--) return m;
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    CALL(d);
    *current = *pending = mig_at(number_of(d), 0, scenario_now()) != NULL;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *count) {
    CALL(d);
    *count = 7;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *handle) {
    CALL(d);
    *handle = mig_at(number_of(d), index, scenario_now());
    return *handle ? SUCCESS : NOT_FOUND;
}

struct attributes {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mb;
};

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, struct attributes *a) {
    CALL(d);
    struct mig *mig = d;
    if (!mig->is_mig) return NOT_SUPPORTED;
    memset(a, 0, sizeof *a);
    a->gpu_slices = a->compute_slices = mig->slices;
    a->multiprocessors = 16 * mig->slices;
    a->memory_mb = mig->memory / (1 << 20);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active) {
    CALL(d);
    if (link >= value(d, C_nvlink_links)) return INVALID_ARGUMENT;
    *active = 1;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, unsigned link, int counter, unsigned long long *count) {
    CALL(d);
    if (link >= value(d, C_nvlink_links)) return INVALID_ARGUMENT;
    static const enum curve_name curves[] = {C_nvlink_replay, C_nvlink_recovery, C_nvlink_flit, C_nvlink_data};
    *count = value(d, curves[counter & 3]);
    return SUCCESS;
}

/* GPM: a sample is when it was taken and of what. */

struct gpm_sample {
    nvmlDevice_t device;
    struct mig *mig;
    double at;
};

struct gpm_metric {
    unsigned id;
    nvmlReturn_t result;
    double value;
    struct {
        const char *short_name, *long_name, *unit;
    } info;
};

struct gpm_request {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[210];
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, unsigned support[2]) {
    CALL(d);
    support[1] = !scenario.devices[number_of(d)].no_gpm;
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    COUNTED;
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    COUNTED;
    free(sample);
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, struct gpm_sample *sample) {
    CALL(d);
    if (scenario.devices[number_of(d)].no_gpm) return NOT_SUPPORTED;
    *sample = (struct gpm_sample){d, NULL, scenario_now()};
    return SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t d, unsigned gi, struct gpm_sample *sample) {
    CALL(d);
    double now = scenario_now();
    for (unsigned i = 0; mig_at(number_of(d), i, now); i++) {
        struct mig *m = mig_at(number_of(d), i, now);
        if (m->gi != gi) continue;
        *sample = (struct gpm_sample){d, m, now};
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpmMetricsGet(struct gpm_request *request) {
    COUNTED;
    struct gpm_sample *a = request->first, *b = request->second;
    if (request->version != 1 || !a || !b || a->device != b->device || a->mig != b->mig || b->at - a->at < 100)
        return INVALID_ARGUMENT;
    nvmlReturn_t refused = enter(__func__, number_of(a->device), 0);
    if (refused) return refused;
    static const unsigned ids[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 20, 21, 60, 61};
    for (unsigned m = 0; m < request->count; m++) {
        struct gpm_metric *metric = &request->metrics[m];
        unsigned i = 0;
        while (i < 16 && ids[i] != metric->id) i++;
        int rate = i >= 12;
        if (i == 16 || (a->mig && rate)) {
            metric->result = NOT_SUPPORTED;
            continue;
        }
        const struct curve *c = &scenario.devices[number_of(a->device)].curves[C_gpm_graphics + i];
        metric->value = (curve_integral(c, b->at) - curve_integral(c, a->at)) / ((b->at - a->at) / 1e3);
        if (a->mig) metric->value = a->mig->sm_percent;
        if (rate) metric->value *= scenario.gpm_rate_scale;
        metric->info.short_name = metric->info.long_name = "";
        metric->info.unit = rate ? scenario.gpm_unit : "%";
        metric->result = SUCCESS;
    }
    return SUCCESS;
}

/* Events: a set knows which it has delivered. */

struct event_set {
    unsigned long long wanted[MAX_DEVICES];
    unsigned char delivered[MAX_RULES];
    double since;
};

struct event_data {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gi, ci;
};

nvmlReturn_t nvmlEventSetCreate(struct event_set **set) {
    COUNTED;
    nvmlReturn_t refused = enter(__func__, -2, 0);
    if (refused) return refused;
    *set = calloc(1, sizeof **set);
    (*set)->since = scenario_now();
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(struct event_set *set) {
    COUNTED;
    free(set);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
    CALL(d);
    *types = 1 | 2 | 8 | 16 | 256;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, struct event_set *set) {
    CALL(d);
    set->wanted[number_of(d)] |= types;
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms) {
    COUNTED;
    double until = scenario_now() + timeout_ms;
    do {
        nvmlReturn_t refused = enter(__func__, -2, 0);
        if (refused) return refused;
        double now = scenario_now();
        unsigned long long last_xid = 0;
        for (int i = 0; i < scenario.event_count; i++)
            if (scenario.events[i].type == 8 && scenario.events[i].at <= now) last_xid = scenario.events[i].data;
        for (int i = 0; i < scenario.event_count; i++) {
            struct event *e = &scenario.events[i];
            int due = e->at >= set->since && e->at <= now && !set->delivered[i] && (set->wanted[e->device] & e->type);
            if (!due) continue;
            set->delivered[i] = 1;
            *data = (struct event_data){&scenario.devices[e->device], e->type, e->data, ~0u, ~0u};
            if (scenario.coalesce && e->type == 8) data->data = last_xid;
            return SUCCESS;
        }
        /* Until something may be other than now: one wake-up, as the real driver has. */
        double next = until;
        for (int i = 0; i < scenario.event_count; i++)
            if (scenario.events[i].at > now && scenario.events[i].at < next) next = scenario.events[i].at;
        for (int i = 0; i < scenario.rule_count; i++)
            if (scenario.rules[i].from > now && scenario.rules[i].from < next) next = scenario.rules[i].from;
        if (next > scenario_now()) usleep((useconds_t)((next - scenario_now()) * 1e3) + 500);
    } while (scenario_now() < until);
    return TIMEOUT;
}
