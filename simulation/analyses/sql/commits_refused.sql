-- Offset commits that the coordinator refused, or did not respond to, by error.
SELECT scenario, parameters, name AS error,
       count(*) AS count,
       count(DISTINCT run_id) AS runs,
       min(run_id) AS example
FROM {incident}
WHERE incident = 'commit'
GROUP BY scenario, parameters, name
ORDER BY scenario, parameters, count DESC, name
