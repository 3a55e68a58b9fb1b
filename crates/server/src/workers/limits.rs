//! Hard limits of a worker. The kernel enforces them, whatever the query does.

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use thread_priority::unix::{NormalThreadSchedulePolicy, ThreadSchedulePolicy};
use thread_priority::{ThreadPriority, ThreadPriorityValue};

use crate::background;
use crate::query::QueryLimits;

/// Address space for what is not counted as a query's memory: plans, and pages of the allocator
/// that are freed and kept.
const BESIDE_BYTES: u64 = 128 << 20;

/// As [`yield_to_others`], to the utmost: the process runs where no other one wants a processor.
///
/// # Errors
/// The system refuses it.
pub fn run_in_background() -> io::Result<()> {
    background::lower(thread_priority::unix::thread_native_id())
        .then_some(())
        .ok_or_else(|| io::Error::other("the system does not let this process run in the background"))
}

/// Gives queries the smaller share of busy processors: niceness 5, which the kernel weighs at a
/// third of what records and serves. With less, the first answer of a new worker took minutes on a
/// machine with ten busy processes. To be called on the process's first thread: others inherit it.
///
/// # Errors
/// The system refuses it.
pub fn yield_to_others() -> io::Result<()> {
    // On the scale of `thread_priority`, 0 to 99, this is niceness 5.
    let priority = ThreadPriorityValue::try_from(35_u8).map_err(io::Error::other)?;
    let normal = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    let this = thread_priority::unix::thread_native_id();
    thread_priority::unix::set_thread_priority_and_policy(
        this,
        ThreadPriority::Crossplatform(priority),
        normal,
    )
    .map_err(|error| io::Error::other(format!("lower the priority: {error:?}")))
}

/// Limits of this process that it cannot raise.
#[derive(Debug)]
pub(super) struct Confined {
    data_bytes: u64,
    share_bytes: u64,
}

impl Confined {
    /// Confines this process: to the memory it has by now, its queries' share and half as much
    /// again, and [`BESIDE_BYTES`]; and to no core dumps. To be called once its threads have
    /// started.
    ///
    /// This limits private writable memory (`RLIMIT_DATA`), where the limit of the whole address
    /// space would count the program and mapped files too. A control group would need rights that
    /// only a service manager grants.
    ///
    /// # Errors
    /// The system refuses a limit.
    pub(super) fn confine(limits: &QueryLimits) -> io::Result<Self> {
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        let share_bytes = limits.memory_bytes as u64;
        let data_bytes = private_bytes()? + share_bytes + share_bytes / 2 + BESIDE_BYTES;
        setrlimit(Resource::RLIMIT_DATA, data_bytes, data_bytes)?;
        // If the machine runs out of memory, the kernel looks here first.
        std::fs::write("/proc/self/oom_score_adj", "800").ok();
        Ok(Self { data_bytes, share_bytes })
    }

    /// Whether queries left so little address space that the next one may meet the hard limit
    /// without fault. The allocator keeps what it has taken, in pieces that may fit nothing.
    ///
    /// # Errors
    /// The system does not say what this process has.
    pub(super) fn is_worn(&self) -> io::Result<bool> {
        let left = self.data_bytes.saturating_sub(private_bytes()?);
        Ok(left < self.share_bytes / 2 + BESIDE_BYTES / 2)
    }
}

/// Private writable memory of this process.
fn private_bytes() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kib = data.and_then(|data| data.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmData"))
}

/// Lets this process use as much CPU time from now on as its threads can in so much time. It is
/// killed then; before that, its parent kills it.
///
/// # Errors
/// The system refuses the limit.
pub(super) fn allow_cpu(time: Duration, threads: usize) -> io::Result<()> {
    let used = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = (used.user_time() + used.system_time()).num_seconds().max(0) as u64;
    let more = (time.as_secs() + 2).saturating_mul(threads as u64 + 2);
    let (_, hard) = nix::sys::resource::getrlimit(Resource::RLIMIT_CPU)?;
    setrlimit(Resource::RLIMIT_CPU, used.saturating_add(more).min(hard), hard)?;
    Ok(())
}
