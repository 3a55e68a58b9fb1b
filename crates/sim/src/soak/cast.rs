//! Who acts in a soak: lives of the product's actuator over one journal, some of which die at a write, hang in the midst of a step while
//! another takes over, or go on beside it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tidegate_autopilot::{
    action::Action,
    actuator::{Entry, InMemory, Journal, JournalError, Role},
    policy::Policy,
    state::ClusterState,
    target::{Capabilities, Effect, Notice, Receipt, Target, TargetError},
};

use super::World;
use crate::pilot::{Foresight, Pilot};

/// What goes on for a while in the midst of a life's step.
type Meanwhile = Box<dyn FnOnce()>;

/// What is to happen to one life, at a moment that is counted in what it does.
#[derive(Default)]
struct Fate {
    /// Writes to its journal that it has left, and whether the last of them is written.
    dies: Cell<Option<(u32, bool)>>,
    /// Moments until it hangs, and what goes on meanwhile.
    hangs: RefCell<Option<(u32, Meanwhile)>>,
}

impl Fate {
    /// It is about to write, or to ask the cluster for something: here it may hang.
    fn moment(&self) {
        let due = match &mut *self.hangs.borrow_mut() {
            Some((0, _)) => true,
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if due {
            self.wake();
        }
    }

    /// It hangs now, if it has not done so yet, and wakes up after.
    fn wake(&self) {
        let hangs = self.hangs.borrow_mut().take();
        if let Some((_, meanwhile)) = hangs {
            meanwhile();
        }
    }

    /// Whether it dies at this write, and then whether the write arrives.
    fn dies_now(&self) -> Option<bool> {
        let (left, is_written) = self.dies.get()?;
        self.dies.set(Some((left.saturating_sub(1), is_written)));
        (left == 0).then_some(is_written)
    }
}

/// The journal of a life.
struct Watched {
    inner: InMemory,
    fate: Rc<Fate>,
}

impl Journal for Watched {
    fn append(&mut self, entries: Vec<Entry>) -> Result<(), JournalError> {
        self.fate.moment();
        match self.fate.dies_now() {
            None => self.inner.append(entries),
            Some(is_written) => {
                if is_written {
                    self.inner.append(entries)?;
                }
                Err(JournalError("killed".to_owned()))
            }
        }
    }

    fn read(&mut self) -> Result<Vec<Entry>, JournalError> {
        self.inner.read()
    }
}

/// The cluster as a life reaches it.
struct Reached {
    world: Rc<World>,
    fate: Rc<Fate>,
}

impl Target for Reached {
    fn capabilities(&self) -> Capabilities {
        self.world.target.borrow().capabilities()
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.fate.moment();
        self.world.target.borrow_mut().observe()
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        self.fate.moment();
        self.world.target.borrow_mut().notify(action)
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        self.fate.moment();
        self.world.target.borrow_mut().apply(action)
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        self.fate.moment();
        self.world.target.borrow_mut().read_back(action)
    }
}

/// One life.
struct Life {
    pilot: Pilot<Watched>,
    reached: Reached,
    is_dead: bool,
}

impl Life {
    fn step(&mut self) {
        if self.is_dead {
            return;
        }
        let world = Rc::clone(&self.reached.world);
        let now_us = world.epoch_us + world.now_us();
        match self.pilot.step(&mut self.reached, &mut || world.switch(), now_us) {
            Ok(stepped) => world.fenced.set(world.fenced.get() + u64::from(stepped.role == Role::Fenced)),
            Err(_) => self.is_dead = true,
        }
    }
}

type Shared = (Rc<RefCell<Life>>, Rc<Fate>);

/// All who live, the newest last.
pub(super) struct Cast {
    world: Rc<World>,
    policy: Policy,
    /// What the newest knew of demand: whoever comes next has it from the log.
    foresight: Foresight,
    lives: Vec<Shared>,
    born: u64,
}

/// More never live at once.
const MOST: usize = 2;

impl Cast {
    pub(super) fn new(world: Rc<World>, policy: Policy, foresight: Foresight) -> Self {
        Self { world, policy, foresight, lives: Vec::new(), born: 0 }
    }

    /// Everybody who lives looks and acts, or what is to go wrong with them does.
    pub(super) fn act(&mut self) {
        let (world, now_us) = (Rc::clone(&self.world), self.world.now_us());
        if let Some((writes, is_written)) = world.swarm.kills(now_us) {
            self.lives.iter().for_each(|(_, fate)| fate.dies.set(Some((writes, is_written))));
        }
        if self.lives.is_empty() && !world.swarm.is_dead(now_us) {
            self.bear();
        }
        let hangs = world.swarm.hangs(now_us);
        match (hangs, self.lives.last().cloned()) {
            (Some((moments, looks)), Some((old, fate))) => {
                let (new, _) = self.bear();
                let meanwhile = move || {
                    for _ in 0..looks {
                        world.pass();
                        new.borrow_mut().step();
                    }
                };
                *fate.hangs.borrow_mut() = Some((moments, Box::new(meanwhile)));
                old.borrow_mut().step();
                // One that did less than that hangs after its step.
                fate.wake();
            }
            _ => self.lives.iter().for_each(|(life, _)| life.borrow_mut().step()),
        }
        if let Some((newest, _)) = self.lives.last() {
            self.foresight = newest.borrow_mut().pilot.foresight();
        }
        self.lives.retain(|(life, _)| !life.borrow().is_dead);
    }

    fn bear(&mut self) -> Shared {
        self.born += 1;
        let fate = Rc::new(Fate::default());
        let journal = Watched { inner: self.world.journal.reader(), fate: Rc::clone(&fate) };
        let (policy, foresight) = (self.policy.clone(), self.foresight.clone());
        let pilot = Pilot::new(policy, self.born, self.world.swarm.habits, journal, foresight);
        let reached = Reached { world: Rc::clone(&self.world), fate: Rc::clone(&fate) };
        let life = (Rc::new(RefCell::new(Life { pilot, reached, is_dead: false })), fate);
        self.lives.push(life.clone());
        let over = self.lives.len().saturating_sub(MOST);
        self.lives.drain(..over);
        life
    }
}
