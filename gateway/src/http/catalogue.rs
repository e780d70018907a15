//! `docs/FAILURES.md`, rendered from the failure table and the texts, so that it can't be wrong. A test compares.

use super::texts::{Language, of_failure};
use crate::failure::{Counts, Failure, Fate, Policy, Record};
use crate::routes::Kind;

/// The table as Markdown: one row for each failure, inquiry and mutation side by side where they differ.
#[must_use]
pub fn render_markdown() -> String {
    let mut text = String::from(
        "| failure | HTTP · code | ledger | breaker | retried (inquiry) | connection | what the caller reads |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for failure in Failure::ALL {
        let (inquiry, mutation) = (failure.policy(Kind::Inquiry), failure.policy(Kind::Mutation));
        let both = |show: &dyn Fn(&Policy) -> String| {
            let (one, other) = (show(&inquiry), show(&mutation));
            if one == other { one } else { format!("inquiry {one}, mutation {other}") }
        };
        let row = format!(
            "| `{}` | {} | {} | {} | {} | {} | {} |\n",
            failure.name(),
            both(&|policy| format!("{} `{}`", policy.http, policy.code)),
            both(&|policy| record(policy.record)),
            both(&|policy| counts(policy.counts).to_owned()),
            if inquiry.retry { "yes" } else { "no" },
            both(&|policy| fate(policy.fate).to_owned()),
            of_failure(*failure, Language::English),
        );
        text.push_str(&row);
    }
    text
}

fn record(record: Record) -> String {
    match record {
        Record::None => "no row".to_owned(),
        Record::Failed(proof) => format!("FAILED, {}", proof.name()),
        Record::Unknown => "UNKNOWN".to_owned(),
    }
}

fn counts(counts: Counts) -> &'static str {
    match counts {
        Counts::Never => "no permit",
        Counts::Aborted => "aborted",
        Counts::Failure => "failure",
        Counts::Success => "success",
    }
}

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::None => "none lent",
        Fate::Kept => "kept",
        Fate::Closed => "closed",
        Fate::ClosedAndFlushed => "closed, older idle ones too",
    }
}
