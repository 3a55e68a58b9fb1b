//! Tidegate's own detector as a method under test.

use tidegate_insight::straggler::{Blame, Class, Detector, Settings, Signal, Stage};

use super::method::{Alarm, Level, Method, Target};
use super::scene::{Message, MessageBody};

/// The detector, with default thresholds unless given.
#[derive(Debug, Default)]
pub struct Tidegate {
    detector: Option<Detector>,
    settings: Settings,
    is_deaf: bool,
}

impl Tidegate {
    /// A new instance.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new instance with other thresholds.
    pub fn with(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// A new instance without step reports: it sees device windows alone.
    pub fn by_counters() -> Self {
        Self { is_deaf: true, ..Self::default() }
    }
}

/// A signal as an alarm. Closings, corrections and signals that blame nobody are none.
fn alarm(signal: &Signal) -> Option<Alarm> {
    let level = match signal.stage {
        Stage::Suspect => Level::Suspect,
        Stage::Confirmed => Level::Confirmed,
        Stage::Closed | Stage::Corrected => return None,
    };
    let target = match signal.blame {
        Blame::Rank(rank) => Target::Rank(rank),
        Blame::Node(node) => Target::Node(node),
        Blame::Role(role) => Target::Role(role),
        Blame::Fabric => Target::Fabric,
        Blame::Nobody => return None,
    };
    let class = Some(signal.class).filter(|&class| class != Class::Structural)?;
    let (key, said_us) = (signal.episode, signal.said_us);
    Some(Alarm { key, level, target, class: Some(class), said_us, heard_us: said_us })
}

impl Method for Tidegate {
    fn name(&self) -> &'static str {
        if self.is_deaf { "Tidegate, counters alone" } else { "Tidegate" }
    }

    fn suspects(&self) -> bool {
        true
    }

    fn observe(&mut self, message: &Message) {
        match (&message.body, &mut self.detector) {
            (MessageBody::Shape(shape), None) => {
                self.detector = Some(Detector::new(shape.clone(), self.settings))
            }
            (MessageBody::Shape(shape), Some(detector)) => detector.restart(shape.clone()),
            (MessageBody::Step(report), Some(detector)) if !self.is_deaf => detector.step(report),
            (MessageBody::Step(_), _) => {}
            (MessageBody::Device(window), Some(detector)) => detector.device(window),
            (MessageBody::Fault(fault), Some(detector)) => detector.fault(fault),
            (_, None) => {}
        }
    }

    fn advance(&mut self, watermark_us: i64) {
        if let Some(detector) = &mut self.detector {
            detector.advance(watermark_us);
        }
    }

    fn take(&mut self) -> Vec<Alarm> {
        let signals = self.detector.as_mut().map(Detector::take).unwrap_or_default();
        signals.iter().filter_map(alarm).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::scene::{Injected, Place, Plan, Regime, Stream};

    /// A job of four nodes: one device runs hot from 600 to 1,500 s, another is slow and shows
    /// nothing.
    fn hot_and_silent() -> Stream {
        let plan =
            Plan { nodes: 4, stages: 1, restarts_s: Vec::new(), ..Plan::draw(5, Regime::A, Some(0.6)) };
        let fault = |class, device, evidence| Injected {
            class,
            place: Place::Device(device),
            start_s: 600.0,
            end_s: 1_500.0,
            size: 0.3,
            evidence,
        };
        Stream::new(plan, vec![fault(Class::ComputeThermal, 9, true), fault(Class::ComputeSilent, 20, false)])
    }

    #[test]
    fn counters_alone_accuse_only_of_what_they_show() {
        let mut method = Tidegate::by_counters();
        let mut said = Vec::new();
        for message in hot_and_silent() {
            method.advance(message.arrival_us - 2_000_000);
            method.observe(&message);
            said.extend(method.take());
        }
        assert!(said.iter().all(|alarm| alarm.target == Target::Rank(9)), "{said:?}");
        assert!(said.iter().any(|alarm| alarm.level == Level::Confirmed), "{said:?}");
    }

    #[test]
    fn only_what_blames_somebody_is_an_alarm() {
        let signal = |stage, class, blame| Signal {
            episode: 4,
            stage,
            class,
            posterior: 0.9,
            blame,
            pipeline_stage: None,
            since_us: 1,
            said_us: 9,
            excess: 0.2,
            lost_gpu_ms: 0,
            evidence: Vec::new(),
        };
        let said = alarm(&signal(Stage::Confirmed, Class::Host, Blame::Node(7))).unwrap();
        assert_eq!((said.key, said.level, said.target), (4, Level::Confirmed, Target::Node(7)));
        assert_eq!((said.class, said.said_us), (Some(Class::Host), 9));
        assert_eq!(alarm(&signal(Stage::Closed, Class::Host, Blame::Node(7))), None);
        assert_eq!(alarm(&signal(Stage::Corrected, Class::Host, Blame::Node(7))), None);
        assert_eq!(alarm(&signal(Stage::Confirmed, Class::Structural, Blame::Role(1))), None);
        assert_eq!(alarm(&signal(Stage::Confirmed, Class::Data, Blame::Nobody)), None);
    }
}
