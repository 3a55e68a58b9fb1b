//! How much of a catalog a reader sees.

use serde::{Deserialize, Serialize};

use super::Catalog;
use crate::error::Result;

/// How much of a catalog a reader sees. What it does not see is not there: neither for queries nor
/// for `describe`, messages and plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sight {
    /// Everything: administrators.
    Whole,
    /// All but what people did.
    WithoutAudit,
    /// Rows of these teams.
    Teams(Vec<String>),
}

impl Catalog {
    /// The tables as a reader sees them.
    ///
    /// # Errors
    /// If a table cannot be planned.
    pub fn seen_with(&self, sight: &Sight) -> Result<Self> {
        match sight {
            Sight::Whole => Ok(self.clone()),
            Sight::WithoutAudit => Ok(self.without_guarded()),
            Sight::Teams(teams) => self.without_guarded().of_teams(teams),
        }
    }

    fn without_guarded(&self) -> Self {
        let mut left = self.clone();
        for name in std::mem::take(&mut left.guarded) {
            left.tables.remove(&name);
            left.specs.remove(&name);
            left.views.remove(&name);
            left.rollups.remove(&name);
            left.parts.remove(&name);
            left.questions.remove(&name);
            left.stored.remove(&name);
        }
        left
    }
}
