//! Routes: which path leads to which institution (기관) with which messages, all of it data. A route is checked when it
//! is made, so that on the request path nothing is looked up by name and nothing can be missing.

mod table;

use std::sync::Arc;
use std::time::Duration;

use codec::{FieldType, Fill, Layout, Origin, Record, Value, decode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use table::{PathTaken, RouteTable};

/// Most bytes of an answer that is kept for repeats: a journal record has a bound.
pub const ANSWER_MAX: usize = 2_048;
/// Most bytes of a route's path, which the journal may keep: a record has a bound.
pub const PATH_MAX: usize = 256;
/// Longest field in bytes that a ledger row takes: a journal record has a bound, and must always fit.
const LEDGER_TEXT_MAX: usize = 64;

/// What a transaction does to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Asks and changes nothing; may be asked again.
    Inquiry,
    /// Moves money; one frame an id, ever.
    Mutation,
}

impl Kind {
    /// The word in configurations and in the ledger.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inquiry => "inquiry",
            Self::Mutation => "mutation",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Inquiry, Self::Mutation].into_iter().find(|kind| kind.name() == name)
    }
}

/// What an institution's response codes mean.
#[derive(Debug, Clone, Default)]
pub struct HostCodes {
    /// Processed.
    pub success: Vec<String>,
    /// Refused for a business reason: will not be processed.
    pub declined: Vec<String>,
    /// A system error after which the host says that it did not process.
    pub not_processed: Vec<String>,
    /// The id was used before.
    pub duplicate: Vec<String>,
    /// A page of a list, and more pages follow.
    pub more: Vec<String>,
}

/// The fields of a request that a ledger row takes, by index in the request's layout.
#[derive(Debug, Clone, Copy, Default)]
pub struct LedgerFields {
    /// The account.
    pub account: Option<usize>,
    /// The other account of a transfer.
    pub counter_account: Option<usize>,
    /// The amount in won.
    pub amount: Option<usize>,
}

/// A route as it is configured.
#[derive(Debug, Clone)]
pub struct RouteEntry {
    /// Short name, for the ledger and for metrics.
    pub name: String,
    /// The transaction code (거래코드).
    pub tx_code: String,
    /// What it does to the host.
    pub kind: Kind,
    /// The institution's name.
    pub institution: String,
    /// The request's layout.
    pub request: Arc<Layout>,
    /// The reply's layout.
    pub reply: Arc<Layout>,
    /// Names of the fields that the ledger row takes: account, counter account, amount.
    pub ledger_names: [Option<String>; 3],
    /// The institution's codes.
    pub codes: HostCodes,
    /// Time for the whole transaction.
    pub deadline: Duration,
    /// How long after the deadline a request may still be processed by the host.
    pub settle_time: Duration,
    /// What is done about a mutation whose result is not known.
    pub on_doubt: OnDoubt,
    /// The class in which its calls are counted.
    pub budget_class: String,
    /// How long its replies may be given again; none, and they are not.
    pub cache: Option<CacheRule>,
}

/// How long a reply may be given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRule {
    /// As if the host had just said it.
    pub ttl: Duration,
    /// For so long again when the host fails, and marked as stale.
    pub grace: Duration,
}

/// What is done about a mutation whose result is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDoubt {
    /// It is undone (망취소): its caller already got an error.
    #[default]
    NetCancel,
    /// The host is asked first, and what it processed stands.
    Confirm,
    /// Nobody asks: a person looks.
    Manual,
}

/// What the gateway itself may ask an institution.
#[derive(Debug, Default)]
pub struct Questions {
    /// Whether an original was processed.
    pub status: Option<Arc<Route>>,
    /// To undo an original, or to make sure that it will never be processed.
    pub net_cancel: Option<Arc<Route>>,
    /// What was processed on a day.
    pub settlement: Option<Arc<Route>>,
    /// Whether a net-cancel of an unknown original makes the institution refuse it for good.
    pub tombstones: bool,
}

