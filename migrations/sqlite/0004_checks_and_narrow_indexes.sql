-- The same columns. SQLite builds the list of an `IN` with more than two values anew for each row that it checks, as a table of its
-- own; five of them cost as much as the row. And an index has the row's `seq` at its end by itself.
CREATE TABLE ledger_4 (
    seq                    INTEGER PRIMARY KEY AUTOINCREMENT,
    transaction_id         TEXT    NOT NULL UNIQUE,
    business_day           TEXT    NOT NULL DEFAULT '',
    tx_code                TEXT    NOT NULL,
    route                  TEXT    NOT NULL,
    kind                   TEXT    NOT NULL CHECK (kind = 'inquiry' OR kind = 'mutation'),
    institution            TEXT    NOT NULL,
    client                 TEXT    NOT NULL,
    account_masked         TEXT,
    account_hash           BLOB,
    counter_account_masked TEXT,
    counter_account_hash   BLOB,
    amount                 INTEGER,
    status                 TEXT    NOT NULL CHECK (status = 'SUCCESS' OR status = 'FAILED' OR status = 'UNKNOWN'),
    proof                  TEXT    CHECK (proof = 'P0' OR proof = 'P1' OR proof = 'P2' OR proof = 'H'),
    response_code          TEXT,
    detail                 TEXT,
    attempts               INTEGER NOT NULL,
    attempt_log            TEXT    NOT NULL,
    requested_at           INTEGER NOT NULL,
    responded_at           INTEGER NOT NULL,
    elapsed_us             INTEGER NOT NULL,
    correlation_id         TEXT    NOT NULL,
    idempotency_key_hash   BLOB,
    layout_version         INTEGER NOT NULL,
    served_from            TEXT    NOT NULL DEFAULT 'host'
        CHECK (served_from = 'host' OR served_from = 'cache' OR served_from = 'stale'),
    resolution             TEXT    NOT NULL DEFAULT 'NONE'
        CHECK (resolution = 'NONE' OR resolution = 'PENDING' OR resolution = 'MANUAL' OR resolution = 'CANCELED'
               OR resolution = 'CONFIRMED_SUCCESS' OR resolution = 'CONFIRMED_FAILED'),
    resolve_as             TEXT    CHECK (resolve_as = 'confirm' OR resolve_as = 'hand'),
    resolution_method      TEXT,
    resolved_at            INTEGER,
    resolved_by            TEXT,
    resolution_note        TEXT,
    resolver_token         TEXT,
    resolver_lease_until   INTEGER,
    next_try_at            INTEGER NOT NULL DEFAULT 0,
    tries                  INTEGER NOT NULL DEFAULT 0,
    cancel_intended_at     INTEGER,
    not_processed_at       INTEGER,
    cancels                INTEGER NOT NULL DEFAULT 0,
    CHECK ((status = 'FAILED') = (proof IS NOT NULL))
) STRICT;

-- The next row is behind all that were there, also behind those that somebody took away.
INSERT INTO sqlite_sequence (name, seq) SELECT 'ledger_4', seq FROM sqlite_sequence WHERE name = 'ledger';
INSERT INTO ledger_4 (
    seq, transaction_id, business_day, tx_code, route, kind, institution, client, account_masked, account_hash,
    counter_account_masked, counter_account_hash, amount, status, proof, response_code, detail, attempts, attempt_log,
    requested_at, responded_at, elapsed_us, correlation_id, idempotency_key_hash, layout_version, served_from, resolution,
    resolve_as, resolution_method, resolved_at, resolved_by, resolution_note, resolver_token, resolver_lease_until,
    next_try_at, tries, cancel_intended_at, not_processed_at, cancels)
SELECT
    seq, transaction_id, business_day, tx_code, route, kind, institution, client, account_masked, account_hash,
    counter_account_masked, counter_account_hash, amount, status, proof, response_code, detail, attempts, attempt_log,
    requested_at, responded_at, elapsed_us, correlation_id, idempotency_key_hash, layout_version, served_from, resolution,
    resolve_as, resolution_method, resolved_at, resolved_by, resolution_note, resolver_token, resolver_lease_until,
    next_try_at, tries, cancel_intended_at, not_processed_at, cancels
FROM ledger ORDER BY seq;
DROP TABLE ledger;
ALTER TABLE ledger_4 RENAME TO ledger;

CREATE INDEX ledger_client ON ledger (client);
CREATE INDEX ledger_correlation ON ledger (correlation_id);
CREATE INDEX ledger_not_success ON ledger (status) WHERE status <> 'SUCCESS';
CREATE INDEX ledger_unresolved ON ledger (seq) WHERE resolution IN ('PENDING', 'MANUAL');
CREATE INDEX ledger_due ON ledger (next_try_at) WHERE resolution IN ('PENDING', 'MANUAL');
CREATE INDEX ledger_day ON ledger (business_day, institution, transaction_id) WHERE kind = 'mutation';
-- Runs of 8,192 rows: what a shipment writes into them is some hundred pages, however many rows it has.
CREATE INDEX ledger_account ON ledger (seq >> 13, account_hash) WHERE account_hash IS NOT NULL;
CREATE INDEX ledger_counter_account ON ledger (seq >> 13, counter_account_hash) WHERE counter_account_hash IS NOT NULL;

CREATE TABLE idempotency_claim_4 (
    client         TEXT    NOT NULL,
    method         TEXT    NOT NULL,
    path           TEXT    NOT NULL,
    key_hash       BLOB    NOT NULL,
    transaction_id TEXT    NOT NULL UNIQUE,
    instance       TEXT    NOT NULL,
    journal_id     BLOB    NOT NULL,
    fingerprint    BLOB    NOT NULL,
    facts          TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (state = 'RUNNING' OR state = 'ABANDONED' OR state = 'ENDED'),
    claimed_at     INTEGER NOT NULL,
    lease_until    INTEGER NOT NULL,
    ended_at       INTEGER,
    answer_status  INTEGER,
    answer_body    BLOB,
    PRIMARY KEY (client, method, path, key_hash)
) STRICT;

INSERT INTO idempotency_claim_4 SELECT
    client, method, path, key_hash, transaction_id, instance, journal_id, fingerprint, facts, state, claimed_at,
    lease_until, ended_at, answer_status, answer_body
FROM idempotency_claim;
DROP TABLE idempotency_claim;
ALTER TABLE idempotency_claim_4 RENAME TO idempotency_claim;

-- One claim is found by its transaction's id in that column's own index, all that are open in claim_open.
CREATE INDEX claim_open ON idempotency_claim (journal_id, lease_until) WHERE state <> 'ENDED';
CREATE INDEX claim_ended ON idempotency_claim (ended_at) WHERE state = 'ENDED';
