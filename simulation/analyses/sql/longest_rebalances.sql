-- The longest rebalances, for a closer look.
SELECT run_id, scenario, parameters, begin_us / 1e6 AS begin_s,
       concat(date_format(at, 'yyyy-MM-dd'), 'T', date_format(at, 'HH:mm:ss'), 'Z') AS begin_at,
       seconds, cause, epochs, heartbeats
FROM (
  SELECT rebalance.*, timestampadd(MICROSECOND, begin_us, began_at) AS at
  FROM {rebalance} AS rebalance
  JOIN (SELECT run_id, began_at FROM {traced} AS traced) USING (run_id)
)
WHERE settled = 'Stable' AND NOT forms
ORDER BY seconds DESC NULLS LAST, run_id, begin_us
LIMIT 10
