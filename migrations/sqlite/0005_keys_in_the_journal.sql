-- The journal keeps the keys of transactions whose rows are not here yet. A version that does not know such records would cut them
-- off, and run a key twice: it refuses a file with a migration that it does not know.
SELECT 1;
