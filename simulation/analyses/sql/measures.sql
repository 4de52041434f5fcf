-- Input of comparisons: one row for each value of each measure, with its run. Runs without any value have a row with
-- null. A measure with one value per run has a value in every run, so 0 is a value.
SELECT run_id, scenario, parameters, measure, value
FROM (
  SELECT run_id, measure, CASE measure WHEN 'rebalance' THEN seconds
                                       WHEN 'rebalance_heartbeats' THEN CAST(heartbeats AS DOUBLE)
                                       ELSE CAST(bytes AS DOUBLE) END AS value
  FROM {rebalance} AS rebalance
  CROSS JOIN (VALUES ('rebalance'), ('rebalance_heartbeats'), ('rebalance_bytes') AS named(measure))
  WHERE settled = 'Stable' AND NOT forms
  UNION ALL
  SELECT run_id, 'formation', seconds FROM {formation} AS formation WHERE seconds IS NOT NULL
  UNION ALL
  SELECT run_id, 'moved', CAST(moved AS DOUBLE) FROM {move} AS move
  UNION ALL
  SELECT run_id, 'downtime', gap_us / 1e6 FROM {handover} AS handover WHERE apart
  UNION ALL
  SELECT run_id, 'run_downtime', coalesce(sum(gap_us) FILTER (WHERE apart), 0) / 1e6
  FROM {run} AS run LEFT JOIN {handover} AS handover USING (run_id)
  GROUP BY run_id
  UNION ALL
  SELECT run_id, 'run_again', CAST(coalesce(sum(again), 0) AS DOUBLE)
  FROM {run} AS run LEFT JOIN {recovery} AS recovery USING (run_id)
  GROUP BY run_id
  UNION ALL
  SELECT run_id, 'run_fencings', CAST(count_if(incident = 'fencing') AS DOUBLE)
  FROM {run} AS run LEFT JOIN {incident} AS incident USING (run_id)
  GROUP BY run_id
  UNION ALL
  SELECT run_id, 'escalation', (max(end_us) - min(asked_us)) / 1e6
  FROM {escalation} AS escalation
  WHERE answer = 'SHUTDOWN_APPLICATION'
  GROUP BY run_id, request
  HAVING count(*) = count(end_us)
  UNION ALL
  SELECT run_id, 'sac_gap', (until_us - from_us) / 1e6
  FROM {sac_gap} AS sac_gap
  WHERE NOT last AND as_seen_by = 'members'
)
RIGHT JOIN {run} AS run USING (run_id)
