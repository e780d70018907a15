-- Idempotency with stored answers, resolution of UNKNOWN, reconciliation, instance leases. The same tables as in
-- migrations/postgres/0001_ledger.sql; docs/OPERATIONS.md explains the columns.
ALTER TABLE ledger ADD COLUMN business_day TEXT NOT NULL DEFAULT '';
UPDATE ledger SET business_day = substr(transaction_id, 6, 8);
-- 'confirm': its journal was retired; 'hand': nothing may be asked of the host about it.
ALTER TABLE ledger ADD COLUMN resolve_as TEXT CHECK (resolve_as IN ('confirm', 'hand'));
ALTER TABLE ledger ADD COLUMN resolver_token TEXT;
ALTER TABLE ledger ADD COLUMN resolver_lease_until INTEGER;
ALTER TABLE ledger ADD COLUMN next_try_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN cancel_intended_at INTEGER;
ALTER TABLE ledger ADD COLUMN not_processed_at INTEGER;
-- Net-cancels that may have left; each that was answered has a step.
ALTER TABLE ledger ADD COLUMN cancels INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN resolved_by TEXT;
ALTER TABLE ledger ADD COLUMN resolution_note TEXT;

-- What was left in doubt before there was a resolver was settled elsewhere by people, or waits for them: nothing is asked of
-- the host about it now.
UPDATE ledger SET resolution = 'MANUAL', resolve_as = 'hand' WHERE resolution = 'PENDING';

CREATE INDEX ledger_due ON ledger (next_try_at) WHERE resolution IN ('PENDING', 'MANUAL');
CREATE INDEX ledger_day ON ledger (business_day, institution, transaction_id) WHERE kind = 'mutation';

CREATE TABLE resolution_step (
    step_seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    transaction_id TEXT    NOT NULL,
    asked          TEXT    NOT NULL,
    answered       TEXT    NOT NULL,
    at             INTEGER NOT NULL
) STRICT;

CREATE INDEX resolution_step_of ON resolution_step (transaction_id, step_seq);

ALTER TABLE journal_checkpoint ADD COLUMN retired_at INTEGER;

-- Blocks of ids that were taken, drawn at random: a store that is restored from an older copy, which does not know the last of
-- them, draws others. Those of a time when they were taken in a row are entered as far back as they may reach.
CREATE TABLE id_block_taken (
    instance TEXT    NOT NULL,
    block    INTEGER NOT NULL,
    PRIMARY KEY (instance, block)
) STRICT, WITHOUT ROWID;

WITH RECURSIVE back (instance, block, n) AS (
    SELECT instance, (next_block + 1679615) % 1679616, 1 FROM id_block
    UNION ALL SELECT instance, (block + 1679615) % 1679616, n + 1 FROM back WHERE n < 10000
)
INSERT INTO id_block_taken SELECT instance, block FROM back;
DROP TABLE id_block;

CREATE TABLE instance_lease (
    instance    TEXT    NOT NULL PRIMARY KEY,
    owner       BLOB    NOT NULL,
    incarnation INTEGER NOT NULL,
    mark        BLOB    NOT NULL,
    journal_id  BLOB    NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency_claim_2 (
    client         TEXT    NOT NULL,
    method         TEXT    NOT NULL,
    path           TEXT    NOT NULL,
    key_hash       BLOB    NOT NULL,
    transaction_id TEXT    NOT NULL UNIQUE,
    instance       TEXT    NOT NULL,
    journal_id     BLOB    NOT NULL,
    fingerprint    BLOB    NOT NULL,
    facts          TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (state IN ('RUNNING', 'ABANDONED', 'ENDED')),
    claimed_at     INTEGER NOT NULL,
    lease_until    INTEGER NOT NULL,
    ended_at       INTEGER,
    answer_status  INTEGER,
    answer_body    BLOB,
    PRIMARY KEY (client, method, path, key_hash)
) STRICT;

-- A key that was claimed before answers were stored: it never runs again, and has no fingerprint to compare.
INSERT INTO idempotency_claim_2
SELECT client, method, path, key_hash, transaction_id, substr(transaction_id, 5, 1), x'', x'', '', 'ENDED', claimed_at, 0,
       claimed_at, NULL, NULL
FROM idempotency_claim;
DROP TABLE idempotency_claim;
ALTER TABLE idempotency_claim_2 RENAME TO idempotency_claim;

CREATE INDEX claim_open ON idempotency_claim (journal_id, lease_until) WHERE state <> 'ENDED';
CREATE INDEX claim_unended ON idempotency_claim (transaction_id) WHERE state <> 'ENDED';
CREATE INDEX claim_ended ON idempotency_claim (ended_at) WHERE state = 'ENDED';

CREATE TABLE reconciliation_run (
    run_id       TEXT    NOT NULL PRIMARY KEY,
    business_day TEXT    NOT NULL,
    institution  TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'FAILED')),
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER,
    detail       TEXT,
    host_lines   INTEGER NOT NULL DEFAULT 0,
    matched      INTEGER NOT NULL DEFAULT 0,
    mismatch     INTEGER NOT NULL DEFAULT 0,
    ledger_only  INTEGER NOT NULL DEFAULT 0,
    core_only    INTEGER NOT NULL DEFAULT 0,
    duplicate    INTEGER NOT NULL DEFAULT 0,
    in_doubt     INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX reconciliation_run_order ON reconciliation_run (started_at, run_id);

CREATE TABLE reconciliation_line (
    run_id         TEXT    NOT NULL,
    transaction_id TEXT    NOT NULL,
    position       INTEGER NOT NULL,
    amount         INTEGER NOT NULL,
    flag           TEXT    NOT NULL,
    PRIMARY KEY (run_id, transaction_id, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE reconciliation_difference (
    run_id         TEXT    NOT NULL,
    seq            INTEGER NOT NULL,
    class          TEXT    NOT NULL CHECK (class IN ('MISMATCH', 'LEDGER_ONLY', 'CORE_ONLY', 'DUPLICATE', 'IN_DOUBT')),
    transaction_id TEXT    NOT NULL,
    ledger_status  TEXT,
    ledger_amount  INTEGER,
    core_flag      TEXT,
    core_amount    INTEGER,
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
