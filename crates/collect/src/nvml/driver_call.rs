//! Driver calls: their names, their refusals, and the conversion of answers to values.

use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;

use crate::reading::{Metric, MissingReason, Reading, Value};

/// How long a refusal is cached before the driver is asked again.
const RETRY_NOT_SUPPORTED: Duration = Duration::from_secs(300);
const RETRY_NO_PERMISSION: Duration = Duration::from_secs(60);

/// Defines [`Call`] and the list of its variants, in one order.
macro_rules! calls {
    ($($name:ident),+ $(,)?) => {
        /// The driver calls, to cache refusals of each and to name the one that hangs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Call {
            $($name),+
        }

        impl Call {
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];
            const COUNT: usize = Self::ALL.len();
        }
    };
}

calls! {
    Idle,
    Find,
    Utilization,
    Memory,
    Power,
    PowerLimit,
    Temperature,
    SmClock,
    SmClockMax,
    MemoryClock,
    MemoryClockMax,
    Throttle,
    Encoder,
    Decoder,
    Fields,
    SlowFields,
    EccCorrected,
    EccUncorrected,
    NvlinkErrors,
    Gpm,
    GpmSupport,
    MigMode,
    MigList,
    Compute,
    Graphics,
    Mps,
}

/// A failure beyond a single value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DriverError {
    /// The device is gone or must be reset.
    DeviceLost(String),
    /// The library does not match the running driver, or there is no driver.
    Driver(String),
}

/// A value, or why it is missing.
pub(super) type Answer<T> = Result<T, MissingReason>;

/// Classifies an error: a missing value, or a failure of device or driver.
pub(super) fn refusal(error: &NvmlError) -> Result<MissingReason, DriverError> {
    match error {
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            Ok(MissingReason::NotSupported)
        }
        NvmlError::NoPermission => Ok(MissingReason::NoPermission),
        NvmlError::GpuLost | NvmlError::ResetRequired => Err(DriverError::DeviceLost(error.to_string())),
        NvmlError::LibRmVersionMismatch | NvmlError::DriverNotLoaded | NvmlError::Uninitialized => {
            Err(DriverError::Driver(error.to_string()))
        }
        // NoData, Timeout, Unknown, or an answer unknown to nvml-wrapper: missing now, and asked
        // again.
        _ => Ok(MissingReason::Unspecified),
    }
}

/// Caches permanent refusals per call, so that they are retried only now and then.
#[derive(Debug, Default)]
pub(super) struct RefusalCache([Option<(MissingReason, Instant)>; Call::COUNT]);

impl RefusalCache {
    /// Calls the driver, unless a cached refusal is still valid.
    pub(super) fn call<T>(
        &mut self,
        call: Call,
        now: Instant,
        request: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Answer<T>, DriverError> {
        let known = &mut self.0[call as usize];
        if let Some((reason, until)) = *known
            && now < until
        {
            return Ok(Err(reason));
        }
        *known = None;
        match request() {
            Ok(value) => Ok(Ok(value)),
            Err(error) => {
                let reason = refusal(&error)?;
                *known = retry_after(reason).map(|time| (reason, now + time));
                Ok(Err(reason))
            }
        }
    }
}

/// How long a refusal is cached, if at all.
pub(super) fn retry_after(reason: MissingReason) -> Option<Duration> {
    match reason {
        MissingReason::NotSupported => Some(RETRY_NOT_SUPPORTED),
        MissingReason::NoPermission => Some(RETRY_NO_PERMISSION),
        _ => None,
    }
}

/// Converts an answer to a value of a reading.
pub(super) fn value(answer: Answer<impl TryInto<i64>>) -> Value {
    match answer {
        Ok(number) => number.try_into().map_or(Value::Missing(MissingReason::Unspecified), Value::Is),
        Err(reason) => Value::Missing(reason),
    }
}

/// Percent as parts per million.
pub(super) fn ppm(percent: Answer<u32>) -> Value {
    value(percent.map(|p| i64::from(p) * 10_000))
}

/// Sets the three framebuffer metrics.
pub(super) fn set_memory(reading: &mut Reading, memory: Answer<MemoryInfo>) {
    let of = |part: fn(&MemoryInfo) -> u64| value(memory.as_ref().map(part).map_err(|reason| *reason));
    reading.set(Metric::FramebufferUsed, of(|m| m.used));
    reading.set(Metric::FramebufferReserved, of(|m| m.reserved));
    reading.set(Metric::FramebufferTotal, of(|m| m.total));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_cached_for_a_while() {
        let (mut refusals, now) = (RefusalCache::default(), Instant::now());
        let mut calls = 0;
        let mut ask = |refusals: &mut RefusalCache, at, answer: Result<u32, NvmlError>| {
            refusals.call(Call::Power, at, || {
                calls += 1;
                answer
            })
        };
        assert_eq!(
            ask(&mut refusals, now, Err(NvmlError::NotSupported)),
            Ok(Err(MissingReason::NotSupported))
        );
        assert_eq!(ask(&mut refusals, now, Ok(1)), Ok(Err(MissingReason::NotSupported)));
        assert_eq!(ask(&mut refusals, now + RETRY_NOT_SUPPORTED, Ok(1)), Ok(Ok(1)));
        assert_eq!(ask(&mut refusals, now, Err(NvmlError::Unknown)), Ok(Err(MissingReason::Unspecified)));
        assert_eq!(ask(&mut refusals, now, Ok(2)), Ok(Ok(2)));
        assert!(matches!(ask(&mut refusals, now, Err(NvmlError::GpuLost)), Err(DriverError::DeviceLost(_))));
        assert!(matches!(
            ask(&mut refusals, now, Err(NvmlError::LibRmVersionMismatch)),
            Err(DriverError::Driver(_))
        ));
        assert_eq!(calls, 6);
    }

    #[test]
    fn numbers_out_of_range_are_missing() {
        assert_eq!(value(Ok(u64::MAX)), Value::Missing(MissingReason::Unspecified));
        assert_eq!(ppm(Ok(100)), Value::Is(1_000_000));
    }
}
