//! Quotas and limits of teams and QOS.

use hashbrown::HashMap;

use super::fact::Quota;

/// Quotas in force, by owner.
#[derive(Debug, Default)]
pub struct Quotas<'a> {
    names: HashMap<String, usize>,
    now: Vec<Vec<Quota<'a>>>,
    /// Of owners whose quotas changed at this instant: as they were before it.
    before: HashMap<usize, Vec<Quota<'a>>>,
}

/// A quota without room for a job: what is granted and what is held of it, thousandths of a GPU.
pub type Exceeded = (i64, i64);

impl<'a> Quotas<'a> {
    /// Index of an owner.
    pub fn index(&mut self, owner: &str) -> usize {
        let next = self.now.len();
        let index = *self.names.entry_ref(owner).or_insert(next);
        if index == next {
            self.now.push(Vec::new());
        }
        index
    }

    /// Adds a state of a quota.
    pub fn begin(&mut self, owner: usize, quota: Quota<'a>) {
        self.remember(owner);
        self.now[owner].push(quota);
    }

    /// Removes a state of a quota.
    pub fn end(&mut self, owner: usize, quota: &Quota<'a>) {
        self.remember(owner);
        let same = |other: &Quota<'a>| {
            (other.pool, other.gpus, other.held, other.from, other.to)
                == (quota.pool, quota.gpus, quota.held, quota.from, quota.to)
        };
        if let Some(place) = self.now[owner].iter().position(same) {
            self.now[owner].swap_remove(place);
        }
    }

    fn remember(&mut self, owner: usize) {
        self.before.entry(owner).or_insert_with(|| self.now[owner].clone());
    }

    /// The quota with the least room for so many GPUs more, if they exceed any now.
    pub fn now(&self, owners: [Option<usize>; 2], pool: &str, gpus: i64) -> Option<Exceeded> {
        tightest(owners.iter().flatten().flat_map(|owner| &self.now[*owner]), pool, gpus)
    }

    /// The same just before this instant.
    pub fn before(&self, owners: [Option<usize>; 2], pool: &str, gpus: i64) -> Option<Exceeded> {
        let of = |owner: &usize| self.before.get(owner).unwrap_or(&self.now[*owner]);
        tightest(owners.iter().flatten().flat_map(of), pool, gpus)
    }

    /// Owners whose quotas changed at this instant.
    pub fn changed(&self) -> Vec<usize> {
        self.before.keys().copied().collect()
    }

    /// Ends this instant.
    pub fn settle(&mut self) {
        self.before.clear();
    }
}

fn tightest<'q, 'a: 'q>(
    quotas: impl Iterator<Item = &'q Quota<'a>>,
    pool: &str,
    gpus: i64,
) -> Option<Exceeded> {
    let applies = |quota: &&Quota<'_>| quota.pool.is_none_or(|of| of == pool);
    let is_exceeded = |quota: &&Quota<'_>| quota.held.saturating_add(gpus) > quota.gpus;
    let exceeded = quotas.filter(applies).filter(is_exceeded).map(|quota| (quota.gpus, quota.held));
    exceeded.max_by_key(|(granted, held)| (held.saturating_sub(*granted), *granted))
}