/// One route, checked: its entry, and what follows from it.
#[derive(Debug)]
pub struct Route {
    entry: RouteEntry,
    /// Fields for the ledger row.
    pub ledger: LedgerFields,
    /// Request fields that the gateway fills.
    pub fills: Vec<(usize, Fill)>,
    /// Whether a reply repeats the transaction id, and so can be nobody else's.
    pub echoes_id: bool,
    /// Byte ranges: in the reply, in the request.
    echoes: Vec<(std::ops::Range<usize>, std::ops::Range<usize>)>,
    response_code: usize,
    response_message: Option<usize>,
}

impl std::ops::Deref for Route {
    type Target = RouteEntry;

    fn deref(&self) -> &RouteEntry {
        &self.entry
    }
}

/// What a reply says.
#[derive(Debug)]
pub enum Interpretation {
    /// Processed.
    Success(Record),
    /// Refused for a business reason.
    Declined(HostAnswer),
    /// Not processed, says the host.
    NotProcessed(HostAnswer),
    /// A code that proves nothing.
    InDoubt(HostAnswer),
    /// The host has seen this id before: the reply speaks of another request.
    DuplicateId(HostAnswer),
    /// Another one's reply.
    EchoMismatch,
    /// Ours, by its echo, but it does not parse.
    Undecodable(codec::FieldError),
}

/// The host's own code and message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostAnswer {
    /// The response code.
    pub code: String,
    /// The message in the host's words.
    pub message: String,
}

