//! Interprets the kubelet's list of pods as holds.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::v1::{ClaimResource, ContainerDevices, PodResources};

/// Longest accepted name of a pod or device, bytes; Kubernetes allows 253 for each part.
const MAX_NAME_BYTES: usize = 512;
/// NVIDIA's driver in dynamic resource allocation.
const DRA_DRIVER: &str = "gpu.nvidia.com";
const GPU_MILLI: u32 = 1_000;

/// A device that a pod holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodHold {
    /// `NAMESPACE/POD`.
    pub job_id: String,
    /// The device.
    pub device: PodDevice,
    /// How well the hold is known.
    pub quality: Quality,
    /// Thousandths of the device, if known.
    pub share_milli: Option<u32>,
}

/// A device as its allocator names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodDevice {
    /// `GPU-…`.
    Gpu(String),
    /// `MIG-…`.
    Mig(String),
    /// A name without UUID: `DRIVER/POOL/DEVICE` of a claim, or `nvidia0` of some device plugins.
    Named(String),
}

/// How well a hold is known; as in `JobEvent.hold_quality`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Quality {
    /// The whole device.
    Exact,
    /// A share, estimated from replicas.
    SharedEstimated,
    /// The device cannot be identified.
    Unknown,
}

impl Quality {
    /// The contract's text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "EXACT",
            Self::SharedEstimated => "SHARED_ESTIMATED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// Number of replicas of each shared device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaCounts(HashMap<String, u32>);

impl ReplicaCounts {
    /// Counts replicas among all devices of the node.
    pub fn count(devices: &[ContainerDevices]) -> Self {
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

/// Holds of all pods, each device of a pod once, in a fixed order.
///
/// Devices shared by time-slicing or MPS are allocated as replicas `UUID::N`. A pod with k of n
/// replicas holds k/n of the device, which is its promised share, not its use. If n is unknown, so
/// is the share.
pub fn pod_holds(pods: &[PodResources], replicas: &ReplicaCounts) -> Vec<PodHold> {
    // Replicas held; 0 for a device held whole.
    let mut found: BTreeMap<(String, PodDevice), u32> = BTreeMap::new();
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

fn describe(job_id: String, device: PodDevice, held: u32, replicas: &ReplicaCounts) -> PodHold {
    let uuid = match &device {
        PodDevice::Gpu(uuid) | PodDevice::Mig(uuid) => uuid,
        PodDevice::Named(_) => {
            return PodHold { job_id, device, quality: Quality::Unknown, share_milli: None };
        }
    };
    if held == 0 {
        return PodHold { job_id, device, quality: Quality::Exact, share_milli: Some(GPU_MILLI) };
    }
    let offered = replicas.0.get(uuid).copied().filter(|&offered| offered >= held);
    let share_milli =
        offered.map(|offered| (u64::from(GPU_MILLI) * u64::from(held) / u64::from(offered)) as u32);
    PodHold { job_id, device, quality: Quality::SharedEstimated, share_milli }
}

/// `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-1g.10gb` and the like.
fn is_gpu(resource: &str) -> bool {
    resource
        .strip_prefix("nvidia.com/")
        .is_some_and(|name| name == "gpu" || name.starts_with("gpu.") || name.starts_with("mig-"))
}

/// Splits `UUID::3` into UUID and replica.
fn split_replica(id: &str) -> (&str, Option<&str>) {
    id.split_once("::").map_or((id, None), |(uuid, replica)| (uuid, Some(replica)))
}

fn device(name: &str) -> Option<PodDevice> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        tracing::warn!(?name, "a device's name cannot be used");
        return None;
    }
    let name = name.to_owned();
    Some(match () {
        () if name.starts_with("GPU-") => PodDevice::Gpu(name),
        () if name.starts_with("MIG-") => PodDevice::Mig(name),
        () => PodDevice::Named(name),
    })
}

/// The kubelet names a claimed device by its place in a ResourceSlice. Its UUID is only there, in
/// the cluster's API.
fn claimed(claim: &ClaimResource) -> Option<PodDevice> {
    let ours = claim.driver_name == DRA_DRIVER && !claim.device_name.is_empty();
    let name = format!("{}/{}/{}", claim.driver_name, claim.pool_name, claim.device_name);
    (ours && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control))
        .then_some(PodDevice::Named(name))
}
