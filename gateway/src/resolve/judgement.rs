//! What to ask about a row in doubt, and what an answer decides. Pure; docs/FAILURES.md has it as a table.

use std::sync::Arc;
use std::time::Duration;

use codec::Record;

use crate::ledger::{Doubt, Resolution, Verdict};
use crate::routes::{OnDoubt, Questions, Route};

/// What can be asked about an original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// To undo it, or to make sure that it is never processed.
    Cancel,
    /// Whether it was processed.
    Status,
    /// Nothing: the route says that a person shall look.
    Nobody,
}

/// What the host said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The original was processed and stands.
    Processed,
    /// The original was not processed.
    NotProcessed,
    /// The original is undone.
    Cancelled,
    /// The original was processed and can't be undone.
    CannotUndo,
    /// Nothing that decides anything; the failure's name, or what was odd.
    Nothing(&'static str),
    /// Nothing was sent, and nothing can be for this long: the circuit is open.
    Suspended(&'static str, Duration),
    /// Nothing was sent: the call budget is used up, or nobody can say. That is ours, and says nothing about the host.
    Denied(&'static str, Duration),
}

impl Heard {
    /// The word in the step's record.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Processed => "processed",
            Self::NotProcessed => "not-processed",
            Self::Cancelled => "cancelled",
            Self::CannotUndo => "cannot-undo",
            Self::Nothing(why) | Self::Suspended(why, _) | Self::Denied(why, _) => why,
        }
    }
}

impl Question {
    /// The word in the step's record.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cancel => "net-cancel",
            Self::Status => "status",
            Self::Nobody => "nobody",
        }
    }

    /// The messages of this question.
    pub(super) fn route(self, questions: &Questions) -> Option<&Arc<Route>> {
        match self {
            Self::Cancel => questions.net_cancel.as_ref(),
            Self::Status => questions.status.as_ref(),
            Self::Nobody => None,
        }
    }

    /// Reads a whole, well-formed answer that is certainly to this question.
    pub(super) fn understand(self, reply: &Record) -> Heard {
        match (self, reply.text(if self == Self::Status { "processedFlag" } else { "cancelResult" })) {
            (Self::Cancel, "01") => Heard::Cancelled,
            (Self::Status, "01") => Heard::Processed,
            (Self::Cancel | Self::Status, "02") => Heard::NotProcessed,
            (Self::Cancel, "03") => Heard::CannotUndo,
            _ => Heard::Nothing("unmapped-flag"),
        }
    }
}

/// Under which terms a row is resolved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) on_doubt: OnDoubt,
    /// Whether the host refuses an original that arrives after its net-cancel.
    pub(super) tombstones: bool,
    /// How long after a first "not processed" the original may still arrive: its whole deadline, which it may just have begun,
    /// and the settle time.
    pub(super) may_arrive: Duration,
    /// The next back-off.
    pub(super) wait: Duration,
    /// Whether the transaction's business day has ended.
    pub(super) day_is_over: bool,
}

impl Terms {
    /// What to ask next.
    pub(super) fn question(&self, doubt: &Doubt) -> Question {
        // Once a net-cancel may have left, only a net-cancel's answer says how it ended.
        if doubt.cancel_intended {
            return Question::Cancel;
        }
        match self.on_doubt {
            OnDoubt::NetCancel => Question::Cancel,
            OnDoubt::Confirm if self.tombstones && doubt.not_processed_since.is_some() => Question::Cancel,
            OnDoubt::Confirm => Question::Status,
            OnDoubt::Manual => Question::Nobody,
        }
    }

    /// What an answer decides.
    pub(super) fn decide(&self, question: Question, heard: &Heard, doubt: &Doubt) -> Verdict {
        match (question, heard) {
            (Question::Cancel, Heard::Cancelled) => Verdict::ByCancel(Resolution::Canceled),
            (Question::Status, Heard::Processed) => Verdict::ByInquiry(Resolution::ConfirmedSuccess),
            (Question::Cancel, Heard::NotProcessed) if self.tombstones => {
                Verdict::ByCancel(Resolution::ConfirmedFailed)
            }
            // "Not processed" now is not "never": a net-cancel makes it final.
            (Question::Status, Heard::NotProcessed) if self.tombstones => Verdict::GoOn,
            // Without tombstones only time does: the same answer again, when nothing can be under way any more.
            (_, Heard::NotProcessed) => match doubt.not_processed_since {
                Some(since) if since >= self.may_arrive => {
                    let state = Resolution::ConfirmedFailed;
                    if question == Question::Cancel { Verdict::ByCancel(state) } else { Verdict::ByInquiry(state) }
                }
                Some(since) => Verdict::Again(self.may_arrive - since),
                None => Verdict::Again(self.may_arrive),
            },
            (_, Heard::CannotUndo) => Verdict::Manual,
            (_, Heard::Denied(_, wait)) => Verdict::PutOff((*wait).max(Duration::from_secs(1))),
            (_, Heard::Suspended(_, wait)) if !self.day_is_over => {
                Verdict::PutOff((*wait).max(Duration::from_millis(100)))
            }
            _ if self.day_is_over => Verdict::Manual,
            _ => Verdict::Again(self.wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our own budget is no word of the host: a doubt is put off for it, also when its day is over, and never left to people.
    #[test]
    fn a_question_that_the_call_budget_denied_is_asked_later_on_any_day() {
        let facts = crate::ledger::Facts {
            id: crate::ledger::TransactionId::parse("GWMNU202611290000001A3").unwrap(),
            tx_code: "TR01".into(),
            route: "transfer".into(),
            kind: crate::routes::Kind::Mutation,
            institution: "bank".into(),
            client: "c".into(),
            account: None,
            account_hash: None,
            counter_account: None,
            counter_account_hash: None,
            amount: None,
            requested_at: 0,
            correlation_id: String::new(),
            idempotency_key_hash: None,
            layout_version: 1,
            keyed: None,
        };
        let row = crate::ledger::Row::in_doubt(facts, "read-timeout", 0);
        let doubt = Doubt {
            row,
            resolution: Resolution::Pending,
            tries: 0,
            cancel_intended: false,
            not_processed_since: None,
            resolve_as: None,
        };
        for day_is_over in [false, true] {
            let terms = Terms {
                on_doubt: OnDoubt::NetCancel,
                tombstones: true,
                may_arrive: Duration::ZERO,
                wait: Duration::from_secs(9),
                day_is_over,
            };
            let denied = Heard::Denied("budget-unavailable", Duration::ZERO);
            let put_off = Verdict::PutOff(Duration::from_secs(1));
            assert_eq!(terms.decide(Question::Cancel, &denied, &doubt), put_off);
            let suspended = Heard::Suspended("circuit-open", Duration::from_secs(2));
            let verdict = if day_is_over { Verdict::Manual } else { Verdict::PutOff(Duration::from_secs(2)) };
            assert_eq!(terms.decide(Question::Cancel, &suspended, &doubt), verdict);
        }
    }
}
