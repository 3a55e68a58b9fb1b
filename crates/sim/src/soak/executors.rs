//! Executors of a soak test: instances of the product's executor over one journal.
//!
//! Some die at a write. Some hang within a step while another instance takes over, and then
//! continue beside it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tidegate_autopilot::{
    action::Action,
    executor::{InMemoryJournal, Journal, JournalEntry, JournalError, JournalEvent, Role},
    policy::Policy,
    rollout::Rollout,
    state::ClusterState,
    target::{Capabilities, Effect, Notice, Receipt, Target, TargetError},
};

use super::{World, swarm::Kill};
use crate::pilot::{Foresight, Pilot};

/// What happens while an instance hangs within a step.
type Meanwhile = Box<dyn FnOnce()>;

/// Faults injected into one instance, counted in its writes and requests.
#[derive(Default)]
struct InjectedFault {
    dies: Cell<Option<Kill>>,
    /// Fault points until it hangs, and what happens meanwhile.
    hangs: RefCell<Option<(u32, Meanwhile)>>,
}

impl InjectedFault {
    /// Called before it writes a step of an action or sends a request; it may hang here.
    fn fault_point(&self) {
        let due = match &mut *self.hangs.borrow_mut() {
            Some((0, _)) => true,
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let hangs = due.then(|| self.hangs.borrow_mut().take()).flatten();
        if let Some((_, meanwhile)) = hangs {
            meanwhile();
        }
    }

    /// Whether it dies at this write; if so, whether the write is stored.
    fn dies_now(&self, is_step: bool) -> Option<bool> {
        let kill = self.dies.get().filter(|kill| is_step || !kill.at_steps)?;
        self.dies.set(Some(Kill { writes: kill.writes.saturating_sub(1), ..kill }));
        (kill.writes == 0).then_some(kill.is_written)
    }
}

/// The journal of an instance, with its faults.
struct FaultyJournal {
    inner: InMemoryJournal,
    fate: Rc<InjectedFault>,
}

impl Journal for FaultyJournal {
    fn append(&mut self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        let is_step = entries.iter().any(|entry| matches!(entry.event, JournalEvent::Step(_)));
        if is_step {
            self.fate.fault_point();
        }
        match self.fate.dies_now(is_step) {
            None => self.inner.append(entries),
            Some(is_written) => {
                if is_written {
                    self.inner.append(entries)?;
                }
                Err(JournalError("killed".to_owned()))
            }
        }
    }

    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        self.inner.read()
    }
}

/// The target of an instance, with its faults.
struct FaultyTarget {
    world: Rc<World>,
    fate: Rc<InjectedFault>,
}

impl Target for FaultyTarget {
    fn capabilities(&self) -> Capabilities {
        self.world.target.borrow().capabilities()
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.world.target.borrow_mut().observe()
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        self.fate.fault_point();
        self.world.target.borrow_mut().notify(action)
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        self.fate.fault_point();
        self.world.target.borrow_mut().apply(action)
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        self.world.target.borrow_mut().read_back(action)
    }
}

/// One executor instance.
struct Instance {
    pilot: Pilot<FaultyJournal>,
    reached: FaultyTarget,
    /// Whether it waits until another one hangs.
    waits: bool,
    /// Whether it held the lease at its last step.
    acts: bool,
    is_dead: bool,
}

impl Instance {
    fn step(&mut self) {
        if self.is_dead || self.waits {
            return;
        }
        let world = Rc::clone(&self.reached.world);
        let now_us = world.epoch_us + world.now_us();
        match self.pilot.step(&mut self.reached, &mut || world.switch(), now_us) {
            Ok(stepped) => {
                self.acts = matches!(stepped.role, Role::Leading { .. });
                world.fenced.set(world.fenced.get() + u64::from(stepped.role == Role::Fenced));
            }
            Err(_) => self.is_dead = true,
        }
    }

