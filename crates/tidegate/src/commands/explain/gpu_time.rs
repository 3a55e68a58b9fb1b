//! Where the GPU time of a job went: rows of the ledger and related tables.

use serde::{Deserialize, Serialize};
use tidegate_server::QueryService;

use crate::commands::{CommandError, ask};

/// Fields are named after the columns of their tables.
#[derive(Debug, Serialize)]
pub struct GpuTime {
    /// By class, largest first (`ledger_1m`).
    pub ledger: Vec<ClassTime>,
    /// Cost by currency, and a row without a currency for unpriced time (`job_costs`).
    pub costs: Vec<Cost>,
    /// By run (`goodput_attempts`); empty if it reports no steps.
    pub runs: Vec<Run>,
    /// Over all runs, waits included (`goodput`).
    pub goodput: Option<Goodput>,
    /// By FLOPs convention and precision, longest first (`mfu_jobs`).
    pub mfu: Vec<Mfu>,
    /// Minutes by bottleneck, most first (`bottleneck_1m`).
    pub walls: Vec<Bottleneck>,
    /// Of its last attempt on several nodes (`gang_spread`).
    pub spread: Option<Spread>,
    pub energy: Option<Energy>,
    /// Confirmed ones, the costliest first (`stragglers`).
    pub stragglers: Vec<Straggler>,
    /// Devices with growing memory, the first to be full first (`memory_growth`).
    pub memory: Vec<Memory>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ClassTime {
    pub class: String,
    pub gpu_ms: i64,
    /// Millionths of the currency; NULL where no price is known for any of it.
    pub cost_micros: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Cost {
    pub currency: Option<String>,
    pub gpu_ms: i64,
    pub cost_micros: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    pub run: i64,
    pub attempts: i64,
    pub from_time: String,
    pub held_gpu_ms: i64,
    /// Waited for before it, GPU x ms.
    pub queued_gpu_ms: i64,
    pub productive_gpu_ms: i64,
    pub redone_gpu_ms: i64,
    /// Before first steps: start-up and recovery.
    pub starting_gpu_ms: i64,
    /// As in `goodput`, of the run alone; the denominator is `held_gpu_ms + queued_gpu_ms`.
    pub ettr_numerator_gpu_ms: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Goodput {
    pub held_gpu_ms: Option<i64>,
    pub productive_gpu_ms: Option<i64>,
    pub ettr_numerator_gpu_ms: Option<i64>,
    pub ettr_denominator_gpu_ms: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Straggler {
    pub node: Option<String>,
    pub rank: Option<i64>,
    pub class: Option<String>,
    /// How much longer it takes than before, millionths.
    pub slowdown_ppm: Option<i64>,
    pub onset_time: String,
    pub cleared_time: Option<String>,
    /// How long it lasted; `None` while it does.
    pub for_ms: Option<i64>,
    /// Lost by the whole job, as far as it reports steps.
    pub lost_gpu_ms: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Mfu {
    pub flops_convention: Option<String>,
    pub precision: Option<String>,
    pub gpu_model: Option<String>,
    pub mfu_ppm: Option<i64>,
    pub hfu_bound_ppm: Option<i64>,
    pub is_impossible: Option<i64>,
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Bottleneck {
    pub label: String,
    pub reason: Option<String>,
    pub minutes: i64,
    /// Shares over these minutes, millionths; NULL where they are not known.
    pub sm_active_ppm: Option<i64>,
    pub tensor_active_ppm: Option<i64>,
    pub dram_active_ppm: Option<i64>,
    pub pcie_ppm: Option<i64>,
    pub nvlink_ppm: Option<i64>,
    pub data_wait_ppm: Option<i64>,
    pub communication_ppm: Option<i64>,
    pub imbalance_ppm: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Spread {
    pub node_count: i64,
    pub labeled_nodes: i64,
    pub switches: Option<i64>,
    pub racks: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Energy {
    pub energy_mj: Option<i64>,
    pub quality: String,
    pub uj_per_token: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Memory {
    pub node: Option<String>,
    pub gpu_uuid: Option<String>,
    pub gpu_index: Option<i64>,
    pub used_bytes: Option<i64>,
    pub capacity_bytes: Option<i64>,
    pub bytes_per_hour: i64,
    pub time_to_oom_ms: Option<i64>,
    /// `released` if the hold ended before memory was full.
    pub reason: Option<String>,
}

impl GpuTime {
    /// Queries all tables; `of_job` is the condition that selects the job's rows.
    pub async fn query(service: &QueryService, of_job: &str) -> Result<Self, CommandError> {
        Ok(Self {
            ledger: ask(service, &ledger(of_job)).await?,
            costs: ask(service, &costs(of_job)).await?,
            runs: ask(service, &runs(of_job)).await?,
            goodput: ask(service, &goodput(of_job)).await?.pop(),
            mfu: ask(service, &mfu(of_job)).await?,
            walls: ask(service, &walls(of_job)).await?,
            spread: ask(service, &spread(of_job)).await?.pop(),
            energy: ask(service, &energy(of_job)).await?.pop(),
            stragglers: ask(service, &stragglers(of_job)).await?,
            memory: ask(service, &memory(of_job)).await?,
        })
    }

    /// The costliest straggler that still slows it.
    pub fn straggler(&self) -> Option<&Straggler> {
        self.stragglers.iter().find(|slow| slow.cleared_time.is_none())
    }

    /// GPU x ms of all classes.
    pub fn gpu_ms(&self) -> i64 {
        self.ledger.iter().map(|class| class.gpu_ms).sum()
    }
}

fn ledger(of_job: &str) -> String {
    format!(
        "SELECT class, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros FROM ledger_1m WHERE {of_job} \
         GROUP BY class ORDER BY gpu_ms DESC, class"
    )
}

fn costs(of_job: &str) -> String {
    format!(
        "SELECT currency, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros FROM job_costs WHERE {of_job} \
         GROUP BY currency ORDER BY currency NULLS LAST"
    )
}

/// Waits are counted as in `goodput`: the first one from when on the job was eligible.
fn runs(of_job: &str) -> String {
    format!(
        "SELECT g.run, g.attempts, g.from_time, g.held_gpu_ms, w.queued_gpu_ms, g.productive_gpu_ms, g.redone_gpu_ms, \
                g.starting_gpu_ms, g.ettr_numerator_gpu_ms \
         FROM (SELECT run, count(*) AS attempts, min(from_time) AS from_time, sum(held_gpu_ms) AS held_gpu_ms, \
                      sum(productive_gpu_ms) AS productive_gpu_ms, sum(redone_gpu_ms) AS redone_gpu_ms, \
                      sum(startup_gpu_ms + recovery_gpu_ms) AS starting_gpu_ms, \
                      sum(productive_gpu_ms + coalesce(data_stall_gpu_ms, 0) + coalesce(communication_stall_gpu_ms, 0)) \
                          AS ettr_numerator_gpu_ms \
               FROM goodput_attempts WHERE {of_job} GROUP BY run) g \
         JOIN (SELECT run, coalesce(sum(CASE WHEN queued_from = submit_time AND eligible_time > queued_from \
                                                  AND eligible_time <= coalesce(queued_to, as_of, eligible_time) \
                                             THEN gpu_ms(asked_gpus_milli, queued_from, eligible_time, coalesce(queued_to, as_of)) \
                                             ELSE gpu_ms_queued END), 0) AS queued_gpu_ms \
               FROM attempts WHERE {of_job} AND from_time IS NOT NULL GROUP BY run) w ON w.run = g.run \
         ORDER BY g.run"
    )
}

fn goodput(of_job: &str) -> String {
    format!(
        "SELECT held_gpu_ms, productive_gpu_ms, ettr_numerator_gpu_ms, ettr_denominator_gpu_ms FROM goodput WHERE {of_job}"
    )
}

fn mfu(of_job: &str) -> String {
    format!(
        "SELECT flops_convention, precision, gpu_model, mfu_ppm, hfu_bound_ppm, is_impossible, reason \
         FROM mfu_jobs WHERE {of_job} ORDER BY gpu_us DESC, flops_convention, precision, gpu_model, reason"
    )
}

/// Shares of all minutes of a label together, numerators over denominators.
fn walls(of_job: &str) -> String {
    let share =
        |part: &str, whole: &str| format!("part_of(1000000, 0, sum({part}), nullif(sum({whole}), 0))");
    let time =
        |name: &str| format!("{} AS {name}_ppm", share(&format!("{name}_us"), &format!("{name}_known_us")));
    let link = |name: &str| {
        let way = |way: &str| share(&format!("{name}_{way}_bytes"), &format!("{name}_{way}_capacity_bytes"));
        format!("greatest({}, {}) AS {name}_ppm", way("tx"), way("rx"))
    };
    format!(
        "SELECT label, reason, count(*) AS minutes, {}, {}, {}, {}, {}, {}, {}, {} FROM bottleneck_1m WHERE {of_job} \
         GROUP BY label, reason ORDER BY minutes DESC, label, reason",
        time("sm_active"),
        time("tensor_active"),
        time("dram_active"),
        link("pcie"),
        link("nvlink"),
        time("data_wait"),
        time("communication"),
        time("imbalance"),
    )
}

fn spread(of_job: &str) -> String {
    format!(
        "SELECT node_count, labeled_nodes, switches, racks FROM gang_spread WHERE {of_job} ORDER BY from_time DESC LIMIT 1"
    )
}

fn energy(of_job: &str) -> String {
    format!("SELECT energy_mj, quality, uj_per_token FROM job_energy WHERE {of_job}")
}

fn stragglers(of_job: &str) -> String {
    format!(
        "SELECT node, rank, class, slowdown_ppm, onset_time, cleared_time, lost_gpu_ms, \
                ms_between(onset_time, cleared_time) AS for_ms \
         FROM stragglers WHERE {of_job} AND confirmed_time IS NOT NULL AND class <> 'STRUCTURAL' \
         ORDER BY lost_gpu_ms DESC NULLS LAST, onset_time LIMIT 10"
    )
}

fn memory(of_job: &str) -> String {
    format!(
        "SELECT node, gpu_uuid, gpu_index, used_bytes, capacity_bytes, bytes_per_hour, time_to_oom_ms, reason \
         FROM memory_growth WHERE {of_job} AND (time_to_oom_ms IS NOT NULL OR reason = 'released') \
         ORDER BY time_to_oom_ms NULLS LAST, bytes_per_hour DESC, node, gpu_index"
    )
}
