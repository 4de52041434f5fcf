-- What comparisons are about: one row for each value of each measure, with its run. Runs without any are in it with null.
SELECT run_id, scenario, parameters, measure, value
FROM (
  SELECT run_id, 'rebalance' AS measure, seconds AS value FROM {rebalance} WHERE settled = 'Stable'
  UNION ALL
  SELECT run_id, 'rebalance_heartbeats', CAST(heartbeats AS DOUBLE) FROM {rebalance} WHERE settled = 'Stable'
  UNION ALL
  SELECT run_id, 'formation', seconds FROM {formation} WHERE seconds IS NOT NULL
  UNION ALL
  SELECT run_id, 'downtime', gap_us / 1e6 FROM {handover} WHERE NOT first AND shared_us = 0
  UNION ALL
  SELECT run_id, 'downtime_run', sum(gap_us) / 1e6 FROM {handover} WHERE NOT first AND shared_us = 0 GROUP BY run_id
)
RIGHT JOIN {run} AS run USING (run_id)
