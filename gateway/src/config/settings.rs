//! Every setting: section, name, unit, default, and what it is for. The reader refuses what is not in this table, and the
//! table in docs/OPERATIONS.md is rendered from it.

/// What a value is, and so how its text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// `host:port`.
    Address,
    /// A whole number.
    Count,
    /// Bytes: `16KiB`, `1GiB`, or a plain number.
    Bytes,
    /// A time: `200ms`, `5s`, `2m`.
    Time,
    /// Text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A folder.
    Folder,
    /// A list of texts.
    List,
    /// A secret; never shown.
    Secret,
}

impl Unit {
    /// The word in the documentation.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Address => "host:port".to_owned(),
            Self::Count => "count".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Time => "time".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Choice(words) => words.join(" \\| "),
            Self::Flag => "true \\| false".to_owned(),
            Self::Folder => "folder".to_owned(),
            Self::List => "list".to_owned(),
            Self::Secret => "secret".to_owned(),
        }
    }
}

/// What stands when a setting is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// This.
    Is(&'static str),
    /// The setting must be given.
    Required,
    /// Nothing.
    None,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The table in the file; `institution` stands for each `institution.NAME`, `route` and `client` for each entry.
    pub section: &'static str,
    /// The key.
    pub name: &'static str,
    /// What the value is.
    pub unit: Unit,
    /// What stands when it is left out.
    pub default: Default,
    /// What it is for.
    pub about: &'static str,
}

const fn is(
    section: &'static str,
    name: &'static str,
    unit: Unit,
    default: &'static str,
    about: &'static str,
) -> Setting {
    Setting { section, name, unit, default: Default::Is(default), about }
}

const fn required(section: &'static str, name: &'static str, unit: Unit, about: &'static str) -> Setting {
    Setting { section, name, unit, default: Default::Required, about }
}

const fn optional(section: &'static str, name: &'static str, unit: Unit, about: &'static str) -> Setting {
    Setting { section, name, unit, default: Default::None, about }
}

const INSTITUTION: &str = "institution";

