//! Cause of an episode: the rules of evidence. Weights are logarithms of likelihood ratios
//! (field/analytics A.4 rule 10, first table).

use super::device::{DeviceComparison, Devices};
use super::episode::{Kind, Subject};
use super::fusion::ClassScores;
use super::layout::Layout;
use super::settings::Settings;
use super::signal::{Blame, Class, Evidence};

/// Standard score from which link retries, or the marks of a network card, are evidence.
const RETRIES_SCORE: f64 = 6.0;
const MARKS_SCORE: f64 = 10.0;

/// What is known about an episode when it is classified.
pub(super) struct Facts<'a> {
    pub layout: &'a Layout,
    pub devices: &'a Devices,
    pub settings: &'a Settings,
    pub kind: Kind,
    pub subject: Subject,
    /// Natural logarithm of the time over the baseline (data: share of the step).
    pub excess: f64,
    pub since_us: i64,
    pub now_us: i64,
    /// Change of the whole job's work at the same time.
    pub level_shift: f64,
    /// Another open episode began at the same time.
    pub companion: bool,
}

impl Facts<'_> {
    /// Class, posterior, evidence and blame.
    pub fn weigh(&self) -> (Class, f64, Vec<Evidence>, Blame) {
        let mut scores = ClassScores::new();
        let mut blame = self.own_blame();
        match (self.kind, self.subject) {
            (Kind::Transfer, _) => self.transfer(&mut scores, &mut blame),
            (Kind::Data, _) => scores.add("waits_for_input", self.excess, 4.0, &[Class::Data]),
            (_, Subject::Rank(rank)) => self.rank(&mut scores, rank),
            (_, subject) => self.together(&mut scores, subject),
        }
        let (class, posterior, evidence) = scores.close();
        match (class, blame) {
            (Class::Structural, _) => (class, posterior, evidence, Blame::Nobody),
            // Marks name a network card's node. Without a faulty link, no single rank is to blame
            // for the network.
            (Class::Communication, Blame::Rank(_)) => (class, posterior, evidence, Blame::Fabric),
            (_, blame) => (class, posterior, evidence, blame),
        }
    }

    fn own_blame(&self) -> Blame {
        match self.subject {
            Subject::Rank(rank) => Blame::Rank(rank),
            Subject::Node(node) => Blame::Node(self.layout.node_ids[node as usize]),
            Subject::Role(role) => {
                Blame::Node(self.layout.node_ids[self.layout.home_node(role as usize).0 as usize])
            }
            Subject::Job => Blame::Fabric,
        }
    }

    fn compare(&self, rank: u32) -> DeviceComparison {
        self.devices.compare(self.layout, rank, self.since_us, self.now_us)
    }

    /// One rank computes slower than its peers.
    fn rank(&self, scores: &mut ClassScores, rank: u32) {
        use Class::{ComputeSilent, ComputeThermal, Host, Link};
        scores.add("slower_than_peers", self.excess, 4.0, &[ComputeThermal, ComputeSilent, Link, Host]);
        scores.add("alone_on_its_node", 1.0, -3.0, &[Host]);
        let shown = self.compare(rank);
        let mut thermal = false;
        if let Some(ratio) = shown.clock_ratio.filter(|ratio| *ratio < self.settings.clock_ratio) {
            scores.add("clock_below_peers", ratio, 3.0, &[ComputeThermal]);
            thermal = true;
        }
        if let Some(share) = shown.slowdown.filter(|share| *share > self.settings.slowdown_share) {
            scores.add("slowed_down", share, 3.0, &[ComputeThermal]);
            thermal = true;
        }
        if let Some(share) = shown.power_cap.filter(|share| *share > 0.5) {
            scores.add("power_cap_alone", share, 1.0, &[ComputeThermal]);
        }
        if !thermal {
            match (shown.clock_ratio, shown.slowdown) {
                (None, None) => scores.add("no_counters", 0.0, -1.0, &[ComputeThermal]),
                (Some(ratio), _) => scores.add("clock_as_peers", ratio, -3.0, &[ComputeThermal]),
                (None, Some(share)) => scores.add("not_slowed_down", share, -3.0, &[ComputeThermal]),
            }
        }
        if let Some(width) = shown.width.filter(|width| *width < 0.9) {
            scores.add("link_narrower", width, 3.0, &[Link]);
        }
        if let Some(score) = shown.retries.filter(|score| *score > RETRIES_SCORE) {
            scores.add("link_retries", score, 2.0, &[Link]);
        }
        let from_us = self.since_us.saturating_sub(self.settings.fault_age_us);
        for fault in self.devices.faults(rank, from_us, self.now_us).take(4) {
            // 74 is an NVLink error. The others implicate the device, without a cause for its
            // slowness.
            let classes: &[Class] =
                if fault.xid == Some(74) { &[Link] } else { &[ComputeThermal, ComputeSilent] };
            match fault.xid {
                Some(code) => scores.add("xid", f64::from(code), 3.0, classes),
                None => scores.add("fault_without_code", 1.0, 3.0, classes),
            }
        }
    }

    /// The ranks of a node, or of a role that is one node, compute slower together.
    fn together(&self, scores: &mut ClassScores, subject: Subject) {
        use Class::{ComputeSilent, ComputeThermal, Host, Link};
        scores.add("slower_than_peers", self.excess, 4.0, &[ComputeThermal, ComputeSilent, Link, Host]);
        let ranks = match subject {
            Subject::Node(node) => &self.layout.nodes[node as usize],
            Subject::Role(role) => &self.layout.roles[role as usize],
            Subject::Rank(_) | Subject::Job => return,
        };
        let slowed = ranks
            .iter()
            .filter_map(|&rank| self.compare(rank).slowdown)
            .filter(|share| *share > self.settings.slowdown_share)
            .count();
        if slowed * 2 > ranks.len() {
            scores.add("slowed_down_together", slowed as f64, 3.0, &[ComputeThermal]);
        } else {
            scores.add("slow_together", ranks.len() as f64, 3.0, &[Host]);
        }
    }

    /// The transfer itself takes longer; waits are subtracted already.
    fn transfer(&self, scores: &mut ClassScores, blame: &mut Blame) {
        scores.add("transfer_slower", self.excess, 4.0, &[Class::Communication, Class::Link]);
        if self.level_shift >= 0.05 {
            scores.add("job_wide_change", self.level_shift, 6.0, &[Class::Structural]);
        }
        if self.companion {
            scores.add("follows_another_event", 1.0, 6.0, &[Class::Structural]);
        }
        let retries = (0..self.layout.ranks() as u32)
            .filter_map(|rank| Some((self.compare(rank).retries?, rank)))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        if let Some((score, rank)) = retries.filter(|(score, _)| *score > RETRIES_SCORE) {
            scores.add("link_retries", score, 3.0, &[Class::Link]);
            *blame = Blame::Rank(rank);
        }
        self.network(scores, blame);
    }

    /// Blames the node whose network cards are marked while others' are not; where all are marked,
    /// the fabric.
    fn network(&self, scores: &mut ClassScores, blame: &mut Blame) {
        let mut marks: Vec<(f64, usize)> = (0..self.layout.nodes.len())
            .filter_map(|node| {
                Some((self.devices.marks(self.layout, node, self.since_us, self.now_us)?, node))
            })
            .collect();
        marks.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let Some(&(score, node)) = marks.first().filter(|(score, _)| *score > MARKS_SCORE) else { return };
        let rest = marks.get(1 + (marks.len() - 1) / 2).map_or(0.0, |(score, _)| *score);
        if rest > 0.33 * score {
            scores.add("network_marks_everywhere", rest, 3.0, &[Class::Communication]);
            return;
        }
        scores.add("network_marks", score, 3.0, &[Class::Communication]);
        if !matches!(blame, Blame::Rank(_)) {
            *blame = Blame::Node(self.layout.node_ids[node]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::{DeviceWindow, JobShape};
    use super::*;

    fn weigh(devices: &Devices, kind: Kind, subject: Subject, level_shift: f64) -> (Class, Blame) {
        let shape = JobShape {
            attempt: 0,
            node: (0..16).map(|rank| 100 + rank / 8).collect(),
            role: vec![0; 16],
            stages: 1,
            micro_batches: 1,
        };
        let facts = Facts {
            layout: &Layout::new(&shape, 4, 99),
            devices,
            settings: &Settings::default(),
            kind,
            subject,
            excess: 0.2,
            since_us: 100_000_000,
            now_us: 200_000_000,
            level_shift,
            companion: false,
        };
        let (class, posterior, _, blame) = facts.weigh();
        assert!(posterior > 0.0 && posterior <= 1.0);
        (class, blame)
    }

    fn shown(change: impl Fn(&mut DeviceWindow)) -> Devices {
        let mut devices = Devices::new(16);
        for start in (0..200_000_000).step_by(10_000_000) {
            for rank in 0..16 {
                let mut window = DeviceWindow {
                    rank,
                    start_us: start,
                    end_us: start + 10_000_000,
                    sm_clock_mhz: Some(1500.0),
                    slowdown_share: Some(0.0),
                    power_cap_share: Some(0.9),
                    power_w: Some(400.0),
                    link_width_ratio: Some(1.0),
                    link_retries: Some(0),
                    network_marks: Some(1),
                };
                if rank == 3 && start >= 100_000_000 {
                    change(&mut window);
                }
                devices.take(&window);
            }
        }
        devices
    }

    #[test]
    fn each_class_has_its_evidence() {
        let calm = shown(|_| {});
        let rank = Subject::Rank(3);
        assert_eq!(weigh(&calm, Kind::Compute, rank, 0.0), (Class::ComputeSilent, Blame::Rank(3)));
        assert_eq!(weigh(&calm, Kind::Compute, Subject::Node(1), 0.0), (Class::Host, Blame::Node(101)));
        assert_eq!(weigh(&calm, Kind::Data, Subject::Node(0), 0.0), (Class::Data, Blame::Node(100)));
        assert_eq!(weigh(&calm, Kind::Transfer, Subject::Job, 0.0), (Class::Communication, Blame::Fabric));
        assert_eq!(weigh(&calm, Kind::Transfer, Subject::Job, 0.2), (Class::Structural, Blame::Nobody));
        let hot = shown(|window| window.sm_clock_mhz = Some(1200.0));
        assert_eq!(weigh(&hot, Kind::Compute, rank, 0.0), (Class::ComputeThermal, Blame::Rank(3)));
        let narrow = shown(|window| window.link_width_ratio = Some(0.5));
        assert_eq!(weigh(&narrow, Kind::Compute, rank, 0.0), (Class::Link, Blame::Rank(3)));
        let retries = shown(|window| window.link_retries = Some(40));
        assert_eq!(weigh(&retries, Kind::Transfer, Subject::Job, 0.0), (Class::Link, Blame::Rank(3)));
        let blind = Devices::new(16);
        assert_eq!(weigh(&blind, Kind::Compute, rank, 0.0), (Class::ComputeSilent, Blame::Rank(3)));
    }
}
