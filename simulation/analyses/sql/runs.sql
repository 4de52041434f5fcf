-- Runs by scenario where no campaign left summaries.
SELECT run.scenario, run.parameters,
       count(DISTINCT run_id) AS runs,
       0L AS failed,
       count(DISTINCT run_id) FILTER (WHERE kind = 'violation') AS violating,
       count_if(kind = 'violation') AS violations,
       CAST(NULL AS BIGINT) AS unconverged,
       count(DISTINCT run_id) AS traced,
       CAST(NULL AS DOUBLE) AS wall_seconds_mean,
       CAST(NULL AS BIGINT) AS heartbeats
FROM {run} AS run JOIN {trace} AS trace USING (run_id)
WHERE kind IN ('run.start', 'run.end', 'violation')
GROUP BY run.scenario, run.parameters
ORDER BY run.scenario, run.parameters
