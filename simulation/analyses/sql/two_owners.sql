-- Partitions that two members could fetch at the same time, neither of them fenced: by the window of single active
-- consumers in which that was, or null, which must be 0.
WITH shared AS (
  SELECT /*+ BROADCAST(shared) */ shared.run_id, shared.seq, shared.topic, shared.partition, scenario, parameters, shared_us,
         coalesce(
           max_by(opened_by, opening.seq) FILTER (WHERE opening.actor = shared.before_actor),
           max_by(opened_by, opening.seq) FILTER (WHERE opening.actor = shared.actor)
         ) AS opened_by
  FROM (SELECT * FROM {handover} AS handover WHERE shared_us > 0) AS shared
  LEFT JOIN {window} AS opening
    ON opening.run_id = shared.run_id AND opening.seq < shared.seq AND opening.actor IN (shared.actor, shared.before_actor)
  GROUP BY shared.run_id, shared.seq, shared.topic, shared.partition, scenario, parameters, shared_us
)
SELECT scenario, parameters, opened_by AS sac_window, count_if(shared_us > 0) AS count, sum(shared_us) / 1e6 AS seconds
FROM (
  SELECT scenario, parameters, opened_by, shared_us FROM shared
  UNION ALL
  SELECT DISTINCT scenario, parameters, CAST(NULL AS STRING), 0L FROM {handover} AS handover
)
GROUP BY scenario, parameters, opened_by
ORDER BY scenario, parameters, opened_by
