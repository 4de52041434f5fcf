-- Members that were removed or fenced, by cause.
SELECT scenario, parameters, name AS cause,
       count(*) AS count,
       count(DISTINCT run_id) AS runs,
       min(run_id) AS example
FROM {incident}
WHERE incident = 'fencing'
GROUP BY scenario, parameters, name
ORDER BY scenario, parameters, count DESC, name
