-- The call budget (호출 한도) of an institution, shared by all gateways: send slots, one after the other, evenly spaced.
-- docs/OPERATIONS.md says how to set it up; docs/decisions/call-budget-slots.md why it is built like this.
--
-- Times are microseconds: since 1970 by this server's clock where the name ends in `_at_us`, else lengths.
CREATE TABLE call_budget (
    budget_key       text PRIMARY KEY,
    limit_per_second integer NOT NULL CHECK (limit_per_second BETWEEN 2 AND 100000),
    -- From a slot to the last moment at which its frame may leave.
    window_us        bigint NOT NULL CHECK (window_us BETWEEN 1000 AND 1000000),
    -- How much the way to the institution may vary.
    jitter_us        bigint NOT NULL CHECK (jitter_us BETWEEN 0 AND 1000000),
    -- How far ahead slots are promised: three or so, so that whoever goes first need not wait for many that came before.
    lookahead_us     bigint NOT NULL CHECK (lookahead_us BETWEEN 1000 AND 1000000),
    -- Any second holds at most floor((1 s + window + jitter) / interval) + 1 arrivals; rounded up, so that this is never over
    -- the limit.
    interval_us      bigint NOT NULL GENERATED ALWAYS AS
        ((1000000 + window_us + jitter_us + limit_per_second - 2) / (limit_per_second - 1)) STORED,
    next_slot_at_us  bigint NOT NULL DEFAULT 0,
    -- No slot before this: promises of a life before may still be under way.
    quarantine_at_us bigint NOT NULL DEFAULT 0,
    epoch            bigint NOT NULL DEFAULT 0,
    server_start     timestamptz
-- Room on the page for new versions, so that every update stays heap-only and no index grows.
) WITH (fillfactor = 10);

CREATE TABLE call_budget_class (
    budget_key    text    NOT NULL REFERENCES call_budget ON DELETE CASCADE,
    class         text    NOT NULL,
    -- The smaller number goes first.
    priority      integer NOT NULL,
    -- The share that the class gets in any case, if it wants it; 0 for none.
    floor_percent integer NOT NULL CHECK (floor_percent BETWEEN 0 AND 100),
    -- When its floor is owed the next slot.
    due_at_us     bigint  NOT NULL DEFAULT 0,
    -- Who waits, and until when that is believed without a word; the latest of these times.
    wants         jsonb   NOT NULL DEFAULT '{}',
    wants_at_us   bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (budget_key, class)
) WITH (fillfactor = 10);

-- Which budgets have promised slots since the server last recovered from a crash: a crash empties an unlogged table, and a standby
-- that takes over finds it empty.
CREATE UNLOGGED TABLE call_budget_promised (
    budget_key text PRIMARY KEY REFERENCES call_budget ON DELETE CASCADE
);

