//! Checks the GPUs by reading them as the agent does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tidegate_collect::nvml::{self, NvmlOptions, NvmlStatus};
use tidegate_collect::reading::{MissingReason, Value};
use tidegate_collect::{Device, Metric, Reading, Sink};
use tidegate_events::Event;

use super::{DoctorArgs, Finding, Verdict};

const INTERVAL: Duration = Duration::from_millis(500);
/// How long to read: ratios exist from the second reading on.
const READ_FOR: Duration = Duration::from_millis(2_200);

/// Keeps the last reading of each device.
#[derive(Default)]
struct Last(Mutex<BTreeMap<(u32, Option<String>), Reading>>);

impl Sink for Last {
    fn reading(&self, reading: Reading) {
        let Device { index, mig_uuid, .. } = &*reading.device;
        let key = (*index, mig_uuid.clone());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, reading);
    }

    fn event(&self, _event: Event) {}
}

pub(super) fn check(args: &DoctorArgs) -> Vec<Finding> {
    let mut options = NvmlOptions {
        lib_path: args.places.nvml_lib.clone(),
        interval: INTERVAL,
        start_timeout: Duration::from_secs(20),
        ..NvmlOptions::default()
    };
    options.xid.kernel_log = Some(args.places.kernel_log.clone());
    let last = Arc::new(Last::default());
    let source = match nvml::start(options, last.clone()) {
        Ok(source) => source,
        Err(error) => {
            let error = error.to_string();
            let (found, fix) = error.split_once("; ").unwrap_or((&error, "see the kernel's log"));
            return vec![Finding::new("driver", Verdict::Failed, found).fix(fix)];
        }
    };
    thread::sleep(READ_FOR);
    let status = source.status();
    drop(source);
    let mut findings = vec![driver(&status)];
    let readings = last.0.lock().unwrap_or_else(PoisonError::into_inner);
    findings.extend(readings.values().map(device));
    findings.push(kernel_log(&status, args));
    findings
}

fn driver(status: &NvmlStatus) -> Finding {
    let version = status.driver_version.as_deref().unwrap_or("of an unknown version");
    let found = format!("driver {version}, {} GPUs", status.devices);
    if status.devices == 0 {
        return Finding::new("driver", Verdict::Failed, found)
            .fix("the driver runs and lists no GPU: see lspci and the kernel's log; in a container, pass the devices in");
    }
    Finding::new("driver", Verdict::Ok, found)
}

fn device(reading: &Reading) -> Finding {
    let device = &*reading.device;
    let check = match &device.mig_uuid {
        None => format!("gpu {}", device.index),
        Some(_) => format!("mig {}", device.index),
    };
    let name = device.mig_uuid.as_ref().unwrap_or(&device.uuid);
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let (mut read, mut asked) = (0, 0);
    for metric in Metric::ALL {
        let reason = match reading.get(*metric) {
            Value::NotAsked => continue,
            Value::Is(_) => {
                (read, asked) = (read + 1, asked + 1);
                continue;
            }
            Value::Missing(reason) => reason,
        };
        asked += 1;
        missing.entry(words(reason)).or_default().push(metric.name());
    }
    let lists = missing.iter().map(|(reason, names)| format!("{reason}: {}", names.join(", ")));
    let lists: Vec<String> = lists.collect();
    let found = format!(
        "{}, {name}: {read} of {asked} metrics{}{}",
        device.model,
        if lists.is_empty() { "" } else { "; " },
        lists.join("; ")
    );
    let lost = missing.contains_key("the device is lost") || missing.contains_key("the driver hangs");
    if lost {
        return Finding::new(check, Verdict::Failed, found)
            .fix("see the kernel's log for NVRM lines; drain the node, then reset the GPU or reboot");
    }
    let is_missing = |metric| matches!(reading.get(metric), Value::Missing(MissingReason::NotSupported));
    if is_missing(Metric::SmActive) && device.mig_uuid.is_none() {
        return Finding::new(check, Verdict::Partly, found).fix(
            "SM, tensor and memory activity come from GPM, which this GPU or its MIG mode lacks (it begins with Hopper); run a \
             dcgm-exporter and the agent with --source dcgm to have them",
        );
    }
    let no_permission = missing.contains_key("no permission");
    let finding = Finding::new(check, if no_permission { Verdict::Partly } else { Verdict::Ok }, found);
    match no_permission {
        true => {
            finding.fix("let the agent's user read them, or take them as unknown; as root they may be there")
        }
        false => finding,
    }
}

fn words(reason: MissingReason) -> &'static str {
    match reason {
        MissingReason::NotSupported => "not supported",
        MissingReason::NoPermission => "no permission",
        MissingReason::Stale => "the driver hangs",
        MissingReason::DeviceLost => "the device is lost",
        MissingReason::Unspecified => "no usable answer",
    }
}

fn kernel_log(status: &NvmlStatus, args: &DoctorArgs) -> Finding {
    let path = args.places.kernel_log.display();
    match &status.kernel_log {
        None => Finding::new("xids", Verdict::Ok, format!("from NVML and {path}")),
        Some(why) => Finding::new("xids", Verdict::Partly, why.as_str()).fix(
            "give the agent CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG), or set kernel.dmesg_restrict=0; NVML alone \
             may count several XIDs as one",
        ),
    }
}
