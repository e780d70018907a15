-- The ledger (원장) for several gateways on one database. The same tables as in migrations/sqlite; docs/OPERATIONS.md
-- explains the columns. Times are microseconds since 1970 in UTC.
CREATE TABLE ledger (
    seq                    BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction_id         TEXT    COLLATE "C" NOT NULL UNIQUE,
    business_day           TEXT    NOT NULL,
    tx_code                TEXT    NOT NULL,
    route                  TEXT    NOT NULL,
    kind                   TEXT    NOT NULL CHECK (kind IN ('inquiry', 'mutation')),
    institution            TEXT    NOT NULL,
    client                 TEXT    NOT NULL,
    account_masked         TEXT,
    account_hash           BYTEA,
    counter_account_masked TEXT,
    counter_account_hash   BYTEA,
    amount                 BIGINT,
    status                 TEXT    NOT NULL CHECK (status IN ('SUCCESS', 'FAILED', 'UNKNOWN')),
    proof                  TEXT    CHECK (proof IN ('P0', 'P1', 'P2', 'H')),
    response_code          TEXT,
    detail                 TEXT,
    attempts               BIGINT  NOT NULL,
    attempt_log            TEXT    NOT NULL,
    requested_at           BIGINT  NOT NULL,
    responded_at           BIGINT  NOT NULL,
    elapsed_us             BIGINT  NOT NULL,
    correlation_id         TEXT    NOT NULL,
    idempotency_key_hash   BYTEA,
    layout_version         BIGINT  NOT NULL,
    served_from            TEXT    NOT NULL DEFAULT 'host' CHECK (served_from IN ('host', 'cache', 'stale')),
    resolution             TEXT    NOT NULL DEFAULT 'NONE'
        CHECK (resolution IN ('NONE', 'PENDING', 'CONFIRMED_SUCCESS', 'CONFIRMED_FAILED', 'CANCELED', 'MANUAL')),
    resolution_method      TEXT,
    resolved_at            BIGINT,
    -- 'confirm': its journal was retired; 'hand': nothing may be asked of the host about it.
    resolve_as             TEXT    CHECK (resolve_as IN ('confirm', 'hand')),
    resolver_token         TEXT,
    resolver_lease_until   BIGINT,
    next_try_at            BIGINT  NOT NULL DEFAULT 0,
    tries                  BIGINT  NOT NULL DEFAULT 0,
    cancel_intended_at     BIGINT,
    not_processed_at       BIGINT,
    -- Net-cancels that may have left; each that was answered has a step.
    cancels                BIGINT  NOT NULL DEFAULT 0,
    resolved_by            TEXT,
    resolution_note        TEXT,
    CHECK ((status = 'FAILED') = (proof IS NOT NULL))
);

CREATE INDEX ledger_client ON ledger (client, seq);
CREATE INDEX ledger_account ON ledger (account_hash, seq) WHERE account_hash IS NOT NULL;
CREATE INDEX ledger_counter_account ON ledger (counter_account_hash, seq) WHERE counter_account_hash IS NOT NULL;
CREATE INDEX ledger_correlation ON ledger (correlation_id);
CREATE INDEX ledger_not_success ON ledger (status, seq) WHERE status <> 'SUCCESS';
CREATE INDEX ledger_unresolved ON ledger (seq) WHERE resolution IN ('PENDING', 'MANUAL');
CREATE INDEX ledger_due ON ledger (next_try_at) WHERE resolution IN ('PENDING', 'MANUAL');
CREATE INDEX ledger_day ON ledger (business_day, institution, transaction_id) WHERE kind = 'mutation';

-- Rows that contradict one that is there, or that SQL refuses: kept, alarmed, never dropped.
CREATE TABLE ledger_parked (
    parked_seq     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction_id TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    row_json       TEXT    NOT NULL,
    UNIQUE (transaction_id, row_json)
);

-- How far each journal has been shipped.
CREATE TABLE journal_checkpoint (
    journal_id  BYTEA   NOT NULL PRIMARY KEY,
    segment     BIGINT  NOT NULL,
    byte_offset BIGINT  NOT NULL,
    retired_at  BIGINT
);

