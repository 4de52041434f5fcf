-- Members that were removed or fenced, by cause, and how long it took until the member of that host was STABLE again.
WITH recovery AS (
  SELECT run_id, scenario, parameters, name, fenced_us,
         last_value(CASE WHEN name IS NULL THEN t_us END, true) OVER (
           PARTITION BY run_id, actor ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
         ) AS stable_us
  FROM (
    SELECT run_id, scenario, parameters, seq, t_us, actor, name, t_us AS fenced_us FROM {incident} AS incident
    WHERE incident = 'fencing'
    UNION ALL
    SELECT run_id, NULL, NULL, seq, t_us, actor, NULL, NULL FROM {trace} AS trace
    WHERE kind = 'member.state' AND state_to = 'STABLE'
  )
)
SELECT scenario, parameters, cause, count, runs, example, recovered,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max
FROM (
  SELECT scenario, parameters, name AS cause,
         count(*) AS count,
         count(DISTINCT run_id) AS runs,
         min(run_id) AS example,
         count(stable_us) AS recovered,
         percentile_approx((stable_us - fenced_us) / 1e6, array(0.5, 0.9, 0.99, 1.0), 10000) AS at
  FROM recovery
  WHERE name IS NOT NULL
  GROUP BY scenario, parameters, name
)
ORDER BY scenario, parameters, count DESC, cause
