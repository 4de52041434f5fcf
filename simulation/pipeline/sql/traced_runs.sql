-- Runs by scenario where no campaign left summaries.
SELECT run.scenario, run.parameters,
       count(DISTINCT run.run_id) AS runs,
       0 AS failed,
       count(DISTINCT run_id) FILTER (WHERE kind = 'violation') AS violating,
       count_if(kind = 'violation') AS violations,
       count(DISTINCT run.run_id) AS traced
FROM trace JOIN run USING (run_id)
WHERE kind IN ('run.start', 'run.end', 'violation')
GROUP BY run.scenario, run.parameters
ORDER BY run.scenario, run.parameters
