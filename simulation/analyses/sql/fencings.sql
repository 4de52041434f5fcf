-- Members that were removed or fenced, by cause, and how long it took until the process on that host was STABLE again.
-- The actor of a removal is the member's id where its host runs another process by then. Its host is the one that had
-- its assignments; ids of classic members begin with its name. That process may be STABLE already: it took no time.
WITH place AS (
  SELECT run_id, collect_set(actor) AS hosts FROM {trace} AS trace WHERE kind = 'member.state' GROUP BY run_id
),
assigned AS (
  SELECT run_id, detail AS actor, max(actor) FILTER (WHERE actor <> detail) AS host
  FROM {trace} AS trace
  WHERE kind = 'assignment'
  GROUP BY run_id, detail
),
fencing AS (
  SELECT /*+ BROADCAST(place) */ run_id, scenario, parameters, seq, t_us, name,
         NOT coalesce(array_contains(hosts, actor), false) AS elsewhere,
         CASE
           WHEN array_contains(hosts, actor) THEN actor
           ELSE coalesce(assigned.host, array_max(filter(hosts, h -> startswith(actor, concat(h, '-')))), actor)
         END AS host
  FROM {incident} AS incident LEFT JOIN place USING (run_id) LEFT JOIN assigned USING (run_id, actor)
  WHERE incident = 'fencing'
),
recovery AS (
  SELECT run_id, scenario, parameters, name, t_us AS fenced_us,
         CASE
           WHEN elsewhere AND last_value(state, true) OVER (
             PARTITION BY run_id, host ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) = 'STABLE' THEN t_us
           ELSE last_value(CASE WHEN state = 'STABLE' THEN t_us END, true) OVER (
             PARTITION BY run_id, host ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           )
         END AS stable_us
  FROM (
    SELECT run_id, scenario, parameters, seq, t_us, host, name, elsewhere, NULL AS state FROM fencing
    UNION ALL
    SELECT run_id, NULL, NULL, seq, t_us, actor, NULL, NULL, CASE WHEN kind = 'host' THEN detail ELSE state_to END
    FROM {trace} AS trace
    WHERE kind = 'member.state' OR kind = 'host' AND detail IN ('crash', 'stopped', 'start')
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
