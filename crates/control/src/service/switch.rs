//! The kill switch, as it is found and journaled. Where the site has signers, it is on only by a
//! person's signature.
//!
//! On such a site any other content of the file means off, so anybody who can write it may stop
//! the autopilot. The journal records when the switch was last off. A signature older than that
//! does not switch it on again: nobody can replay one.

use chrono::{DateTime, TimeDelta, Utc};
use tidegate_autopilot::executor::Switched;
use tidegate_autopilot::guard::KillSwitch;

use crate::authority::{SignedText, Signers};
use crate::control_folder::ControlFolder;

/// How far the clock of whoever signed may be ahead.
const CLOCKS: TimeDelta = TimeDelta::minutes(5);

/// The switch as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// What the executor goes by.
    pub switch: KillSwitch,
    /// What is to be journaled, if it differs from what was found last.
    pub news: Option<Switched>,
    /// Why a switch that says `on` is off.
    pub why: Option<String>,
}

/// What is to be journaled where nobody signs: that the switch is another than when it was found
/// last. It is off before it was ever found.
pub(super) fn unsigned_news(
    control: &ControlFolder,
    last: Option<&Switched>,
    now: DateTime<Utc>,
) -> Option<Switched> {
    let on = control.switch() == KillSwitch::On;
    let by = control.describe().unwrap_or_default().replace('\n', " ");
    let news = Switched { on, by, sequence: now.timestamp_micros(), signature: None };
    (on != last.is_some_and(|last| last.on)).then_some(news)
}

/// Reads the switch; `last` is as the journal knows it.
pub(super) fn find(
    control: &ControlFolder,
    signers: &Signers,
    cluster: &str,
    last: Option<&Switched>,
    now: DateTime<Utc>,
) -> Found {
    let off = |switch: KillSwitch, why: Option<String>| {
        let by = control.describe().unwrap_or_default();
        let sequence = now.timestamp_micros();
        let news = last.is_none_or(|last| last.on);
        Found { switch, why, news: news.then_some(Switched { on: false, by, sequence, signature: None }) }
    };
    let found = control.switch();
    if found != KillSwitch::On {
        return off(found, None);
    }
    let refused = |why: String| off(KillSwitch::Paused, Some(why));
    let Some(signed) = control.signed_switch() else {
        return refused("nobody signed it; tidegate autopilot resume --key KEY --cluster NAME".to_owned());
    };
    match check(signers, &signed, cluster, last, now) {
        Err(why) => refused(why),
        Ok(on) => {
            let is_new = last.is_none_or(|last| last.sequence != on.sequence);
            Found { switch: KillSwitch::On, news: is_new.then_some(on), why: None }
        }
    }
}

/// The switch that a signed text means, if it counts after the `last` one that the journal knows.
///
/// # Errors
/// Why it does not count at `now`.
pub fn check(
    signers: &Signers,
    signed: &SignedText,
    cluster: &str,
    last: Option<&Switched>,
    now: DateTime<Utc>,
) -> Result<Switched, String> {
    let (signer, statement) = signers.switch(signed, cluster, now)?;
    let sequence = statement.given_us;
    if sequence > (now + CLOCKS).timestamp_micros() {
        return Err("it was signed later than now; set the clocks".to_owned());
    }
    if last.is_some_and(|last| sequence < last.sequence || (sequence == last.sequence && !last.on)) {
        return Err("it was signed before the autopilot was last switched; sign a new one".to_owned());
    }
    Ok(Switched { on: true, by: signer.to_string(), sequence, signature: Some(signed.signature.clone()) })
}
