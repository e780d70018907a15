//! The messages with which the gateway itself asks an institution: status inquiry, net-cancel, settlement list. Each becomes a
//! route of its own, checked like every other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use codec::{Catalog, FieldType, Layout, Origin};

use super::InstitutionConfig;
use super::document::{Document, Reader};
use super::entries::check_lengths;
use crate::routes::{HostCodes, Kind, OnDoubt, Questions, Route, RouteEntry};

/// One question: the settings with its layouts, the field by which it asks, and the field of the answer that decides.
struct Asked {
    name: &'static str,
    settings: [&'static str; 2],
    by: (&'static str, FieldType),
    answer: &'static str,
    /// The class in which its calls are counted.
    class: &'static str,
}

const STATUS: Asked = Asked {
    name: "status",
    settings: ["status_request", "status_reply"],
    by: ("origTranId", FieldType::Text),
    answer: "processedFlag",
    class: "resolution",
};
const NET_CANCEL: Asked = Asked {
    name: "net-cancel",
    settings: ["net_cancel_request", "net_cancel_reply"],
    by: ("origTranId", FieldType::Text),
    answer: "cancelResult",
    class: "resolution",
};
const SETTLEMENT: Asked = Asked {
    name: "settlement",
    settings: ["settlement_request", "settlement_reply"],
    by: ("settleDate", FieldType::Date),
    answer: "records",
    class: "reconciliation",
};

/// Reads what each institution can be asked.
pub(super) fn read_questions(
    document: &mut Document,
    catalog: &Catalog,
    institutions: &mut BTreeMap<String, InstitutionConfig>,
) {
    let names: Vec<String> = institutions.keys().cloned().collect();
    for index in document.entries("institution") {
        let mut reader = document.reader(index);
        let name = reader.name();
        let Some(institution) = institutions.get_mut(&name) else { continue };
        let deadline = reader.time("question_timeout");
        if institution.pool.connect_timeout >= deadline {
            reader.refuse("question_timeout", "`question_timeout` must be longer than `connect_timeout`");
        }
        if institution.breaker.probe_timeout <= deadline {
            reader.refuse("question_timeout", "`question_timeout` must be shorter than `probe_timeout`");
        }
        let settled_by = reader.maybe("settled_by");
        if settled_by.as_ref().is_some_and(|other| !names.contains(other)) {
            reader.refuse("settled_by", "`settled_by` names no institution");
        }
        let mut read = |asked: &Asked| read_one(&mut reader, asked, catalog, institution, &name, deadline);
        let (status, net_cancel, settlement) = (read(&STATUS), read(&NET_CANCEL), read(&SETTLEMENT));
        let tombstones = reader.flag("tombstones");
        if net_cancel.is_some() && institution.codes.duplicate.is_empty() {
            // A net-cancel after such an answer would undo the other one.
            reader.refuse("net_cancel_request", "needs `codes_duplicate`: which code says that an id was used before");
        }
        institution.questions = Arc::new(Questions { status, net_cancel, settlement, tombstones });
        institution.settled_by = settled_by;
    }
    let asked: Vec<(String, Option<String>)> =
        institutions.iter().map(|(name, one)| (name.clone(), one.settled_by.clone())).collect();
    for (name, settled_by) in &asked {
        let shared = settled_by.is_some() && asked.iter().any(|(other, by)| other != name && by == settled_by);
        if shared {
            let place = institutions.get(name).map(|one| one.place.clone()).unwrap_or_default();
            document.problem(place, "two institutions have the same `settled_by`: its list could not be told apart");
        }
        let list = settled_by.as_ref().and_then(|other| institutions.get(other));
        if list.is_some_and(|other| other.questions.settlement.is_none()) {
            let place = institutions.get(name).map(|one| one.place.clone()).unwrap_or_default();
            document.problem(place, "`settled_by` names an institution without a `settlement_request`");
        }
    }
}

fn read_one(
    reader: &mut Reader<'_>,
    asked: &Asked,
    catalog: &Catalog,
    institution: &InstitutionConfig,
    name: &str,
    deadline: Duration,
) -> Option<Arc<Route>> {
    let names = asked.settings.map(|setting| (setting, reader.maybe(setting)));
    let [(request_key, Some(request)), (reply_key, Some(reply))] = &names else {
        if let Some((setting, _)) = names.iter().find(|(_, given)| given.is_some()) {
            reader.refuse(setting, "a question has two layouts, its request and its reply");
        }
        return None;
    };
    let mut layout = |key: &str, name: &str| {
        let layout = catalog.get(name).cloned();
        if layout.is_none() {
            reader.refuse(key, format!("there is no layout `{name}`"));
        }
        layout
    };
    let (request, reply) = (layout(request_key, request), layout(reply_key, reply));
    let (request, reply) = (request?, reply?);
    let (field, kind) = asked.by;
    let from_us = |layout: &Layout| {
        let by = layout.field(field).filter(|by| by.kind() == kind);
        by.is_some_and(|by| matches!(by.origin(), Origin::Body { .. }))
    };
    // Else another one's answer could be taken for ours.
    let echoed = reply.field(field).is_some_and(codec::Field::is_echo);
    if !from_us(&request) || !echoed || reply.field(asked.answer).is_none() {
        let message = format!("needs `{field}` in its request, and its echo and `{}` in its reply", asked.answer);
        reader.refuse(request_key, message);
        return None;
    }
    if !institution.budget.classes.iter().any(|known| known.name == asked.class) {
        reader.refuse("budget_classes", format!("questions need a class `{}` in `budget_classes`", asked.class));
    }
    check_lengths(reader, institution.framing, &request, &reply, [request_key, reply_key]);
    let codes = &institution.codes;
    // An answer about another transaction is an answer, whatever its code says about that one. A list that is refused is none.
    let about_another = if asked.name == SETTLEMENT.name { &codes.more } else { &codes.declined };
    let success: Vec<String> = [&codes.success, about_another].into_iter().flatten().cloned().collect();
    let entry = RouteEntry {
        name: asked.name.to_owned(),
        tx_code: asked.name.to_owned(),
        kind: Kind::Inquiry,
        institution: name.to_owned(),
        request,
        reply,
        ledger_names: [None, None, None],
        codes: HostCodes { success, declined: Vec::new(), ..codes.clone() },
        deadline,
        settle_time: institution.settle_time,
        on_doubt: OnDoubt::Manual,
        budget_class: asked.class.to_owned(),
        cache: None,
    };
    match Route::new(entry) {
        Ok(route) => Some(Arc::new(route)),
        Err(faults) => {
            faults.into_iter().for_each(|fault| reader.refuse(request_key, fault));
            None
        }
    }
}
