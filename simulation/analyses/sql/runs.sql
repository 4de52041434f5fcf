-- Runs by scenario, if no campaign wrote summaries.
SELECT run.scenario, run.parameters,
       count(*) AS runs,
       0L AS failed,
       CASE WHEN count(violations) > 0 THEN count_if(violations > 0) END AS violating,
       sum(violations) AS violations,
       CAST(NULL AS BIGINT) AS unconverged,
       count(*) AS traced,
       CAST(NULL AS DOUBLE) AS wall_seconds_mean,
       CAST(NULL AS BIGINT) AS heartbeats
FROM {run} AS run JOIN {traced} AS traced USING (run_id)
WHERE begun
GROUP BY run.scenario, run.parameters
ORDER BY run.scenario, run.parameters
