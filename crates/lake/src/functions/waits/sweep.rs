//! The sweep: pieces of waits in which one constraint bound, in one pass through all changes.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::class::{Class, Classes, Fit, Outcome};
use super::fact::{Facts, Wait};
use super::line::Lines;
use super::pool::Pools;
use super::quota::Quotas;

/// A piece of a wait in which one constraint bound and the scheduler reported one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Row of the fact that its end lies in.
    pub row: usize,
    pub since: i64,
    /// `None` if the wait lasted when it was last observed.
    pub until: Option<i64>,
    /// The same, or the time up to which it was observed.
    pub end: i64,
    /// The wait goes on where the piece ends: it was not observed further, or the time is over.
    pub lasts: bool,
    pub constraint: Option<&'a str>,
    /// As of the end of the piece: of the binding quota, what is granted and held.
    pub quota: Option<(i64, i64)>,
    /// As of the end of the piece.
    pub fit: Option<Fit>,
}

/// A change of a fact, by its index. At one instant they are applied in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Known(usize),
    Node(usize, bool),
    Quota(usize, bool),
    Line(usize, bool),
    Ends(usize),
    Begins(usize),
    Eligible(usize),
}

/// The pieces of all waits between `begin` and `end`, in no particular order.
pub fn pieces<'a>(facts: &Facts<'a>, begin: i64, end: i64) -> Vec<Piece<'a>> {
    let mut sweep = Sweep::new(facts);
    let changes = changes(facts, begin, end);
    let mut rest = changes.as_slice();
    while let Some((now, _)) = rest.first() {
        let (at_once, later) = rest.split_at(rest.partition_point(|(at, _)| at == now));
        sweep.advance(*now, at_once);
        rest = later;
    }
    sweep.finish(end)
}

/// All changes before `end`, sorted. What began before `begin` changes then.
fn changes(facts: &Facts<'_>, begin: i64, end: i64) -> Vec<(i64, Change)> {
    let mut changes = Vec::new();
    let mut add = |from: i64, to: Option<i64>, starts: Change, ends: Option<Change>| {
        if from >= end || to.is_some_and(|to| to <= begin.max(from)) {
            return false;
        }
        changes.push((from.max(begin), starts));
        if let (Some(to), Some(ends)) = (to.filter(|to| *to < end), ends) {
            changes.push((to, ends));
        }
        true
    };
    for (index, (_, from)) in facts.known.iter().enumerate() {
        add(*from, None, Change::Known(index), None);
    }
    for (index, node) in facts.nodes.iter().enumerate() {
        add(node.from, node.to, Change::Node(index, true), Some(Change::Node(index, false)));
    }
    for (index, quota) in facts.quotas.iter().enumerate() {
        add(quota.from, quota.to, Change::Quota(index, true), Some(Change::Quota(index, false)));
    }
    for (index, wait) in facts.waits.iter().enumerate() {
        if let Some(from) = wait.in_line_from() {
            add(from, wait.to, Change::Line(index, true), Some(Change::Line(index, false)));
        }
        let is_seen = add(wait.from, Some(wait.known_to), Change::Begins(index), Some(Change::Ends(index)));
        if let Some(at) = wait.eligible_from.filter(|at| is_seen && *at > wait.from && *at < wait.known_to) {
            add(at, Some(wait.known_to), Change::Eligible(index), None);
        }
    }
    changes.sort_unstable();
    changes
}

/// The piece of a wait that is not finished.
#[derive(Debug, Clone, Copy)]
struct Running<'a> {
    /// Index of the stretch that it has reached.
    stretch: usize,
    since: i64,
    constraint: Option<&'a str>,
}

struct Sweep<'s, 'a> {
    facts: &'s Facts<'a>,
    pools: Pools<'a>,
    quotas: Quotas<'a>,
    lines: Lines<'a>,
    classes: Classes<'a>,
    /// By stretch: its class, if pools and quotas matter to it.
    class_of: Vec<Option<usize>>,
    /// By state of a node: the pools that it counts in.
    serves: Vec<BTreeSet<usize>>,
    /// By state of a quota: its owner, if a waiting job has it.
    owners: Vec<usize>,
    /// Stretches that last, by job.
    lasting: HashMap<&'a str, Vec<usize>>,
    /// By wait, as job and start.
    running: HashMap<(&'a str, i64), Running<'a>>,
    finished: Vec<Piece<'a>>,
}

impl<'s, 'a> Sweep<'s, 'a> {
    fn new(facts: &'s Facts<'a>) -> Self {
        let (mut pools, mut quotas, mut classes) = (Pools::default(), Quotas::default(), Classes::default());
        let class = |wait: &Wait<'a>| {
            wait.is_compared().then(|| classes.index(Class::new(wait, &mut pools, &mut quotas)))
        };
        let class_of = facts.waits.iter().map(class).collect();
        Self {
            serves: facts.nodes.iter().map(|node| pools.served_by(node.pools)).collect(),
            owners: facts.quotas.iter().map(|quota| quotas.index(quota.owner)).collect(),
            lines: Lines::new(facts),
            lasting: HashMap::new(),
            running: HashMap::new(),
            finished: Vec::new(),
            facts,
            pools,
            quotas,
            classes,
            class_of,
        }
    }

