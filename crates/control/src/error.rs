//! The error of the autopilot's service and its files.

use std::error::Error;

/// Why the service cannot start or go on. Its message says what, where, and how to fix it.
pub type ServiceError = Box<dyn Error + Send + Sync>;
