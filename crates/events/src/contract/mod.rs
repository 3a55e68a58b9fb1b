//! The contract of this build, and what a change of it would break.

mod changes;

use std::fmt;
use std::sync::LazyLock;

pub use prost_reflect::DescriptorPool;
use prost_reflect::{Cardinality, FieldDescriptor, Kind};

pub use self::changes::changes;

/// The files of `schemas/`, as they were when this was built.
///
/// # Panics
/// Never: the build has made what is read here.
pub fn built_in() -> &'static DescriptorPool {
    static CONTRACT: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let descriptors: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/contract.bin"));
        DescriptorPool::decode(descriptors).expect("the build linked schemas/*.proto")
    });
    &CONTRACT
}

/// What a field looks like to readers, e.g. `optional uint64`; `plain` is a field that is never
/// absent, only zero.
pub fn shape(field: &FieldDescriptor) -> String {
    let label = match field.cardinality() {
        Cardinality::Required => "required",
        Cardinality::Repeated if field.is_packed() => "packed",
        Cardinality::Repeated => "repeated",
        Cardinality::Optional if field.supports_presence() => "optional",
        Cardinality::Optional => "plain",
    };
    match field.kind() {
        Kind::Message(message) => format!("{label} {}", message.full_name()),
        Kind::Enum(kinds) => format!("{label} {}", kinds.full_name()),
        scalar => format!("{label} {}", format!("{scalar:?}").to_lowercase()),
    }
}

/// What a change means for the events that exist and the programs that read and write them; the
/// worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Something that exists is read wrongly or not at all.
    Breaks,
    /// It can be done, with care.
    Warns,
    /// Existing programs are not affected.
    Adds,
}

/// One difference between two states of the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Who is affected, and how.
    pub effect: Effect,
    /// The `.proto` file, by its name in the folder.
    pub file: String,
    /// Message or enum, and field or value, e.g. `JobEvent.gpus_milli`; empty for a file as a
    /// whole.
    pub place: String,
    /// What is different, what that does, and how to mend it.
    pub what: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, what, .. } = self;
        match place.as_str() {
            "" => write!(f, "{file}: {what}"),
            place => write!(f, "{file}: {place}: {what}"),
        }
    }
}
