/* Reads scenario files, see standin.c for the lines there are. */
#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct scenario scenario;

#define AS_TEXT(name) #name,
static const char *const curve_names[] = {CURVES(AS_TEXT)};

static double wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

double scenario_now(void) { return wall_ms() - scenario.start_ms; }

double curve_at(const struct curve *c, double ms) {
    double t = ms / 1e3, wave = c->period > 0 ? c->amplitude * sin(2 * M_PI * t / c->period) : 0;
    return c->base + c->per_second * t + wave;
}

double curve_integral(const struct curve *c, double ms) {
    double t = ms / 1e3;
    double wave = c->period > 0 ? c->amplitude * c->period / (2 * M_PI) * (1 - cos(2 * M_PI * t / c->period)) : 0;
    return c->base * t + c->per_second * t * t / 2 + wave;
}

static void die(const char *path, int line, const char *what) {
    fprintf(stderr, "stand-in for NVML: %s, line %d: %s\n", path, line, what);
    abort();
}

/* A plain H100 SXM that computes; devices differ a little. */
static void plain_device(int i) {
    struct device *d = &scenario.devices[i];
    memset(d, 0, sizeof *d);
    d->index = i;
    struct curve *c = d->curves;
    c[C_gpu_util].base = 90 + i % 8;
    c[C_mem_util].base = 40 + i % 8;
    c[C_power_mw].base = 500000 + 1000 * i;
    c[C_power_limit_mw].base = 700000;
    c[C_energy0_mj].base = 1e9 * (i + 1);
    c[C_temp].base = 50 + i;
    c[C_mem_temp].base = 60 + i;
    c[C_sm_clock].base = 1755;
    c[C_mem_clock].base = 2619;
    c[C_sm_clock_max].base = 1980;
    c[C_mem_clock_max].base = 2619;
    c[C_throttle].base = 4;
    c[C_mem_total].base = 85520809984.0;
    c[C_mem_reserved].base = 660602880.0;
    c[C_mem_used].base = 60e9 + 1e6 * i;
    c[C_power_ns].per_second = 1e8;
    c[C_pcie_tx].per_second = 2e9;
    c[C_pcie_rx].per_second = 3e9;
    c[C_nvlink_links].base = 18;
    static const double gpm[] = {95, 80, 40, 5, 60, 0, 58, 0, 45, 0, 12, 1, 2000, 3000, 90000, 91000};
    for (int m = 0; m < 16; m++) c[C_gpm_graphics + m].base = gpm[m];
}

static int device_number(const char *word, const char *path, int line) {
    if (!strcmp(word, "*")) return ALL;
    int i = atoi(word);
    if (i < 0 || i >= scenario.device_count) die(path, line, "there is no such device");
    return i;
}

