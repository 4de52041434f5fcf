-- View `fencing`: one row for each member that was removed or fenced, by cause (`name`), with the time when the process
-- on that host was STABLE again (`stable_us`, null if never).
-- The actor of a removal is the member's id if its host runs another process by then. Its host is the one that had its
-- assignments; ids of classic members begin with the host's name. That process may be STABLE already: it then took no
-- time.
WITH place AS (
  SELECT run_id, list(DISTINCT actor) AS hosts FROM {trace} WHERE kind = 'member.state' GROUP BY run_id
),
assigned AS (
  SELECT run_id, detail AS actor, max(actor) FILTER (WHERE actor <> detail) AS host
  FROM {trace}
  WHERE kind = 'assignment'
  GROUP BY run_id, detail
),
fenced AS (
  SELECT run_id, seq, t_us, name,
         NOT coalesce(list_contains(hosts, incident.actor), false) AS elsewhere,
         CASE
           WHEN list_contains(hosts, incident.actor) THEN incident.actor
           ELSE coalesce(
             assigned.host, list_max(list_filter(hosts, lambda h: starts_with(incident.actor, concat(h, '-')))), incident.actor
           )
         END AS host
  FROM {incident} AS incident LEFT JOIN place USING (run_id) LEFT JOIN assigned USING (run_id, actor)
  WHERE incident = 'fencing'
),
recovered AS (
  SELECT run_id, name, t_us AS fenced_us,
         CASE
           WHEN elsewhere AND last_value(state IGNORE NULLS) OVER (
             PARTITION BY run_id, host ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) = 'STABLE' THEN t_us
           ELSE first_value(CASE WHEN state = 'STABLE' THEN t_us END IGNORE NULLS) OVER (
             PARTITION BY run_id, host ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
           )
         END AS stable_us
  FROM (
    SELECT run_id, seq, t_us, host, name, elsewhere, NULL AS state FROM fenced
    UNION ALL
    SELECT run_id, seq, t_us, actor, NULL, NULL, CASE WHEN kind = 'host' THEN detail ELSE state_to END
    FROM {trace}
    WHERE kind = 'member.state' OR kind = 'host' AND detail IN ('crash', 'stopped', 'start')
  )
)
SELECT * FROM recovered WHERE name IS NOT NULL
