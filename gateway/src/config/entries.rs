//! The parts of a configuration that come in numbers: institutions, routes, keys; and the rules between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use codec::{Catalog, Framing, LengthForm, LengthPrefix};

use super::InstitutionConfig;
use super::document::{Document, Reader, is_word};
use super::limits::{read_budget, read_cache_rule, read_class};
use crate::filters::auth::{Client, Role};
use crate::resilience::Retry;
use crate::routes::{HostCodes, Kind, OnDoubt, PATH_MAX, Questions, Route, RouteEntry, RouteTable};
use crate::{breaker, pool};

pub(super) fn read_institutions(document: &mut Document) -> BTreeMap<String, InstitutionConfig> {
    let mut institutions = BTreeMap::new();
    for index in document.entries("institution") {
        let mut reader = document.reader(index);
        let name = reader.name();
        if !is_word(&name) {
            reader.refuse("", "an institution's name must be 1 to 64 of A-Z, a-z, 0-9, dot, hyphen, underscore");
        }
        let institution = InstitutionConfig {
            address: reader.address("address"),
            framing: read_framing(&mut reader),
            pool: pool::Settings {
                connections_max: reader.size("connections_max", 1..=10_000),
                borrow_wait: reader.time("borrow_wait"),
                connect_timeout: reader.time("connect_timeout"),
                idle_ttl: reader.time("idle_ttl"),
                life_max: reader.time("life_max"),
            },
            breaker: breaker::Settings {
                failures: u32::try_from(reader.count("breaker_failures", 1..=100_000)).unwrap_or(u32::MAX),
                open: reader.time("breaker_open"),
                open_max: reader.time("breaker_open_max"),
                probes_max: u32::try_from(reader.count("probes_max", 1..=1_000)).unwrap_or(u32::MAX),
                probe_timeout: reader.time("probe_timeout"),
            },
            budget: read_budget(&mut reader, &name),
            retry: Retry {
                retries: u32::try_from(reader.count("retries", 0..=10)).unwrap_or_default(),
                wait_min: reader.time("retry_wait_min"),
                wait_max: reader.time("retry_wait_max"),
            },
            codes: HostCodes {
                success: reader.list("codes_success"),
                declined: reader.list("codes_declined"),
                not_processed: reader.list("codes_not_processed"),
                duplicate: reader.list("codes_duplicate"),
                more: reader.list("codes_more"),
            },
            settle_time: reader.time("settle_time"),
            questions: Arc::new(Questions::default()),
            settled_by: None,
            place: reader.place_of("connect_timeout"),
        };
        let codes = &institution.codes;
        if codes.success.is_empty() {
            reader.refuse("codes_success", "without a code that means success every transaction would be in doubt");
        }
        if institution.retry.wait_max < institution.retry.wait_min {
            reader.refuse("retry_wait_max", "`retry_wait_max` is shorter than `retry_wait_min`");
        }
        let variable = |name: &str| name.to_uppercase().replace('-', "_");
        if institutions.keys().any(|known: &String| variable(known) == variable(&name)) {
            reader.refuse("", "two institutions have one name in environment variables");
        }
        let lists = [&codes.success, &codes.declined, &codes.not_processed, &codes.duplicate, &codes.more];
        let mut all: Vec<_> = lists.into_iter().flatten().collect();
        let count = all.len();
        all.sort();
        all.dedup();
        if all.len() < count {
            reader.refuse("codes_declined", "a response code has two meanings");
        }
        if institution.breaker.open_max < institution.breaker.open {
            reader.refuse("breaker_open_max", "`breaker_open_max` is shorter than `breaker_open`");
        }
        institutions.insert(name, institution);
    }
    institutions
}

