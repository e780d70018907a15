//! THE table: what can go wrong, and what each failure means for the caller, the ledger and the breaker.
//!
//! Variants are grouped by phase, so nobody asks later whether something had been sent. [`Failure::policy`] has one row
//! for each variant and no wildcard: a new variant without a row does not compile. `docs/FAILURES.md` is rendered from
//! here and a test keeps it true. Lower modules have small errors of their own; every translation stands in
//! `translations`.

mod translations;

use crate::ledger::{Proof, Status};
use crate::routes::Kind;

macro_rules! failures {
    ($($variant:ident = $name:literal,)*) => {
        /// What went wrong. `docs/FAILURES.md` has each one's sentence.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant's sentence is a text for callers, and the documentation has it")]
        pub enum Failure {
            $($variant,)*
        }

        impl Failure {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The failure's name: in the ledger's `detail`, in logs, in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

failures! {
    // At the door: no transaction exists.
    InvalidRequest = "invalid-request",
    RequestTimeout = "request-timeout",
    BodyTooLarge = "body-too-large",
    UnsupportedMediaType = "unsupported-media-type",
    UnmappableCharacter = "unmappable-character",
    FieldTooLong = "field-too-long",
    Unauthenticated = "unauthenticated",
    Forbidden = "forbidden",
    UnknownRoute = "unknown-route",
    MethodNotAllowed = "method-not-allowed",
    UnknownTransaction = "unknown-transaction",
    IdempotencyKeyMissing = "idempotency-key-missing",
    IdempotencyKeyInvalid = "idempotency-key-invalid",
    IdempotencyInProgress = "idempotency-in-progress",
    IdempotencyKeyReused = "idempotency-key-reused",
    IdempotencyUnavailable = "idempotency-unavailable",
    RateLimited = "rate-limited",
    Overloaded = "overloaded",
    Draining = "draining",
    NoLedgerRoom = "no-ledger-room",
    LedgerUnreadable = "ledger-unreadable",
    NotResolvable = "not-resolvable",
    ResolutionInProgress = "resolution-in-progress",
    UnknownRun = "unknown-run",
    // A repeat of a key: the first one's row stands, and nothing is sent.
    RepeatInDoubt = "repeat-in-doubt",
    RepeatNotProcessed = "repeat-not-processed",
    RepeatCanceled = "repeat-canceled",
    // Before sending: a row exists, and it is certain that nothing left.
    CircuitOpen = "circuit-open",
    BudgetExhausted = "budget-exhausted",
    BudgetUnavailable = "budget-unavailable",
    PoolExhausted = "pool-exhausted",
    NoLocalSocket = "no-local-socket",
    IntentNotDurable = "intent-not-durable",
    DeadlineBeforeSend = "deadline-before-send",
    HostUnreachable = "host-unreachable",
    WroteNothingFresh = "wrote-nothing-fresh",
    WroteNothingReused = "wrote-nothing-reused",
    ShutdownBeforeSend = "shutdown-before-send",
    InternalBeforeSend = "internal-before-send",
    // After sending: in doubt.
    WriteBroken = "write-broken",
    ReadTimeout = "read-timeout",
    ConnectionLost = "connection-lost",
    StaleConnection = "stale-connection",
    BadFrame = "bad-frame",
    EchoMismatch = "echo-mismatch",
    UndecodableReply = "undecodable-reply",
    InDoubtCode = "in-doubt-code",
    DuplicateId = "duplicate-id",
    ShutdownAfterSend = "shutdown-after-send",
    InternalAfterSend = "internal-after-send",
    // Answered by the host.
    HostDeclined = "host-declined",
    HostNotProcessed = "host-not-processed",
    // Ours, at the end.
    OutcomeNotDurable = "outcome-not-durable",
}

/// What the breaker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// No permit was taken.
    Never,
    /// A permit is given back undecided.
    Aborted,
    /// The host failed.
    Failure,
    /// The host works.
    Success,
}

/// What the ledger records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// No row.
    None,
    /// FAILED, with its proof.
    Failed(Proof),
    /// UNKNOWN.
    Unknown,
}

impl Record {
    /// The status of the row, if there is one.
    #[must_use]
    pub fn status(self) -> Option<Status> {
        match self {
            Self::None => None,
            Self::Failed(_) => Some(Status::Failed),
            Self::Unknown => Some(Status::Unknown),
        }
    }
}

/// What happens to the upstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// None was lent.
    None,
    /// Goes back for the next caller.
    Kept,
    /// Closed.
    Closed,
    /// Closed, and every older idle one with it.
    ClosedAndFlushed,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The HTTP status.
    pub http: u16,
    /// The stable code that callers program against.
    pub code: &'static str,
    /// The ledger.
    pub record: Record,
    /// The breaker.
    pub counts: Counts,
    /// Whether an inquiry is tried again.
    pub retry: bool,
    /// The connection.
    pub fate: Fate,
}

