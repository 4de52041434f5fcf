-- View `stay`: number and length of the times that members of a run were in a state. A process that crashes or has
-- stopped is in no state; the last state ends with the run. All single active consumers of a process end with it; their
-- actors are `HOST/STREAM`. Kafka's own log of groups does not have the time of joining.
WITH ended AS (
  SELECT run_id, t_us, kind, state_to,
         lead(t_us) OVER (PARTITION BY run_id, trace.actor ORDER BY seq) AS next_us,
         first_value(CASE WHEN kind = 'host' THEN t_us END IGNORE NULLS) OVER (
           PARTITION BY run_id, CASE WHEN single.actor IS NULL THEN trace.actor ELSE split_part(trace.actor, '/', 1) END
           ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
         ) AS gone_us
  FROM {trace} AS trace LEFT JOIN {single_active} AS single USING (run_id, actor)
  WHERE kind = 'member.state' OR kind = 'host' AND detail IN ('crash', 'stopped', 'start')
)
SELECT run_id, state_to AS state, count(*)::BIGINT AS visits, sum(us)::BIGINT AS us, max(us)::BIGINT AS max_us
FROM (SELECT *, least(next_us, gone_us, run_end_us) - t_us AS us FROM ended JOIN {traced} USING (run_id))
WHERE kind = 'member.state' AND NOT (logged AND state_to = 'JOINING')
GROUP BY run_id, state_to