-- One slot for a caller of a class, if it is this class's turn: one short transaction. The budget's row is locked first, then the
-- class's; the other classes are only written under the same lock on the budget.
--
-- `verdict` is GRANTED (send `wait_us` from now, `window_us` later at the latest), LATER (ask again in `wait_us`), OVER (the slot
-- would come later than the caller waits), NO_BUDGET, NO_CLASS. `p_more` says whether others wait behind this caller.
CREATE FUNCTION call_budget_acquire(p_key text, p_class text, p_caller text, p_max_wait_us bigint, p_more boolean)
RETURNS TABLE (verdict text, wait_us bigint, window_us bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    budget  call_budget%ROWTYPE;
    own     call_budget_class%ROWTYPE;
    now_us  bigint;
    slot    bigint;
    turn    text;
    hint    bigint;
    period  bigint;
    waiting jsonb;
BEGIN
    SELECT * INTO budget FROM call_budget WHERE budget_key = p_key FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'NO_BUDGET'::text, 0::bigint, 0::bigint;
        RETURN;
    END IF;
    SELECT * INTO own FROM call_budget_class WHERE budget_key = p_key AND class = p_class FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'NO_CLASS'::text, 0::bigint, 0::bigint;
        RETURN;
    END IF;
    -- After the lock: now() would be when the waiting for it began, and a slot could be granted that is long past.
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    -- Another server, or one that was started anew or crashed and may have forgotten its last promises, or whose clock went back (a window
    -- and a jitter are 2 s at most): nothing before all old promises have run out.
    IF budget.server_start IS DISTINCT FROM pg_postmaster_start_time()
        OR NOT EXISTS (SELECT FROM call_budget_promised WHERE budget_key = p_key)
        OR budget.next_slot_at_us > now_us + budget.lookahead_us + budget.interval_us
        OR budget.quarantine_at_us > now_us + budget.lookahead_us + 2000000
    THEN
        budget.epoch := budget.epoch + 1;
        budget.server_start := pg_postmaster_start_time();
        budget.next_slot_at_us := 0;
        budget.quarantine_at_us := now_us + budget.lookahead_us + budget.window_us + budget.jitter_us;
        UPDATE call_budget SET epoch = budget.epoch, server_start = budget.server_start,
            next_slot_at_us = budget.next_slot_at_us, quarantine_at_us = budget.quarantine_at_us
            WHERE budget_key = p_key;
        INSERT INTO call_budget_promised VALUES (p_key) ON CONFLICT DO NOTHING;
    END IF;
    slot := greatest(budget.next_slot_at_us, budget.quarantine_at_us, now_us);
    IF slot > now_us + budget.lookahead_us THEN
        hint := slot - now_us - budget.lookahead_us;
    ELSE
        -- Whose floor is owed goes first, the earliest due before the others; then by priority.
        SELECT class INTO turn FROM call_budget_class
            WHERE budget_key = p_key AND (class = p_class OR wants_at_us > now_us)
            ORDER BY CASE WHEN floor_percent > 0 AND due_at_us <= slot THEN due_at_us END NULLS LAST, priority, class
            LIMIT 1;
        IF turn <> p_class THEN
            hint := greatest(budget.interval_us / 2, 1000);
        END IF;
    END IF;
    SELECT coalesce(jsonb_object_agg(key, value), '{}') INTO waiting FROM jsonb_each(own.wants)
        WHERE value::bigint > now_us AND key <> p_caller;
    IF hint IS NULL AND slot - now_us <= p_max_wait_us THEN
        IF p_more THEN
            -- The next one asks as soon as this one has sent; until then the other classes know that somebody waits.
            waiting := waiting || jsonb_build_object(p_caller, slot + greatest(budget.interval_us, 50000));
        END IF;
        period := CASE WHEN own.floor_percent > 0 THEN budget.interval_us * 100 / own.floor_percent ELSE 0 END;
        UPDATE call_budget SET next_slot_at_us = slot + budget.interval_us WHERE budget_key = p_key;
        -- A floor is in arrears by one period at most, and ahead by one at most.
        UPDATE call_budget_class
            SET due_at_us = least(greatest(own.due_at_us, slot - period) + period, slot + period),
                wants = waiting,
                wants_at_us = coalesce((SELECT max(value::bigint) FROM jsonb_each(waiting)), 0)
            WHERE budget_key = p_key AND class = p_class;
        RETURN QUERY SELECT 'GRANTED'::text, slot - now_us, budget.window_us;
        RETURN;
    END IF;
    IF coalesce(hint, slot - now_us) > p_max_wait_us THEN
        -- It gives up, so it wants nothing any more.
        UPDATE call_budget_class
            SET wants = waiting, wants_at_us = coalesce((SELECT max(value::bigint) FROM jsonb_each(waiting)), 0)
            WHERE budget_key = p_key AND class = p_class;
        RETURN QUERY SELECT 'OVER'::text, coalesce(hint, slot - now_us), budget.window_us;
        RETURN;
    END IF;
    -- It will ask again; until then, and some time more, the other classes know that it waits.
    waiting := waiting || jsonb_build_object(p_caller, now_us + hint + greatest(budget.lookahead_us / 2, 50000));
    UPDATE call_budget_class
        SET wants = waiting, wants_at_us = (SELECT max(value::bigint) FROM jsonb_each(waiting))
        WHERE budget_key = p_key AND class = p_class;
    RETURN QUERY SELECT 'LATER'::text, hint, budget.window_us;
END
$$;
