-- Number of times that runs reached the situations that test an invariant, and number of its violations.
WITH judged AS (
  SELECT scenario, parameters, run_id, invariant, situation, reached, 0L AS broken
  FROM {situation} AS situation JOIN (VALUES {situation_invariants} AS tested(situation, invariant)) USING (situation)
  UNION ALL
  SELECT scenario, parameters, run_id, name, NULL, 0L, 1L FROM {incident} AS incident WHERE incident = 'violation'
)
SELECT scenario, parameters, invariant,
       coalesce(array_join(array_sort(collect_set(situation)), ', '), '') AS situations,
       sum(reached) AS reached,
       count(DISTINCT CASE WHEN reached > 0 THEN run_id END) AS runs,
       sum(broken) AS broken,
       count(DISTINCT CASE WHEN broken > 0 THEN run_id END) AS runs_broken
FROM judged
GROUP BY scenario, parameters, invariant
ORDER BY scenario, parameters, invariant
