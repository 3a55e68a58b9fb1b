//! A query at a door: recorded, cut to what its principal sees, and sent to be answered.

use crate::access::{Access, Principal, Role};
use crate::answers::{Answer, Answers};
use crate::audit::{self, Actor, Auditor, Begun, Deed, NotRecorded, Outcome, Text};
use crate::error::QueryError;
use crate::query::Overrides;
use crate::question::Question;

/// What answers queries, and what records that they were asked.
#[derive(Clone)]
pub(crate) struct Asked {
    pub answers: Answers,
    pub audit: Option<Auditor>,
}

/// A query that is being answered.
pub(crate) struct Started {
    pub answer: Answer,
    /// Its record, for whoever sees it end.
    pub begun: Option<Begun>,
}

/// A query was not run.
pub(crate) enum NotStarted {
    NotRecorded(NotRecorded),
    Query(QueryError),
}

impl Asked {
    /// Records what changed in the token file.
    pub fn note_changes(&self, access: &Access) {
        if let Some(audit) = &self.audit {
            access.take_changes().iter().for_each(|change| audit.note(audit::principal_changed(change)));
        }
    }

    /// Records a query before it is planned.
    ///
    /// # Errors
    /// The log does not take the record.
    pub async fn record(&self, role: Role, actor: &Actor, text: &str) -> Result<Option<Begun>, NotRecorded> {
        let text = Text::of(text);
        match &self.audit {
            // Nobody says who they are there, so there is nobody to hold to it: reading goes on
            // while the log is away.
            Some(audit) if role == Role::Local => Ok(Some(audit.begin_at_once(Deed::Query, actor, "", text))),
            Some(audit) => audit.begin(Deed::Query, actor, "", text).await.map(Some),
            None => Ok(None),
        }
    }

    /// Records a query, and waits until it is being answered. Dropping the future ends it.
    ///
    /// # Errors
    /// It is not recorded, or refused, or fails at once.
    pub async fn start(
        &self,
        principal: &Principal,
        actor: &Actor,
        question: &Question,
        overrides: Overrides,
    ) -> Result<Started, NotStarted> {
        let begun = self.record(principal.role, actor, &question.query.sql).await;
        let begun = begun.map_err(NotStarted::NotRecorded)?;
        let answer = async {
            let answers = self.answers.seen_with(principal.sight())?;
            answers.answer(question, overrides).await
        };
        match answer.await {
            Ok(answer) => Ok(Started { answer, begun }),
            Err(error) => {
                if let Some(begun) = begun {
                    begun.end(&Outcome::failed(error.code()));
                }
                Err(NotStarted::Query(error))
            }
        }
    }
}
