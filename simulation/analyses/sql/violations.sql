-- Violated invariants.
SELECT scenario, parameters, name AS invariant,
       count(*) AS count,
       count(DISTINCT run_id) AS runs,
       min(run_id) AS example
FROM {incident}
WHERE incident = 'violation'
GROUP BY scenario, parameters, name
ORDER BY scenario, parameters, count DESC, name