    /// Starts with the forecast state of its predecessor.
    fn start(&mut self, foresight: &Foresight) {
        if self.waits {
            self.waits = false;
            self.pilot.learn(foresight.clone());
        }
    }
}

type Shared = (Rc<RefCell<Instance>>, Rc<InjectedFault>);

/// All live instances, newest last.
pub(super) struct Executors {
    world: Rc<World>,
    policy: Policy,
    tried: Rollout,
    /// Forecast state for the next instance, which would read it from the log.
    foresight: Rc<RefCell<Foresight>>,
    instances: Vec<Shared>,
    spawned: u64,
}

impl Executors {
    pub(super) fn new(world: Rc<World>, policy: Policy, tried: Rollout, foresight: Foresight) -> Self {
        Self {
            world,
            policy,
            tried,
            foresight: Rc::new(RefCell::new(foresight)),
            instances: Vec::new(),
            spawned: 0,
        }
    }

    /// Injects due faults and steps every instance.
    pub(super) fn act(&mut self) {
        let (world, now_us) = (Rc::clone(&self.world), self.world.now_us());
        if let Some(kill) = world.swarm.kills(now_us) {
            self.instances.iter().for_each(|(_, fate)| fate.dies.set(Some(kill)));
        }
        if self.instances.is_empty() && !world.swarm.is_dead(now_us) {
            self.spawn(false);
        }
        if let Some((moments, looks)) = world.swarm.hangs(now_us) {
            self.hang_leader(moments, looks);
        }
        self.instances.clone().iter().for_each(|(life, _)| life.borrow_mut().step());
        let newest = self.instances.iter().rev().find(|(life, _)| !life.borrow().waits);
        if let Some((newest, _)) = newest {
            *self.foresight.borrow_mut() = newest.borrow_mut().pilot.foresight();
        }
        self.instances.retain(|(life, _)| !life.borrow().is_dead);
        // A standby for a hang also takes over when the other one died.
        if self.instances.iter().all(|(life, _)| life.borrow().waits) {
            self.instances.iter().for_each(|(life, _)| life.borrow_mut().start(&self.foresight.borrow()));
        }
    }

    /// Makes the leader hang after `moments` fault points. Another instance acts for `looks`
    /// periods meanwhile, and beside it from then on.
    fn hang_leader(&mut self, moments: u32, looks: u32) {
        let acts = self.instances.iter().find(|(life, _)| life.borrow().acts).or(self.instances.first());
        let Some((old, fate)) = acts.cloned() else { return };
        // Only these two remain.
        self.instances.retain(|(life, _)| Rc::ptr_eq(life, &old));
        let ((new, _), world, foresight) =
            (self.spawn(true), Rc::clone(&self.world), Rc::clone(&self.foresight));
        let meanwhile = move || {
            new.borrow_mut().start(&foresight.borrow());
            let looks = if world.swarm.can_hang(world.now_us(), looks) { looks } else { 0 };
            for _ in 0..looks {
                world.advance();
                new.borrow_mut().step();
            }
        };
        *fate.hangs.borrow_mut() = Some((moments, Box::new(meanwhile)));
    }

    fn spawn(&mut self, waits: bool) -> Shared {
        self.spawned += 1;
        let fate = Rc::new(InjectedFault::default());
        let journal = FaultyJournal { inner: self.world.journal.reader(), fate: Rc::clone(&fate) };
        let (policy, foresight) = (self.policy.clone(), self.foresight.borrow().clone());
        let pilot = Pilot::new(policy, self.spawned, self.world.swarm.habits, journal, foresight)
            .with_rollout(self.tried.clone());
        let reached = FaultyTarget { world: Rc::clone(&self.world), fate: Rc::clone(&fate) };
        let life =
            (Rc::new(RefCell::new(Instance { pilot, reached, waits, acts: false, is_dead: false })), fate);
        self.instances.push(life.clone());
        life
    }
}
