-- The ledger (원장). One row a transaction, inserted once by the shipper; `seq` is the order of recording and the
-- keyset of every listing. docs/OPERATIONS.md explains the columns.
CREATE TABLE ledger (
    seq                    INTEGER PRIMARY KEY AUTOINCREMENT,
    transaction_id         TEXT    NOT NULL UNIQUE,
    tx_code                TEXT    NOT NULL,
    route                  TEXT    NOT NULL,
    kind                   TEXT    NOT NULL CHECK (kind IN ('inquiry', 'mutation')),
    institution            TEXT    NOT NULL,
    client                 TEXT    NOT NULL,
    account_masked         TEXT,
    account_hash           BLOB,
    counter_account_masked TEXT,
    counter_account_hash   BLOB,
    amount                 INTEGER,
    status                 TEXT    NOT NULL CHECK (status IN ('SUCCESS', 'FAILED', 'UNKNOWN')),
    proof                  TEXT    CHECK (proof IN ('P0', 'P1', 'P2', 'H')),
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
    served_from            TEXT    NOT NULL DEFAULT 'host' CHECK (served_from IN ('host', 'cache', 'stale')),
    resolution             TEXT    NOT NULL DEFAULT 'NONE'
        CHECK (resolution IN ('NONE', 'PENDING', 'CONFIRMED_SUCCESS', 'CONFIRMED_FAILED', 'CANCELED', 'MANUAL')),
    resolution_method      TEXT,
    resolved_at            INTEGER,
    CHECK ((status = 'FAILED') = (proof IS NOT NULL))
) STRICT;

CREATE INDEX ledger_client ON ledger (client, seq);
CREATE INDEX ledger_account ON ledger (account_hash, seq) WHERE account_hash IS NOT NULL;
CREATE INDEX ledger_counter_account ON ledger (counter_account_hash, seq) WHERE counter_account_hash IS NOT NULL;
CREATE INDEX ledger_correlation ON ledger (correlation_id);
CREATE INDEX ledger_not_success ON ledger (status, seq) WHERE status <> 'SUCCESS';
CREATE INDEX ledger_unresolved ON ledger (seq) WHERE resolution IN ('PENDING', 'MANUAL');

-- Rows that contradict one that is there, or that SQL refuses: kept, alarmed, never dropped.
CREATE TABLE ledger_parked (
    parked_seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    transaction_id TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    row_json       TEXT    NOT NULL,
    UNIQUE (transaction_id, row_json)
) STRICT;

-- How far each journal has been shipped.
CREATE TABLE journal_checkpoint (
    journal_id  BLOB    NOT NULL PRIMARY KEY,
    segment     INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL
) STRICT;

-- The next block of transaction ids for each instance letter.
CREATE TABLE id_block (
    instance   TEXT    NOT NULL PRIMARY KEY,
    next_block INTEGER NOT NULL
) STRICT;

-- One row a key, written before the intent.
CREATE TABLE idempotency_claim (
    client         TEXT    NOT NULL,
    method         TEXT    NOT NULL,
    path           TEXT    NOT NULL,
    key_hash       BLOB    NOT NULL,
    transaction_id TEXT    NOT NULL,
    claimed_at     INTEGER NOT NULL,
    PRIMARY KEY (client, method, path, key_hash)
) STRICT, WITHOUT ROWID;