fn read_framing(reader: &mut Reader<'_>) -> Framing {
    if reader.text("framing") == "fixed" {
        let request = reader.size("request_length", 1..=65_535);
        return Framing::Fixed { request, reply: reader.size("reply_length", 1..=65_535) };
    }
    let form = match reader.text("length_form").as_str() {
        "binary-16" => LengthForm::BigEndian16,
        "binary-32" => LengthForm::BigEndian32,
        _ => LengthForm::AsciiDigits(reader.size("length_digits", 2..=8)),
    };
    Framing::LengthPrefixed(LengthPrefix {
        form,
        counts_itself: reader.flag("length_counts_itself"),
        body_max: usize::try_from(reader.bytes("body_max", 1)).unwrap_or(usize::MAX),
    })
}

pub(super) fn read_routes(
    document: &mut Document,
    file: &str,
    catalog: &Catalog,
    institutions: &BTreeMap<String, InstitutionConfig>,
) -> RouteTable {
    let mut table = RouteTable::default();
    let mut names = Vec::new();
    for index in document.entries("route") {
        let mut reader = document.reader(index);
        let name = reader.word("name");
        if names.contains(&name) {
            reader.refuse("name", format!("two routes are named `{name}`"));
        }
        names.push(name.clone());
        let (institution_name, deadline) = (reader.word("institution"), reader.time("deadline"));
        let institution = institutions.get(&institution_name);
        if institution.is_none() {
            reader.refuse("institution", format!("there is no institution `{institution_name}`"));
        }
        let mut layout = |key: &str| {
            let name = reader.text(key);
            let layout = catalog.get(&name).cloned();
            if layout.is_none() && !name.is_empty() {
                reader.refuse(key, format!("there is no layout `{name}`"));
            }
            layout
        };
        let (request, reply) = (layout("request"), layout("reply"));
        let kind = if reader.text("kind") == "mutation" { Kind::Mutation } else { Kind::Inquiry };
        let (tx_code, paths) = (reader.word("tx_code"), reader.list("paths"));
        if paths.is_empty() || !paths.iter().all(|path| is_free_path(path)) {
            reader.refuse("paths", PATHS_RULE);
        }
        let ledger_names = ["account", "counter_account", "amount"].map(|key| reader.maybe(key));
        let (Some(institution), Some(request), Some(reply)) = (institution, request, reply) else { continue };
        check_lengths(&mut reader, institution.framing, &request, &reply, ["request", "reply"]);
        check_deadline(&mut reader, institution, deadline);
        let on_doubt = read_on_doubt(&mut reader, kind, &institution.questions);
        let budget_class = read_class(&mut reader, kind.name(), institution);
        let cache = read_cache_rule(&mut reader);
        let codes = institution.codes.clone();
        let entry = RouteEntry {
            name,
            tx_code,
            kind,
            institution: institution_name,
            request,
            reply,
            ledger_names,
            codes,
            deadline,
            settle_time: institution.settle_time,
            on_doubt,
            budget_class,
            cache,
        };
        match Route::new(entry) {
            Ok(route) => {
                if let Err(taken) = table.add(&paths, &Arc::new(route)) {
                    reader.refuse("paths", taken.to_string());
                }
            }
            Err(faults) => faults.into_iter().for_each(|fault| reader.refuse("", fault)),
        }
    }
    if names.is_empty() {
        document.problem(format!("{file}:1"), "there is no route: the gateway would have nothing to do");
    }
    table
}

/// What an institution's other times ask of a route's deadline.
fn check_deadline(reader: &mut Reader<'_>, institution: &InstitutionConfig, deadline: Duration) {
    if institution.pool.connect_timeout >= deadline {
        // Else a black hole ends every call by its deadline, which is ours, and the circuit never opens.
        let message = format!("the deadline must be longer than the connect_timeout at {}", institution.place);
        reader.refuse("deadline", message);
    }
    if institution.breaker.probe_timeout <= deadline {
        // Else a probe that is only slow is given up each time, and a healthy host never becomes CLOSED.
        reader.refuse("deadline", "the institution's probe_timeout must be longer than the deadline");
    }
    if institution.pool.borrow_wait >= deadline {
        // Else our own jam would be told as a deadline, and nobody would look at the pool.
        reader.refuse("deadline", "the institution's borrow_wait must be shorter than the deadline");
    }
    if institution.budget.max_wait.is_some_and(|wait| wait >= deadline) {
        reader.refuse("deadline", "the institution's budget_max_wait must be shorter than the deadline");
    }
}

