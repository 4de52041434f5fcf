-- Offset commits that the coordinator refused, or never answered, by error.
SELECT scenario, parameters, name AS error,
       count(*) AS count,
       count(DISTINCT run_id) AS runs,
       min(run_id) AS example
FROM {incident}
WHERE incident = 'commit'
GROUP BY scenario, parameters, name
ORDER BY scenario, parameters, count DESC, name
