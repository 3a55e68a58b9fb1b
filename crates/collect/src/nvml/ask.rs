//! Calls of the driver and what their refusals mean.

use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;

use crate::reading::{MissingReason, Value};

/// How long a refusal is believed before the driver is asked again.
const BELIEVE_NOT_SUPPORTED: Duration = Duration::from_secs(300);
const BELIEVE_NO_PERMISSION: Duration = Duration::from_secs(60);

/// Calls, for what is remembered of each and for who asks which one hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Call {
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

impl Call {
    const COUNT: usize = Self::Mps as usize + 1;

    pub(super) const ALL: [Self; Self::COUNT] = {
        use Call::*;
        [
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
        ]
    };
}

/// What makes a device or the whole driver unusable, beside a value that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The device is gone, or must be reset before it can be used.
    DeviceLost(String),
    /// The library does not fit the driver that runs, or there is none.
    Driver(String),
}

/// A value, or why it is not there.
pub(super) type Answer<T> = Result<T, MissingReason>;

/// What an error says: of the value alone, or of more.
pub(super) fn refusal(error: &NvmlError) -> Result<MissingReason, Trouble> {
    match error {
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            Ok(MissingReason::NotSupported)
        }
        NvmlError::NoPermission => Ok(MissingReason::NoPermission),
        NvmlError::GpuLost | NvmlError::ResetRequired => Err(Trouble::DeviceLost(error.to_string())),
        NvmlError::LibRmVersionMismatch | NvmlError::DriverNotLoaded | NvmlError::Uninitialized => {
            Err(Trouble::Driver(error.to_string()))
        }
        // NoData, Timeout, Unknown, an answer that the crate does not know: not known, and asked
        // again.
        _ => Ok(MissingReason::Unspecified),
    }
}

/// Remembers of each call that it was refused for good, so that it is asked again only now and
/// then.
#[derive(Debug, Default)]
pub(super) struct Memory([Option<(MissingReason, Instant)>; Call::COUNT]);

impl Memory {
    /// Asks, unless a refusal is still believed.
    pub(super) fn ask<T>(
        &mut self,
        call: Call,
        now: Instant,
        ask: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Answer<T>, Trouble> {
        let known = &mut self.0[call as usize];
        if let Some((reason, until)) = *known
            && now < until
        {
            return Ok(Err(reason));
        }
        *known = None;
        match ask() {
            Ok(value) => Ok(Ok(value)),
            Err(error) => {
                let reason = refusal(&error)?;
                *known = believe(reason).map(|time| (reason, now + time));
                Ok(Err(reason))
            }
        }
    }
}

/// How long a refusal is believed, if at all.
pub(super) fn believe(reason: MissingReason) -> Option<Duration> {
    match reason {
        MissingReason::NotSupported => Some(BELIEVE_NOT_SUPPORTED),
        MissingReason::NoPermission => Some(BELIEVE_NO_PERMISSION),
        _ => None,
    }
}

/// A value of a reading.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_at_their_places() {
        assert!(Call::ALL.iter().enumerate().all(|(place, call)| *call as usize == place));
    }

    #[test]
    fn a_refusal_is_believed_for_a_while() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let mut asked = 0;
        let mut ask = |memory: &mut Memory, at, answer: Result<u32, NvmlError>| {
            memory.ask(Call::Power, at, || {
                asked += 1;
                answer
            })
        };
        assert_eq!(ask(&mut memory, now, Err(NvmlError::NotSupported)), Ok(Err(MissingReason::NotSupported)));
        assert_eq!(ask(&mut memory, now, Ok(1)), Ok(Err(MissingReason::NotSupported)));
        assert_eq!(ask(&mut memory, now + BELIEVE_NOT_SUPPORTED, Ok(1)), Ok(Ok(1)));
        assert_eq!(ask(&mut memory, now, Err(NvmlError::Unknown)), Ok(Err(MissingReason::Unspecified)));
        assert_eq!(ask(&mut memory, now, Ok(2)), Ok(Ok(2)));
        assert!(matches!(ask(&mut memory, now, Err(NvmlError::GpuLost)), Err(Trouble::DeviceLost(_))));
        assert!(matches!(
            ask(&mut memory, now, Err(NvmlError::LibRmVersionMismatch)),
            Err(Trouble::Driver(_))
        ));
        assert_eq!(asked, 6);
    }

    #[test]
    fn numbers_that_do_not_fit_are_not_known() {
        assert_eq!(value(Ok(u64::MAX)), Value::Missing(MissingReason::Unspecified));
        assert_eq!(ppm(Ok(100)), Value::Is(1_000_000));
    }
}
