//! Names of GPUs, as people and programs of a node write them.

use crate::json_fields::MAX_NAME_BYTES;

/// A device as a prolog or a training job names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GpuName {
    /// Number in the node.
    Index(u32),
    /// `GPU-…` or `MIG-…`.
    Uuid(String),
}

impl GpuName {
    /// Parses `0`, `GPU-…` or `MIG-…`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with("GPU-") || text.starts_with("MIG-") {
            return match text.len() <= MAX_NAME_BYTES {
                true => Ok(Self::Uuid(text.to_owned())),
                false => Err(format!("a UUID is longer than {MAX_NAME_BYTES} bytes")),
            };
        }
        text.parse()
            .map(Self::Index)
            .map_err(|_| format!("{text:?} is no GPU: write its number in the node, or its UUID"))
    }
}