const fn door(http: u16, code: &'static str) -> Policy {
    Policy { http, code, record: Record::None, counts: Counts::Never, retry: false, fate: Fate::None }
}

const fn unsent(code: &'static str, counts: Counts, fate: Fate) -> Policy {
    Policy { http: 503, code, record: Record::Failed(Proof::P0), counts, retry: false, fate }
}

/// In doubt: a mutation's caller always gets 504 `RESULT_UNKNOWN`; an inquiry's may learn that the reply was bad.
const fn doubt(http: u16, counts: Counts, retry: bool, fate: Fate) -> Policy {
    let code = if http == 502 { "BAD_HOST_RESPONSE" } else { "RESULT_UNKNOWN" };
    Policy { http, code, record: Record::Unknown, counts, retry, fate }
}

impl Failure {
    /// The row of this failure for a kind of transaction.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table: one row a variant")]
    pub const fn policy(self, kind: Kind) -> Policy {
        use Failure::*;
        let bad_reply = match kind {
            Kind::Inquiry => 502,
            Kind::Mutation => 504,
        };
        match self {
            InvalidRequest => door(400, "INVALID_REQUEST"),
            RequestTimeout => door(408, "REQUEST_TIMEOUT"),
            BodyTooLarge => door(413, "BODY_TOO_LARGE"),
            UnsupportedMediaType => door(415, "UNSUPPORTED_MEDIA_TYPE"),
            UnmappableCharacter => door(400, "UNMAPPABLE_CHARACTER"),
            FieldTooLong => door(400, "FIELD_TOO_LONG"),
            Unauthenticated => door(401, "UNAUTHENTICATED"),
            Forbidden => door(403, "FORBIDDEN"),
            UnknownRoute => door(404, "UNKNOWN_ROUTE"),
            MethodNotAllowed => door(405, "METHOD_NOT_ALLOWED"),
            UnknownTransaction => door(404, "UNKNOWN_TRANSACTION"),
            IdempotencyKeyMissing => door(400, "IDEMPOTENCY_KEY_MISSING"),
            IdempotencyKeyInvalid => door(400, "IDEMPOTENCY_KEY_INVALID"),
            IdempotencyInProgress => door(409, "IDEMPOTENCY_IN_PROGRESS"),
            IdempotencyKeyReused => door(422, "IDEMPOTENCY_KEY_REUSED"),
            IdempotencyUnavailable => door(503, "IDEMPOTENCY_UNAVAILABLE"),
            RateLimited => door(429, "RATE_LIMITED"),
            Overloaded => door(503, "OVERLOADED"),
            Draining => door(503, "SHUTTING_DOWN"),
            NoLedgerRoom => door(503, "LEDGER_UNAVAILABLE"),
            LedgerUnreadable => door(503, "LEDGER_UNAVAILABLE"),
            NotResolvable => door(409, "NOT_RESOLVABLE"),
            ResolutionInProgress => door(409, "RESOLUTION_IN_PROGRESS"),
            UnknownRun => door(404, "UNKNOWN_RUN"),
            RepeatInDoubt => doubt(504, Counts::Never, false, Fate::None),
            RepeatNotProcessed => door(422, "TRANSACTION_NOT_PROCESSED"),
            RepeatCanceled => door(422, "TRANSACTION_CANCELED"),
            CircuitOpen => unsent("CIRCUIT_OPEN", Counts::Never, Fate::None),
            BudgetExhausted => unsent("BUDGET_EXHAUSTED", Counts::Aborted, Fate::Kept),
            BudgetUnavailable => unsent("BUDGET_UNAVAILABLE", Counts::Aborted, Fate::Kept),
            PoolExhausted => unsent("GATEWAY_SATURATED", Counts::Aborted, Fate::None),
            NoLocalSocket => unsent("GATEWAY_SATURATED", Counts::Aborted, Fate::None),
            IntentNotDurable => unsent("LEDGER_UNAVAILABLE", Counts::Aborted, Fate::Kept),
            DeadlineBeforeSend => unsent("DEADLINE_BEFORE_SEND", Counts::Aborted, Fate::Kept),
            HostUnreachable => Policy {
                record: Record::Failed(Proof::P1),
                retry: true,
                ..unsent("HOST_UNREACHABLE", Counts::Failure, Fate::Closed)
            },
            WroteNothingFresh => Policy {
                record: Record::Failed(Proof::P2),
                retry: true,
                ..unsent("HOST_UNREACHABLE", Counts::Failure, Fate::Closed)
            },
            WroteNothingReused => Policy {
                record: Record::Failed(Proof::P2),
                retry: true,
                ..unsent("HOST_UNREACHABLE", Counts::Aborted, Fate::Closed)
            },
            ShutdownBeforeSend => unsent("SHUTTING_DOWN", Counts::Aborted, Fate::Closed),
            InternalBeforeSend => Policy { http: 500, ..unsent("INTERNAL", Counts::Aborted, Fate::Closed) },
            WriteBroken => doubt(504, Counts::Failure, true, Fate::Closed),
            ReadTimeout => doubt(504, Counts::Failure, true, Fate::Closed),
            ConnectionLost => doubt(504, Counts::Failure, true, Fate::Closed),
            StaleConnection => doubt(504, Counts::Aborted, true, Fate::ClosedAndFlushed),
            BadFrame => doubt(bad_reply, Counts::Failure, false, Fate::Closed),
            EchoMismatch => doubt(bad_reply, Counts::Failure, false, Fate::ClosedAndFlushed),
            UndecodableReply => doubt(bad_reply, Counts::Success, false, Fate::Closed),
            InDoubtCode | DuplicateId => doubt(bad_reply, Counts::Success, false, Fate::Kept),
            ShutdownAfterSend => doubt(504, Counts::Aborted, false, Fate::Closed),
            InternalAfterSend => doubt(504, Counts::Aborted, false, Fate::Closed),
            HostDeclined => Policy {
                http: 422,
                code: "HOST_DECLINED",
                record: Record::Failed(Proof::H),
                counts: Counts::Success,
                retry: false,
                fate: Fate::Kept,
            },
            HostNotProcessed => Policy {
                http: 502,
                code: "HOST_ERROR",
                record: Record::Failed(Proof::H),
                counts: Counts::Failure,
                retry: true,
                fate: Fate::Kept,
            },
            OutcomeNotDurable => doubt(504, Counts::Aborted, false, Fate::Kept),
        }
    }