/// What is done about a doubt, and whether the institution can be asked what that takes.
fn read_on_doubt(reader: &mut Reader<'_>, kind: Kind, questions: &Questions) -> OnDoubt {
    let on_doubt = match reader.text("on_doubt").as_str() {
        "confirm" => OnDoubt::Confirm,
        "manual" => OnDoubt::Manual,
        _ => OnDoubt::NetCancel,
    };
    let Questions { status, net_cancel, tombstones, .. } = questions;
    let missing = match on_doubt {
        _ if kind == Kind::Inquiry => None,
        OnDoubt::NetCancel if net_cancel.is_none() => Some("net_cancel_request"),
        OnDoubt::Confirm if status.is_none() => Some("status_request"),
        // "Not processed" is made final by a net-cancel, never by waiting.
        OnDoubt::Confirm if *tombstones && net_cancel.is_none() => Some("net_cancel_request"),
        _ => None,
    };
    if let Some(missing) = missing {
        let message =
            format!("a doubt is resolved by asking the institution, which has no `{missing}`; or say \"manual\"");
        reader.refuse("on_doubt", message);
    }
    on_doubt
}

const PATHS_RULE: &str = "every path must start with /api/, hold only A-Z, a-z, 0-9, dot, hyphen, underscore and slash, 256 at most, and \
     not be the gateway's own (/api/ledger, circuit, pool, limits, reconciliation, gateway/resolve); and there must be one";

/// Whether a path can be a transaction's: no character that a URL would write otherwise, none of the gateway's own.
fn is_free_path(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/');
    let first = path.strip_prefix("/api/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let own = ["", "ledger", "circuit", "pool", "limits", "reconciliation"];
    path.len() <= PATH_MAX
        && path.bytes().all(plain)
        && !own.contains(&first)
        && !path.starts_with("/api/gateway/resolve")
}

pub(super) fn check_lengths(
    reader: &mut Reader<'_>,
    framing: Framing,
    request: &codec::Layout,
    reply: &codec::Layout,
    [request_key, reply_key]: [&str; 2],
) {
    let fits = |layout: &codec::Layout, fixed: usize| layout.group().is_none() && layout.header_length() == fixed;
    let (request_fits, reply_fits) = match framing {
        Framing::Fixed { request: asked, reply: answered } => (fits(request, asked), fits(reply, answered)),
        Framing::LengthPrefixed(prefix) => {
            let longest =
                |layout: &codec::Layout| layout.header_length() + layout.group().map_or(0, codec::Field::length);
            (prefix.carries(longest(request)), prefix.carries(longest(reply)))
        }
    };
    if !request_fits {
        reader.refuse(
            request_key,
            format!("`{}` has a length that the institution's framing cannot carry", request.name()),
        );
    }
    if !reply_fits {
        reader
            .refuse(reply_key, format!("`{}` has a length that the institution's framing cannot carry", reply.name()));
    }
}

pub(super) fn read_clients(document: &mut Document, file: &str) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    for index in document.entries("client") {
        let mut reader = document.reader(index);
        let name = reader.word("name");
        let role = match reader.text("role").as_str() {
            "auditor" => Role::Auditor,
            "operator" => Role::Operator,
            _ => Role::Client,
        };
        let mut key_hash = [0; 32];
        if hex::decode_to_slice(reader.text("key_sha256"), &mut key_hash).is_err() {
            reader.refuse("key_sha256", "`key_sha256` must be 64 hex digits");
        }
        if clients.iter().any(|client| client.key_hash == key_hash) {
            reader.refuse("key_sha256", "two clients have the same key");
        }
        clients.push(Client { name: Arc::from(name), role, key_hash });
    }
    if clients.is_empty() {
        document.problem(format!("{file}:1"), "there is no client: nobody could call, so the gateway does not start");
    }
    clients
}
