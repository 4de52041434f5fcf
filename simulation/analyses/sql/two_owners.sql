-- Partitions that two members could fetch at the same time, neither of them fenced, by the window of single active
-- consumers in which this happened. Outside windows (null), the count must be 0.
SELECT scenario, parameters, opened_by AS sac_window, count_if(shared_us > 0) AS count, sum(shared_us) / 1e6 AS seconds
FROM (
  SELECT scenario, parameters, opened_by, shared_us FROM {sharing} AS sharing
  UNION ALL
  SELECT DISTINCT scenario, parameters, CAST(NULL AS STRING), 0L FROM {handover} AS handover WHERE shared_us IS NOT NULL
)
GROUP BY scenario, parameters, opened_by
ORDER BY scenario, parameters, opened_by