-- Blocks of ids that were taken, drawn at random: a store that is restored from an older copy, which does not know the last of
-- them, draws others.
CREATE TABLE id_block_taken (
    instance TEXT    NOT NULL,
    block    BIGINT  NOT NULL,
    PRIMARY KEY (instance, block)
);

CREATE TABLE resolution_step (
    step_seq       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction_id TEXT    NOT NULL,
    asked          TEXT    NOT NULL,
    answered       TEXT    NOT NULL,
    at             BIGINT  NOT NULL
);

CREATE INDEX resolution_step_of ON resolution_step (transaction_id, step_seq);

CREATE TABLE instance_lease (
    instance    TEXT    NOT NULL PRIMARY KEY,
    owner       BYTEA   NOT NULL,
    incarnation BIGINT  NOT NULL,
    mark        BYTEA   NOT NULL,
    journal_id  BYTEA   NOT NULL,
    lease_until BIGINT  NOT NULL
);

CREATE TABLE idempotency_claim (
    client         TEXT    COLLATE "C" NOT NULL,
    method         TEXT    COLLATE "C" NOT NULL,
    path           TEXT    COLLATE "C" NOT NULL,
    key_hash       BYTEA   NOT NULL,
    transaction_id TEXT    COLLATE "C" NOT NULL UNIQUE,
    instance       TEXT    NOT NULL,
    journal_id     BYTEA   NOT NULL,
    fingerprint    BYTEA   NOT NULL,
    facts          TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (state IN ('RUNNING', 'ABANDONED', 'ENDED')),
    claimed_at     BIGINT  NOT NULL,
    lease_until    BIGINT  NOT NULL,
    ended_at       BIGINT,
    answer_status  BIGINT,
    answer_body    BYTEA,
    PRIMARY KEY (client, method, path, key_hash)
);

CREATE INDEX claim_open ON idempotency_claim (journal_id, lease_until) WHERE state <> 'ENDED';
CREATE INDEX claim_unended ON idempotency_claim (transaction_id) WHERE state <> 'ENDED';
CREATE INDEX claim_ended ON idempotency_claim (ended_at) WHERE state = 'ENDED';

CREATE TABLE reconciliation_run (
    run_id       TEXT    NOT NULL PRIMARY KEY,
    business_day TEXT    NOT NULL,
    institution  TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'FAILED')),
    started_at   BIGINT  NOT NULL,
    ended_at     BIGINT,
    detail       TEXT,
    host_lines   BIGINT  NOT NULL DEFAULT 0,
    matched      BIGINT  NOT NULL DEFAULT 0,
    mismatch     BIGINT  NOT NULL DEFAULT 0,
    ledger_only  BIGINT  NOT NULL DEFAULT 0,
    core_only    BIGINT  NOT NULL DEFAULT 0,
    duplicate    BIGINT  NOT NULL DEFAULT 0,
    in_doubt     BIGINT  NOT NULL DEFAULT 0
);

CREATE INDEX reconciliation_run_order ON reconciliation_run (started_at, run_id);

CREATE TABLE reconciliation_line (
    run_id         TEXT    NOT NULL,
    transaction_id TEXT    COLLATE "C" NOT NULL,
    position       BIGINT  NOT NULL,
    amount         BIGINT  NOT NULL,
    flag           TEXT    NOT NULL,
    PRIMARY KEY (run_id, transaction_id, position)
);

CREATE TABLE reconciliation_difference (
    run_id         TEXT    NOT NULL,
    seq            BIGINT  NOT NULL,
    class          TEXT    NOT NULL CHECK (class IN ('MISMATCH', 'LEDGER_ONLY', 'CORE_ONLY', 'DUPLICATE', 'IN_DOUBT')),
    transaction_id TEXT    NOT NULL,
    ledger_status  TEXT,
    ledger_amount  BIGINT,
    core_flag      TEXT,
    core_amount    BIGINT,
    PRIMARY KEY (run_id, seq)
);