impl Route {
    /// Checks an entry and makes a route.
    ///
    /// # Errors
    /// Every fault, in sentences.
    pub fn new(entry: RouteEntry) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let (request, reply) = (&entry.request, &entry.reply);
        let mut field = |name: &Option<String>, kind: FieldType| {
            let name = name.as_ref()?;
            let from_body = |field: &codec::Field| matches!(field.origin(), Origin::Body { .. });
            let fits = |field: &codec::Field| {
                field.name() == name && field.kind() == kind && from_body(field) && field.length() <= LEDGER_TEXT_MAX
            };
            if !request.fields().iter().any(fits) {
                faults.push(format!(
                    "ledger field `{name}` is not a body field of `{}` with the right type, {LEDGER_TEXT_MAX} bytes at most",
                    request.name()
                ));
            }
            request.index_of(name)
        };
        let [account, counter_account, amount] = &entry.ledger_names;
        let ledger = LedgerFields {
            account: field(account, FieldType::Digits),
            counter_account: field(counter_account, FieldType::Digits),
            amount: field(amount, FieldType::Amount),
        };
        let id_field = request.index_of_fill(Fill::TransactionId);
        if entry.kind == Kind::Mutation && id_field.is_none() {
            faults.push(format!("a mutation needs a field filled with the transaction id in `{}`", request.name()));
        }
        let response_code = reply.index_of("responseCode");
        if response_code.is_none() {
            faults.push(format!("`{}` has no field `responseCode`", reply.name()));
        }
        if reply.field("responseCode").is_some_and(|code| code.length() > LEDGER_TEXT_MAX) {
            faults.push(format!("`responseCode` of `{}` has more than {LEDGER_TEXT_MAX} bytes", reply.name()));
        }
        let mut echoes = Vec::new();
        let mut echoes_id = false;
        for echo in reply.fields().iter().filter(|field| field.is_echo()) {
            match request.field(echo.name()) {
                Some(asked) if asked.length() == echo.length() => {
                    let range = |field: &codec::Field| field.offset()..field.offset() + field.length();
                    echoes.push((range(echo), range(asked)));
                    echoes_id |= request.index_of(echo.name()) == id_field && id_field.is_some();
                }
                _ => faults.push(format!("echo field `{}` has no equal in `{}`", echo.name(), request.name())),
            }
        }
        if echoes.is_empty() {
            faults.push(format!("`{}` has no echo field, so a reply could be anybody's", reply.name()));
        }
        if entry.kind == Kind::Mutation && answer_bytes_max(reply).is_none_or(|most| most > ANSWER_MAX) {
            faults.push(format!(
                "`{}` may lead to an answer of more than {ANSWER_MAX} bytes; a mutation's answer is kept for repeats",
                reply.name()
            ));
        }
        if entry.cache.is_some() {
            // Whatever concerns one person must never reach another: only what two layouts and the kind say is for everybody.
            let personal = entry.ledger_names.iter().any(Option::is_some) || !request.is_public() || !reply.is_public();
            if entry.kind == Kind::Mutation || personal {
                faults.push(format!(
                    "only an inquiry without ledger fields may be cached, and only if `{}` and `{}` both say `public = true`",
                    request.name(),
                    reply.name()
                ));
            }
        }
        let fills = [Fill::TransactionId, Fill::BusinessDate, Fill::Time];
        let fills = fills.into_iter().filter_map(|fill| Some((request.index_of_fill(fill)?, fill))).collect();
        let (Some(response_code), true) = (response_code, faults.is_empty()) else { return Err(faults) };
        let response_message = reply.index_of("responseMessage");
        Ok(Self { entry, ledger, fills, echoes_id, echoes, response_code, response_message })
    }

    /// SHA-256 of a frame without what the gateway filled in: two requests with one body have one fingerprint.
    #[must_use]
    pub fn fingerprint(&self, frame: &[u8]) -> Vec<u8> {
        Sha256::digest(self.without_fills(frame)).to_vec()
    }

    /// Under what a reply to this frame is kept: the route, both layouts' versions, and every byte that the caller decides.
    #[must_use]
    pub fn cache_key(&self, frame: &[u8]) -> String {
        let asked = hex::encode(Sha256::digest(self.without_fills(frame)));
        let (request, reply) = (self.request.version(), self.reply.version());
        format!("gwanmun:cache:{}:{request}.{reply}:{asked}", self.name)
    }

    fn without_fills(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        for field in self.fills.iter().filter_map(|(index, _)| self.request.fields().get(*index)) {
            if let Some(bytes) = frame.get_mut(field.offset()..field.offset() + field.length()) {
                bytes.fill(b' ');
            }
        }
        frame
    }

    /// Reads a whole reply to the request that went out as `sent`.
    #[must_use]
    pub fn interpret(&self, sent: &[u8], reply: &[u8]) -> Interpretation {
        // A frame of another length may still carry our echo: compare first, so that "ours but broken" is told apart.
        let same = |(there, here): &(std::ops::Range<usize>, std::ops::Range<usize>)| {
            reply.get(there.clone()).is_some_and(|echo| Some(echo) == sent.get(here.clone()))
        };
        if !self.echoes.iter().all(same) {
            return Interpretation::EchoMismatch;
        }
        let record = match decode(&self.reply, reply) {
            Ok(record) => record,
            Err(error) => return Interpretation::Undecodable(error),
        };
        let text = |index: usize| match record.at(index) {
            Value::Text(text) => text.to_owned(),
            _ => String::new(),
        };
        let answer =
            HostAnswer { code: text(self.response_code), message: self.response_message.map(text).unwrap_or_default() };
        let has = |codes: &[String]| codes.contains(&answer.code);
        if has(&self.codes.success) {
            Interpretation::Success(record)
        } else if has(&self.codes.declined) {
            Interpretation::Declined(answer)
        } else if has(&self.codes.not_processed) {
            Interpretation::NotProcessed(answer)
        } else if has(&self.codes.duplicate) {
            Interpretation::DuplicateId(answer)
        } else {
            Interpretation::InDoubt(answer)
        }
    }
}

/// Most bytes of the answers that a reply can lead to; `None` when it holds a group, whose size has no small bound.
fn answer_bytes_max(reply: &Layout) -> Option<usize> {
    // What stands around the reply's fields: ids, status, and a problem's sentences.
    const ENVELOPE: usize = 1_024;
    if reply.group().is_some() {
        return None;
    }
    // Escaping doubles a byte at most; a syllable of two bytes becomes three.
    let most = |field: &codec::Field| field.name().len() + 8 + 2 * field.length().max(12);
    Some(ENVELOPE + reply.fields().iter().filter(|field| !field.is_echo()).map(most).sum::<usize>())
}
