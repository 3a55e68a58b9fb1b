//! What a list of pods says of devices.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::v1::{ClaimResource, ContainerDevices, PodResources};

/// Longest name of a pod or device that is kept, bytes; Kubernetes allows 253 for each part.
const MAX_NAME_BYTES: usize = 512;
/// Driver of NVIDIA's devices in dynamic resource allocation.
const DRA_DRIVER: &str = "gpu.nvidia.com";
const GPU_MILLI: u32 = 1_000;

/// A device that a pod holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Held {
    /// `NAMESPACE/POD`.
    pub job_id: String,
    pub device: HeldDevice,
    pub quality: Quality,
    /// Thousandths of the device, where they are known.
    pub share_milli: Option<u32>,
}

/// A device as whoever gave it names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HeldDevice {
    /// `GPU-…`.
    Gpu(String),
    /// `MIG-…`.
    Mig(String),
    /// A name that does not tell the UUID: `DRIVER/POOL/DEVICE` of a claim, or `nvidia0` of some
    /// device plugins.
    Named(String),
}

/// As in `JobEvent.hold_quality`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Quality {
    Exact,
    SharedEstimated,
    Unknown,
}

impl Quality {
    /// The spelling of the contract.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "EXACT",
            Self::SharedEstimated => "SHARED_ESTIMATED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// How many replicas a shared device is offered as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaCounts(HashMap<String, u32>);

impl ReplicaCounts {
    /// Counts the replicas among all devices of the node.
    pub fn of(devices: &[ContainerDevices]) -> Self {
        let mut counts = HashMap::new();
        for id in devices
            .iter()
            .filter(|devices| is_gpu(&devices.resource_name))
            .flat_map(|devices| &devices.device_ids)
        {
            if let (uuid, Some(_)) = split_replica(id) {
                *counts.entry(uuid.to_owned()).or_default() += 1;
            }
        }
        Self(counts)
    }
}

/// Whether any pod holds a replica of a shared device.
pub(super) fn any_replica(pods: &[PodResources]) -> bool {
    let devices = pods.iter().flat_map(|pod| &pod.containers).flat_map(|container| &container.devices);
    let mut ids =
        devices.filter(|devices| is_gpu(&devices.resource_name)).flat_map(|devices| &devices.device_ids);
    ids.any(|id| split_replica(id).1.is_some())
}

/// What the pods hold, each device of a pod once, in a fixed order.
///
/// Devices shared by time-slicing or MPS are given out as replicas `UUID::N`. A pod with k of n
/// replicas has k/n of the device; that is what it was promised, not what it uses. Without n the
/// share is unknown.
pub fn held(pods: &[PodResources], replicas: &ReplicaCounts) -> Vec<Held> {
    // Replicas held, 0 for a device that was given out whole.
    let mut found: BTreeMap<(String, HeldDevice), u32> = BTreeMap::new();
    for pod in pods {
        let job_id = format!("{}/{}", pod.namespace, pod.name);
        if pod.name.is_empty() || job_id.len() > MAX_NAME_BYTES || job_id.chars().any(char::is_control) {
            tracing::warn!(?job_id, "a pod's name cannot be used; what it holds is not recorded");
            continue;
        }
        for container in &pod.containers {
            for devices in container.devices.iter().filter(|devices| is_gpu(&devices.resource_name)) {
                for id in &devices.device_ids {
                    let (name, replica) = split_replica(id);
                    if let Some(device) = device(name) {
                        *found.entry((job_id.clone(), device)).or_default() += u32::from(replica.is_some());
                    }
                }
            }
            let claims = container.dynamic_resources.iter().flat_map(|claim| &claim.claim_resources);
            for device in claims.filter_map(claimed) {
                found.entry((job_id.clone(), device)).or_default();
            }
        }
    }
    found.into_iter().map(|((job_id, device), held)| describe(job_id, device, held, replicas)).collect()
}

fn describe(job_id: String, device: HeldDevice, held: u32, replicas: &ReplicaCounts) -> Held {
    let uuid = match &device {
        HeldDevice::Gpu(uuid) | HeldDevice::Mig(uuid) => uuid,
        HeldDevice::Named(_) => return Held { job_id, device, quality: Quality::Unknown, share_milli: None },
    };
    if held == 0 {
        return Held { job_id, device, quality: Quality::Exact, share_milli: Some(GPU_MILLI) };
    }
    let offered = replicas.0.get(uuid).copied().filter(|&offered| offered >= held);
    let share_milli =
        offered.map(|offered| (u64::from(GPU_MILLI) * u64::from(held) / u64::from(offered)) as u32);
    Held { job_id, device, quality: Quality::SharedEstimated, share_milli }
}

/// `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-1g.10gb` and the like.
fn is_gpu(resource: &str) -> bool {
    resource
        .strip_prefix("nvidia.com/")
        .is_some_and(|name| name == "gpu" || name.starts_with("gpu.") || name.starts_with("mig-"))
}

/// UUID and replica of `UUID::3`.
fn split_replica(id: &str) -> (&str, Option<&str>) {
    id.split_once("::").map_or((id, None), |(uuid, replica)| (uuid, Some(replica)))
}

fn device(name: &str) -> Option<HeldDevice> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        tracing::warn!(?name, "a device's name cannot be used");
        return None;
    }
    let name = name.to_owned();
    Some(match () {
        () if name.starts_with("GPU-") => HeldDevice::Gpu(name),
        () if name.starts_with("MIG-") => HeldDevice::Mig(name),
        () => HeldDevice::Named(name),
    })
}

/// The kubelet knows a claimed device by its place in a ResourceSlice; its UUID stands there, in
/// the cluster's API.
fn claimed(claim: &ClaimResource) -> Option<HeldDevice> {
    let ours = claim.driver_name == DRA_DRIVER && !claim.device_name.is_empty();
    let name = format!("{}/{}/{}", claim.driver_name, claim.pool_name, claim.device_name);
    (ours && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control))
        .then_some(HeldDevice::Named(name))
}
