-- View `sac_gap`: one row for each time that a partition had no active consumer after its first one. `last` is true if
-- the trace cuts it off.
SELECT run_id, as_seen_by, from_us, until_us, last
FROM {occupancy}
WHERE reading AND owners = 0
