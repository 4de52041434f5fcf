-- How often runs came to the situations that put an invariant to the test, and how often it was broken.
WITH counted AS (
  SELECT run_id, {situation_counts} FROM {trace} AS trace GROUP BY run_id
),
met AS (
  SELECT run_id, {situation_rows} AS (situation, reached) FROM counted
),
judged AS (
  SELECT run_id, invariant, situation, reached, 0L AS broken
  FROM met JOIN (VALUES {situation_invariants} AS tested(situation, invariant)) USING (situation)
  WHERE reached > 0
  UNION ALL
  SELECT run_id, name, NULL, 0L, 1L FROM {incident} AS incident WHERE incident = 'violation'
)
SELECT scenario, parameters, invariant,
       array_join(array_sort(collect_set(situation)), ', ') AS situations,
       sum(reached) AS reached,
       count(DISTINCT CASE WHEN reached > 0 THEN run_id END) AS runs,
       sum(broken) AS broken,
       count(DISTINCT CASE WHEN broken > 0 THEN run_id END) AS runs_broken
FROM judged JOIN {run} AS run USING (run_id)
GROUP BY scenario, parameters, invariant
ORDER BY scenario, parameters, invariant
