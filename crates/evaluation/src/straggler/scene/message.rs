//! What a scene's job sends: shapes, step reports, device windows and faults, each with its
//! arrival.

use tidegate_insight::straggler::{DeviceWindow, Fault, JobShape, StepReport};

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// When it arrives, on the receiver's clock, µs since 1970.
    pub arrival_us: i64,
    /// Content.
    pub body: MessageBody,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageBody {
    /// An attempt starts.
    Shape(JobShape),
    /// A rank's step.
    Step(StepReport),
    /// A device's window.
    Device(DeviceWindow),
    /// A device's fault.
    Fault(Fault),
}
