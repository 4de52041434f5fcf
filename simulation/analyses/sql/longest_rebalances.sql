-- The longest rebalances, for a closer look.
SELECT run_id, scenario, parameters, begin_us / 1e6 AS begin_s, seconds, cause, epochs, heartbeats
FROM {rebalance} AS rebalance
WHERE settled = 'Stable'
ORDER BY seconds DESC, run_id, begin_us
LIMIT 10