    /// Whether an inquiry that failed so may be answered with what is kept of an earlier one: the host could not be asked, or did
    /// not answer. A decline is an answer, and our own jam is none of the host's failures.
    #[must_use]
    pub const fn is_host_failure(self) -> bool {
        use Failure::*;
        let unasked = matches!(self, CircuitOpen | BudgetExhausted | BudgetUnavailable);
        let unreachable = matches!(self, HostUnreachable | WroteNothingFresh | WroteNothingReused | HostNotProcessed);
        let after_send = matches!(self.policy(Kind::Inquiry).record, Record::Unknown);
        let ours = matches!(self, ShutdownAfterSend | InternalAfterSend | OutcomeNotDurable | RepeatInDoubt);
        unasked || unreachable || (after_send && !ours)
    }

    /// Whether the same call may be made again as it is: nothing was processed.
    #[must_use]
    pub const fn is_retryable(self, kind: Kind) -> bool {
        let http = self.policy(kind).http;
        http == 429 || http == 503 || matches!(self, Self::IdempotencyInProgress | Self::ResolutionInProgress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ExchangeError;

    fn every_row() -> impl Iterator<Item = (Failure, Kind, Policy)> {
        let kinds = [Kind::Inquiry, Kind::Mutation];
        Failure::ALL.iter().flat_map(move |f| kinds.map(|kind| (*f, kind, f.policy(kind))))
    }

    #[test]
    fn every_failure_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = Failure::ALL.iter().map(|failure| failure.name()).collect();
        assert_eq!(names.len(), Failure::ALL.len());
        assert!(names.iter().all(|name| name.len() <= 32), "a journal record has room for 32 bytes");
    }

    #[test]
    fn the_ledger_knows_a_duplicate_id_by_the_name_that_is_given_here() {
        assert_eq!(Failure::DuplicateId.name(), crate::ledger::DUPLICATE_ID);
    }

    #[test]
    fn a_mutations_504_means_in_doubt_and_nothing_else_does() {
        for (failure, _, policy) in every_row().filter(|(_, kind, _)| *kind == Kind::Mutation) {
            assert_eq!(policy.http == 504, policy.record == Record::Unknown, "{failure:?}");
        }
    }

    #[test]
    fn a_503_means_not_processed_and_the_call_may_be_made_again() {
        for (failure, kind, policy) in every_row().filter(|(.., policy)| policy.http == 503) {
            assert_ne!(policy.record, Record::Unknown, "{failure:?}");
            assert_ne!(policy.record, Record::Failed(Proof::H), "{failure:?}");
            assert!(failure.is_retryable(kind), "{failure:?}");
        }
    }

    #[test]
    fn the_breaker_counts_only_what_the_host_did() {
        let ours = [
            Failure::BudgetExhausted,
            Failure::BudgetUnavailable,
            Failure::PoolExhausted,
            Failure::NoLocalSocket,
            Failure::DeadlineBeforeSend,
            Failure::IntentNotDurable,
        ];
        for (failure, _, policy) in every_row() {
            if ours.contains(&failure)
                || failure.name().starts_with("shutdown")
                || failure.name().starts_with("internal")
            {
                assert_eq!(policy.counts, Counts::Aborted, "{failure:?}");
            }
            if policy.record == Record::None {
                assert_eq!(policy.counts, Counts::Never, "{failure:?}");
            }
        }
    }

    #[test]
    fn what_is_kept_stands_in_for_a_host_that_failed_and_never_for_a_decline_or_a_jam_of_ours() {
        use Failure::*;
        let yes =
            [CircuitOpen, BudgetExhausted, BudgetUnavailable, HostUnreachable, ReadTimeout, BadFrame, InDoubtCode];
        assert!(yes.into_iter().all(Failure::is_host_failure));
        let no = [HostDeclined, PoolExhausted, ShutdownAfterSend, InternalBeforeSend, InvalidRequest, IntentNotDurable];
        assert!(!no.into_iter().any(Failure::is_host_failure));
    }

    #[test]
    fn a_timeout_after_sending_is_unknown_and_a_connect_failure_is_failed() {
        for kind in [Kind::Inquiry, Kind::Mutation] {
            assert_eq!(Failure::ReadTimeout.policy(kind).record, Record::Unknown);
            assert_eq!(Failure::HostUnreachable.policy(kind).record, Record::Failed(Proof::P1));
        }
        let partly = ExchangeError::Write { written: 1 };
        assert_eq!(Failure::of_exchange(partly, true), Failure::WriteBroken);
        let nothing = ExchangeError::Write { written: 0 };
        assert_eq!(Failure::of_exchange(nothing, true), Failure::WroteNothingReused);
    }
}
