-- The longest rebalances, for a closer look.
SELECT run_id, scenario, parameters, begin_us / 1e6 AS begin_s,
       date_format(timestampadd(MICROSECOND, begin_us, began_at), "yyyy-MM-dd'T'HH:mm:ss'Z'") AS begin_at, seconds, cause, epochs, heartbeats
FROM {rebalance} AS rebalance
JOIN (SELECT run_id, began_at FROM {traced} AS traced) USING (run_id)
WHERE settled = 'Stable' AND NOT forms
ORDER BY seconds DESC NULLS LAST, run_id, begin_us
LIMIT 10