    /// Applies all changes of one instant.
    fn advance(&mut self, now: i64, changes: &[(i64, Change)]) {
        let (mut touched, mut ended) = (BTreeSet::new(), Vec::new());
        for (_, change) in changes {
            match *change {
                Change::Known(index) => {
                    for pool in self.pools.served_by(self.facts.known[index].0) {
                        self.pools.know(pool);
                    }
                }
                Change::Node(index, begins) => {
                    let node = &self.facts.nodes[index];
                    for pool in &self.serves[index] {
                        self.pools.change(*pool, node, begins);
                    }
                }
                Change::Quota(index, true) => self.quotas.begin(self.owners[index], self.facts.quotas[index]),
                Change::Quota(index, false) => self.quotas.end(self.owners[index], &self.facts.quotas[index]),
                Change::Line(wait, true) => self.lines.enter(wait, self.facts.waits[wait].pool),
                Change::Line(wait, false) => self.lines.leave(wait, self.facts.waits[wait].pool),
                Change::Ends(wait) => {
                    self.leave(wait);
                    ended.push(wait);
                }
                Change::Begins(wait) => {
                    self.enter(wait);
                    touched.insert(wait);
                }
                Change::Eligible(wait) => _ = touched.insert(wait),
            }
        }
        self.classes.update(&self.pools, &self.quotas, &mut touched);
        for job in self.lines.settle() {
            touched.extend(self.lasting.get(job).into_iter().flatten());
        }
        for wait in touched {
            self.compare(wait, now);
        }
        for wait in ended {
            self.end(wait);
        }
        self.pools.settle();
        self.quotas.settle();
    }

    fn enter(&mut self, wait: usize) {
        self.lasting.entry(self.facts.waits[wait].job).or_default().push(wait);
        if let Some(class) = self.class_of[wait] {
            self.classes.enter(class, wait, &self.pools, &self.quotas);
        }
    }

    fn leave(&mut self, wait: usize) {
        let job = self.facts.waits[wait].job;
        if let Some(lasting) = self.lasting.get_mut(job) {
            lasting.retain(|other| *other != wait);
        }
        if self.lasting.get(job).is_some_and(Vec::is_empty) {
            self.lasting.remove(job);
        }
        if let Some(class) = self.class_of[wait] {
            self.classes.leave(class, wait);
        }
    }

    /// Begins a new piece if the constraint or the reason of the wait is another now.
    fn compare(&mut self, stretch: usize, now: i64) {
        let wait = &self.facts.waits[stretch];
        let constraint = self.constraint(stretch, now);
        let of_wait = (wait.job, wait.waited_from);
        if let Some(running) = self.running.get_mut(&of_wait) {
            let reason = self.facts.waits[running.stretch].reason;
            if (running.constraint, reason) == (constraint, wait.reason) {
                running.stretch = stretch;
                return;
            }
        }
        if let Some(before) = self.running.insert(of_wait, Running { stretch, since: now, constraint }) {
            self.finish_piece(before, Some(now), now, false);
        }
    }

    /// The constraint that binds a stretch now; `None` if it is not known.
    fn constraint(&self, stretch: usize, now: i64) -> Option<&'a str> {
        let wait = &self.facts.waits[stretch];
        if !wait.is_open {
            return wait.reason_constraint;
        }
        if wait.eligible_from.is_some_and(|at| at > now) {
            return Some("not_eligible");
        }
        match self.class_of[stretch].map(|class| self.classes.outcome(class)) {
            None | Some(Outcome::Unknown) => wait.reason_constraint,
            Some(Outcome::Quota) => Some("quota"),
            Some(Outcome::Lacks(constraint)) => Some(constraint),
            Some(Outcome::Fits) if wait.reason.is_none() && !self.lines.is_first(wait.job, wait.pool) => {
                Some("behind_others")
            }
            Some(Outcome::Fits) if wait.reason_constraint == Some("resources") && wait.nodes.is_some() => {
                Some("not_gpus")
            }
            Some(Outcome::Fits) => wait.reason_constraint,
        }
    }

    /// Ends a stretch that no other of its wait has followed at once.
    fn end(&mut self, stretch: usize) {
        let wait = &self.facts.waits[stretch];
        let of_wait = (wait.job, wait.waited_from);
        if self.running.get(&of_wait).is_some_and(|running| running.stretch == stretch)
            && let Some(running) = self.running.remove(&of_wait)
        {
            self.finish_piece(running, wait.to, wait.known_to, wait.to.is_none());
        }
    }

    /// Pools and quotas count as they were just before this instant.
    fn finish_piece(&mut self, running: Running<'a>, until: Option<i64>, end: i64, lasts: bool) {
        let class = self.class_of[running.stretch].map(|class| self.classes.class(class));
        let is_quota = running.constraint == Some("quota");
        self.finished.push(Piece {
            row: self.facts.waits[running.stretch].row,
            since: running.since,
            until,
            end,
            lasts,
            constraint: running.constraint,
            quota: class.filter(|_| is_quota).and_then(|class| class.quota_before(&self.quotas)),
            fit: class.and_then(|class| class.fit_before(&self.pools)),
        });
    }

    /// The time is over: waits that last reach up to it.
    fn finish(mut self, end: i64) -> Vec<Piece<'a>> {
        for running in std::mem::take(&mut self.running).into_values() {
            let lasts = self.facts.waits[running.stretch].to != Some(end);
            self.finish_piece(running, Some(end), end, lasts);
        }
        self.finished
    }
}