/// All settings.
pub const SETTINGS: &[Setting] = &[
    is("server", "listen", Unit::Address, "127.0.0.1:8080", "Where HTTP is served."),
    is("server", "connections_max", Unit::Count, "2048", "HTTP connections at a time; one more waits in the kernel."),
    is("server", "admission_max", Unit::Count, "256", "Transactions at a time; one more gets 503 OVERLOADED at once."),
    is("server", "first_byte_timeout", Unit::Time, "10s", "A new connection that sends nothing is closed after this."),
    is("server", "head_timeout", Unit::Time, "5s", "A request head must be whole this long after its first byte."),
    is("server", "idle_timeout", Unit::Time, "75s", "A kept connection without a request is closed after this."),
    is("server", "body_timeout", Unit::Time, "5s", "A body must be whole this long after its head."),
    is("server", "body_max", Unit::Bytes, "16KiB", "A longer body gets 413."),
    is("server", "head_max", Unit::Bytes, "16KiB", "A longer head gets 431; at least 8KiB."),
    is("server", "headers_max", Unit::Count, "64", "More header lines get 431."),
    is("server", "drain", Unit::Time, "10s", "After SIGTERM the process is gone within this."),
    is(
        "ledger",
        "data",
        Unit::Folder,
        "gwanmun-data",
        "Journal, SQLite file, search key; belongs to one process; relative to the configuration file.",
    ),
    is(
        "ledger",
        "instance",
        Unit::Text,
        "U",
        "The letter in transaction ids, 0-9 or A-Z, one for each gateway on a store.",
    ),
    is(
        "ledger",
        "journal_limit",
        Unit::Bytes,
        "1GiB",
        "Journal space; when the store is down so long that it is full, new transactions get 503.",
    ),
    is(
        "ledger",
        "sync_interval",
        Unit::Time,
        "20ms",
        "What an inquiry may lose to a power cut; mutations are synced at once.",
    ),
    is("ledger", "store", Unit::Choice(&["sqlite", "postgres"]), "sqlite", "Where rows and idempotency keys are kept."),
    optional(
        "ledger",
        "postgres_url",
        Unit::Secret,
        "postgres://user:password@host/database; better set by environment variable. Without TLS: keep the way private.",
    ),
    is(
        "ledger",
        "instance_lease",
        Unit::Time,
        "10s",
        "How long the instance letter stays ours without a word; another data folder waits that long for it.",
    ),
    is(
        "ledger",
        "idempotency_keep",
        Unit::Time,
        "24h",
        "How long a key is kept after its transaction has ended, and after a doubt was resolved.",
    ),
    optional(
        "ledger",
        "search_key",
        Unit::Secret,
        "Key of the account hash, at least 32 characters; left out, one is made in the data folder.",
    ),
    is("resolver", "enabled", Unit::Flag, "true", "Whether doubts are resolved by themselves; else only on demand."),
    is("resolver", "poll", Unit::Time, "500ms", "How often the resolver looks for rows in doubt."),
    is("resolver", "at_once", Unit::Count, "4", "Rows in doubt that one gateway asks about at a time."),
    is(
        "resolver",
        "wait_min",
        Unit::Time,
        "1s",
        "Wait after the first question that decided nothing; doubles, with jitter.",
    ),
    is("resolver", "wait_max", Unit::Time, "10m", "Longest such wait."),
    optional(
        "reconciliation",
        "daily_at",
        Unit::Text,
        "HH:MM in Seoul at which yesterday is reconciled; left out, only on demand.",
    ),
    optional(
        "redis",
        "url",
        Unit::Secret,
        "redis://user:password@host:port/db, for budgets, client limits and the cache; better set by environment variable. Without TLS: keep the way private.",
    ),
    optional(
        "budget",
        "postgres_url",
        Unit::Secret,
        "Database of the call budgets, if it is not the ledger's; better set by environment variable.",
    ),
    is("budget", "statement_timeout", Unit::Time, "500ms", "The database's own limit for one question about a slot."),
    is(
        "budget",
        "store_outage_max",
        Unit::Time,
        "2s",
        "When nothing has succeeded for this long since a first failure, all calls are refused at once until the database answers.",
    ),
    is(
        "cache",
        "store",
        Unit::Choice(&["memory", "redis"]),
        "memory",
        "Where replies are kept that may be given again.",
    ),
    is("cache", "entries_max", Unit::Count, "1000", "Replies that are kept in memory at most."),
    is(
        "client_limit",
        "store",
        Unit::Choice(&["memory", "redis"]),
        "memory",
        "Where clients' calls are counted: by each gateway, or by all together. While Redis does not answer, everybody passes.",
    ),
    is("client_limit", "burst", Unit::Count, "100", "Calls that a client may make at once after a pause."),
    is("client_limit", "rate", Unit::Count, "50", "Calls a second that a client may make for ever."),
    is("log", "format", Unit::Choice(&["text", "json"]), "text", "How log lines look; they go to standard error."),
    is("log", "level", Unit::Choice(&["error", "warn", "info", "debug", "trace"]), "info", "What is logged."),
    optional(
        "layouts",
        "folder",
        Unit::Folder,
        "More layout files, beside the built-in ones; relative to the configuration file.",
    ),
    is(
        "demo",
        "delay_ms",
        Unit::Count,
        "5000",
        "How long the simulator's slow accounts wait, in milliseconds (demo only).",
    ),
    required(INSTITUTION, "address", Unit::Address, "The host's address."),
    required(
        INSTITUTION,
        "framing",
        Unit::Choice(&["fixed", "length-prefixed"]),
        "How messages are cut out of the stream.",
    ),
    optional(INSTITUTION, "request_length", Unit::Count, "Bytes of every request (fixed framing)."),
    optional(INSTITUTION, "reply_length", Unit::Count, "Bytes of every reply (fixed framing)."),
    is(
        INSTITUTION,
        "length_form",
        Unit::Choice(&["ascii", "binary-16", "binary-32"]),
        "ascii",
        "How the length header is written (length-prefixed framing).",
    ),
    is(INSTITUTION, "length_digits", Unit::Count, "4", "Digits of an ASCII length header, 2 to 8."),
    is(INSTITUTION, "length_counts_itself", Unit::Flag, "false", "Whether the length header counts its own bytes."),
    is(INSTITUTION, "body_max", Unit::Bytes, "9999", "Longest body that is read (length-prefixed framing)."),
    is(
        INSTITUTION,
        "connections_max",
        Unit::Count,
        "4",
        "Connections at a time, of any kind: the lines in the contract.",
    ),
    is(
        INSTITUTION,
        "borrow_wait",
        Unit::Time,
        "1s",
        "How long a transaction waits for a connection; then 503 GATEWAY_SATURATED.",
    ),
    is(
        INSTITUTION,
        "connect_timeout",
        Unit::Time,
        "1s",
        "How long connecting may take; must be shorter than every deadline.",
    ),
    is(INSTITUTION, "idle_ttl", Unit::Time, "30s", "An idle connection older than this is closed."),
    is(INSTITUTION, "life_max", Unit::Time, "30m", "A connection older than this is closed after its exchange."),
    is(INSTITUTION, "retries", Unit::Count, "2", "Tries after the first, for inquiries only."),
    is(INSTITUTION, "retry_wait_min", Unit::Time, "50ms", "Shortest wait before a retry."),
    is(INSTITUTION, "retry_wait_max", Unit::Time, "200ms", "Longest wait before a retry."),
    is(INSTITUTION, "breaker_failures", Unit::Count, "5", "Failures in a row that open the circuit."),
    is(INSTITUTION, "breaker_open", Unit::Time, "5s", "How long the circuit stays open at first."),
    is(INSTITUTION, "breaker_open_max", Unit::Time, "60s", "What doubling makes of that at most."),
    is(INSTITUTION, "probes_max", Unit::Count, "1", "Probes at a time while half open."),
    is(INSTITUTION, "probe_timeout", Unit::Time, "10s", "A probe without a result for this long is given up."),
    is(
        INSTITUTION,
        "budget",
        Unit::Choice(&["off", "memory", "redis", "postgres"]),
        "off",
        "Who counts the calls to it: nobody, this process, a bucket in Redis, or send slots from PostgreSQL. Re-read on SIGHUP, like all `budget_…`.",
    ),
    optional(
        INSTITUTION,
        "budget_key",
        Unit::Secret,
        "Key of the contract whose calls are counted; kept as a hash. Left out, the institution's name.",
    ),
    optional(INSTITUTION, "budget_limit", Unit::Count, "Calls a second that the contract allows."),
    optional(
        INSTITUTION,
        "budget_burst",
        Unit::Count,
        "Calls at once after a pause, in memory and Redis; left out, `budget_limit`.",
    ),
    is(
        INSTITUTION,
        "budget_window",
        Unit::Time,
        "100ms",
        "From a slot to the last moment at which its message may leave; 1s at most.",
    ),
    is(INSTITUTION, "budget_jitter", Unit::Time, "50ms", "How much the time to the institution varies; 1s at most."),
    is(
        INSTITUTION,
        "budget_rtt_max",
        Unit::Time,
        "50ms",
        "A slot whose answer took longer is thrown away; must be shorter than `budget_window`.",
    ),
    optional(
        INSTITUTION,
        "budget_max_wait",
        Unit::Time,
        "How long a call waits for a slot; left out, half its deadline. Then 503 BUDGET_EXHAUSTED.",
    ),
    is(
        INSTITUTION,
        "budget_without_redis",
        Unit::Choice(&["open", "closed"]),
        "open",
        "Whether calls pass while Redis does not answer.",
    ),
    is(
        INSTITUTION,
        "budget_classes",
        Unit::List,
        "mutation:1:0,resolution:2:20,inquiry:3:10,reconciliation:4:5",
        "Classes of calls as name:priority:floor. The smaller priority goes first; a floor is the share in percent that a class gets in any case.",
    ),
    required(INSTITUTION, "codes_success", Unit::List, "Response codes that mean: processed."),
    is(INSTITUTION, "codes_declined", Unit::List, "", "Response codes that mean: refused, will not be processed."),
    is(INSTITUTION, "codes_not_processed", Unit::List, "", "Response codes that mean: system error, not processed."),
    is(INSTITUTION, "codes_duplicate", Unit::List, "", "Response codes that mean: this id was used before."),
    is(INSTITUTION, "codes_more", Unit::List, "", "Response codes of a list that mean: more pages follow."),
    is(
        INSTITUTION,
        "settle_time",
        Unit::Time,
        "60s",
        "How long after its deadline a request may still be processed by the host.",
    ),
    optional(INSTITUTION, "status_request", Unit::Text, "Layout that asks whether an original was processed."),
    optional(INSTITUTION, "status_reply", Unit::Text, "Its reply."),
    optional(INSTITUTION, "net_cancel_request", Unit::Text, "Layout of the net-cancel (망취소)."),
    optional(INSTITUTION, "net_cancel_reply", Unit::Text, "Its reply."),
    is(
        INSTITUTION,
        "tombstones",
        Unit::Flag,
        "false",
        "Whether a net-cancel of an unknown original makes the host refuse it for good; without, proofs are weaker.",
    ),
    optional(
        INSTITUTION,
        "settlement_request",
        Unit::Text,
        "Layout that asks for the list of a day; with a field `pageKey` page by page.",
    ),
    optional(INSTITUTION, "settlement_reply", Unit::Text, "Its reply."),
    optional(INSTITUTION, "settled_by", Unit::Text, "Institution whose list has what this one processed."),
    is(INSTITUTION, "question_timeout", Unit::Time, "3s", "Time for one such question, from sending to reply."),
    required("route", "name", Unit::Text, "Short name, for the ledger and metrics."),
    required("route", "paths", Unit::List, "Paths that lead here."),
    required("route", "tx_code", Unit::Text, "The transaction code (거래코드)."),
    required("route", "kind", Unit::Choice(&["inquiry", "mutation"]), "Whether it changes anything at the host."),
    required("route", "institution", Unit::Text, "Where it goes."),
    required("route", "request", Unit::Text, "Layout of the request."),
    required("route", "reply", Unit::Text, "Layout of the reply."),
    optional("route", "account", Unit::Text, "Request field that is the account in the ledger."),
    optional("route", "counter_account", Unit::Text, "Request field that is the other account."),
    optional("route", "amount", Unit::Text, "Request field that is the amount."),
    is("route", "deadline", Unit::Time, "3s", "Time for the whole transaction, from acceptance to reply."),
    is(
        "route",
        "on_doubt",
        Unit::Choice(&["net-cancel", "confirm", "manual"]),
        "net-cancel",
        "What is done about a mutation whose result is not known: undo it, ask and let it stand, or leave it to people.",
    ),
    optional("route", "budget_class", Unit::Text, "Class of its calls; left out, `inquiry` or `mutation`."),
    optional(
        "route",
        "cache_ttl",
        Unit::Time,
        "How long a reply is given again. Only for inquiries whose layouts say `public = true` and that put no field into the ledger.",
    ),
    optional(
        "route",
        "cache_grace",
        Unit::Time,
        "For so long after that it is given, marked as stale, when the institution fails.",
    ),
    required("client", "name", Unit::Text, "Whose key it is; stands in the ledger."),
    required("client", "role", Unit::Choice(&["client", "auditor", "operator"]), "What the key may do."),
    required("client", "key_sha256", Unit::Text, "SHA-256 of the key, 64 hex digits; `gwanmun keys new` prints it."),
];

/// The settings of one section.
pub(super) fn of_section(section: &str) -> impl Iterator<Item = &'static Setting> + '_ {
    SETTINGS.iter().filter(move |setting| setting.section == section)
}

/// The table for docs/OPERATIONS.md.
#[must_use]
pub fn render_markdown() -> String {
    let mut text = String::from("| section | setting | unit | default | what it is for |\n|---|---|---|---|---|\n");
    for setting in SETTINGS {
        let default = match setting.default {
            Default::Is("") => "none".to_owned(),
            Default::Is(text) => format!("`{text}`"),
            Default::Required => "**required**".to_owned(),
            Default::None => "none".to_owned(),
        };
        let section = match setting.section {
            "institution" => "institution.NAME",
            "route" => "[[route]]",
            "client" => "[[client]]",
            section => section,
        };
        text.push_str(&format!(
            "| `{section}` | `{}` | {} | {default} | {} |\n",
            setting.name,
            setting.unit.name(),
            setting.about
        ));
    }
    text
}
