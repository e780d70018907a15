-- Accounts come in no order, so in one index over all rows each new row touches a page of its own, and costs more the more rows there
-- are. Here each 1,048,576 rows are a run with a part of the index to itself: what is written goes into the newest. A search looks into every
-- run, one descent each.
DROP INDEX ledger_account;
DROP INDEX ledger_counter_account;
CREATE INDEX ledger_account ON ledger (seq >> 20, account_hash) WHERE account_hash IS NOT NULL;
CREATE INDEX ledger_counter_account ON ledger (seq >> 20, counter_account_hash) WHERE counter_account_hash IS NOT NULL;