static void read_line(char *text, const char *path, int line) {
    char key[32], a[64], b[64], c[64];
    double v[6];
    struct scenario *s = &scenario;
    if (sscanf(text, "%31s", key) != 1 || key[0] == '#') return;
    if (s->rule_count == MAX_RULES || s->mig_count == MAX_RULES || s->event_count == MAX_RULES
        || s->process_count == MAX_RULES)
        die(path, line, "too many lines");
    struct rule *r = &s->rules[s->rule_count];
    if (!strcmp(key, "start_ms") && sscanf(text, "%*s %lf", &s->start_ms) == 1) return;
    if (!strcmp(key, "driver") && sscanf(text, "%*s %31s", s->driver) == 1) return;
    if (!strcmp(key, "model") && sscanf(text, "%*s %95[^\n]", s->model) == 1) return;
    if (!strcmp(key, "counts") && sscanf(text, "%*s %511[^\n]", s->counts) == 1) return;
    if (!strcmp(key, "host") && sscanf(text, "%*s %u", &s->host) == 1) return;
    if (!strcmp(key, "gpm_unit") && sscanf(text, "%*s %31s %lf", s->gpm_unit, &s->gpm_rate_scale) == 2) return;
    if (!strcmp(key, "pcie_bits") && sscanf(text, "%*s %d", &s->pcie_bits) == 1) return;
    if (!strcmp(key, "coalesce")) {
        s->coalesce = 1;
        return;
    }
    if (!strcmp(key, "devices") && sscanf(text, "%*s %d", &s->device_count) == 1 && s->device_count <= MAX_DEVICES) {
        for (int i = 0; i < s->device_count; i++) plain_device(i);
        return;
    }
    if (!strcmp(key, "set") || !strcmp(key, "ramp") || !strcmp(key, "wave")) {
        v[1] = v[2] = 0;
        int got = sscanf(text, "%*s %63s %63s %lf %lf %lf", a, b, v, v + 1, v + 2);
        int d = device_number(a, path, line), n = 0;
        while (n < CURVE_COUNT && strcmp(curve_names[n], b)) n++;
        if (n == CURVE_COUNT) die(path, line, "there is no such value");
        if (got != (key[0] == 's' ? 3 : key[0] == 'r' ? 4 : 5)) die(path, line, "numbers are missing");
        struct curve made = {v[0], key[0] == 'r' ? v[1] : 0, key[0] == 'w' ? v[1] : 0, v[2]};
        for (int i = 0; i < s->device_count; i++)
            if (d == ALL || d == i) s->devices[i].curves[n] = made;
        return;
    }
    if (!strcmp(key, "no_gpm") && sscanf(text, "%*s %63s", a) == 1) {
        int d = device_number(a, path, line);
        for (int i = 0; i < s->device_count; i++)
            if (d == ALL || d == i) s->devices[i].no_gpm = 1;
        return;
    }
    if (!strcmp(key, "fail") && sscanf(text, "%*s %63s %63s %lf %lf %lf", a, r->function, v, v + 1, v + 2) == 5) {
        *r = (struct rule){.what = FAIL, .device = device_number(a, path, line), .code = (int)v[0], .from = v[1], .to = v[2]};
        sscanf(text, "%*s %*s %63s", r->function);
        s->rule_count++;
        return;
    }
    if (!strcmp(key, "wedge") && sscanf(text, "%*s %63s %63s %lf %lf", a, b, v, v + 1) == 4) {
        *r = (struct rule){.what = WEDGE, .device = device_number(a, path, line), .from = v[0], .to = v[1]};
        strcpy(r->function, b);
        s->rule_count++;
        return;
    }
    if ((!strcmp(key, "lost") || !strcmp(key, "unplug")) && sscanf(text, "%*s %63s %lf %lf", a, v, v + 1) == 3) {
        *r = (struct rule){.what = key[0] == 'l' ? LOST : UNPLUG, .device = device_number(a, path, line), .from = v[0], .to = v[1]};
        s->rule_count++;
        return;
    }
    if (!strcmp(key, "driver_change") && sscanf(text, "%*s %lf %lf %31s", v, v + 1, a) == 3) {
        *r = (struct rule){.what = DRIVER_CHANGE, .device = ALL, .from = v[0], .to = v[1]};
        strcpy(r->version, a);
        s->rule_count++;
        return;
    }
    if ((!strcmp(key, "xid") && sscanf(text, "%*s %63s %lf %lf", a, v, v + 1) == 3)
        || (!strcmp(key, "event") && sscanf(text, "%*s %63s %lf %lf %lf", a, v + 2, v, v + 1) == 4)) {
        int d = device_number(a, path, line);
        unsigned long long type = key[0] == 'x' ? 8 : (unsigned long long)v[2];
        s->events[s->event_count++] = (struct event){d, type, (unsigned long long)v[0], v[1]};
        return;
    }
    if (!strcmp(key, "process")) {
        int gi = -1, ci = -1;
        if (sscanf(text, "%*s %63s %63s %lf %lf %lf %lf %d %d", a, b, v, v + 1, v + 2, v + 3, &gi, &ci) >= 6) {
            s->processes[s->process_count++] =
                (struct process){device_number(a, path, line), b[0], (unsigned)v[0], v[1], v[2], v[3], gi, ci};
            return;
        }
    }
    if (!strcmp(key, "mig")) {
        struct mig m = {.is_mig = 1, .sm_percent = 50};
        if (sscanf(text, "%*s %63s %63s %u %u %u %lf %lf %lf %lf %lf", a, m.uuid, &m.gi, &m.ci, &m.slices, &m.memory, &m.used,
                   &m.from, &m.to, &m.sm_percent) >= 9) {
            m.parent = device_number(a, path, line);
            s->devices[m.parent].mig_mode = 1;
            s->migs[s->mig_count++] = m;
            return;
        }
    }
    (void)c;
    die(path, line, text);
}

static void load(void) {
    static char path[1024];
    const char *named = getenv("TIDEGATE_NVML_SCENARIO");
    Dl_info self;
    if (named)
        snprintf(path, sizeof path, "%s", named);
    else if (dladdr((void *)scenario_load, &self))
        snprintf(path, sizeof path, "%s.scenario", self.dli_fname);
    strcpy(scenario.driver, "570.86.15");
    strcpy(scenario.model, "NVIDIA H100 80GB HBM3");
    strcpy(scenario.gpm_unit, "MiB/s");
    scenario.gpm_rate_scale = 1;
    scenario.pcie_bits = 64;
    scenario.device_count = 8;
    for (int i = 0; i < 8; i++) plain_device(i);
    FILE *f = fopen(path, "r");
    if (f) {
        char text[1024];
        for (int line = 1; fgets(text, sizeof text, f); line++) read_line(text, path, line);
        fclose(f);
    } else if (named)
        die(path, 0, "cannot be read");
    if (scenario.start_ms == 0) scenario.start_ms = wall_ms();
}

void scenario_load(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}

#define MAX_COUNTS 128
struct count {
    char name[56];
    uint64_t calls;
};
static struct count *counts;

static void open_counts(void) {
    size_t bytes = MAX_COUNTS * sizeof(struct count);
    int file = scenario.counts[0] ? open(scenario.counts, O_RDWR | O_CREAT, 0644) : -1;
    if (file >= 0 && ftruncate(file, bytes) == 0)
        counts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    else
        counts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (file >= 0) close(file);
    if (counts == MAP_FAILED) abort();
}

void count_call(int *slot, const char *function) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_once(&once, open_counts);
    if (__atomic_load_n(slot, __ATOMIC_ACQUIRE) < 0) {
        pthread_mutex_lock(&lock);
        int i = 0;
        while (i < MAX_COUNTS - 1 && counts[i].name[0] && strcmp(counts[i].name, function)) i++;
        if (!counts[i].name[0]) strncpy(counts[i].name, function, sizeof counts[i].name - 1);
        __atomic_store_n(slot, i, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
    }
    __atomic_fetch_add(&counts[*slot].calls, 1, __ATOMIC_RELAXED);
}
