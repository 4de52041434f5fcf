-- View `formation`: one row for each run, with the time when all first members were STABLE at the group's epoch for the
-- first time. It is null if they never were, or if the trace does not have the number of first members. A member's
-- epoch is the newest in a heartbeat.
WITH stays AS (
  SELECT run_id, members, seq, t_us,
         last_value(CASE WHEN kind <> 'heartbeat' THEN state_to END IGNORE NULLS) OVER so_far AS state,
         last_value(CASE WHEN kind = 'heartbeat' AND error = '' THEN member_epoch END IGNORE NULLS) OVER so_far AS epoch,
         lead(seq, 1, 9223372036854775807) OVER (PARTITION BY run_id, actor ORDER BY seq) AS until
  FROM {trace} JOIN {first_member} USING (run_id, actor)
  WHERE kind IN ('member.state', 'heartbeat') OR kind = 'host' AND detail IN ('crash', 'stopped', 'start')
  WINDOW so_far AS (PARTITION BY run_id, actor ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
epochs AS (
  SELECT run_id, group_epoch, seq AS since, t_us AS since_us,
         lead(seq, 1, 9223372036854775807) OVER (PARTITION BY run_id ORDER BY seq) AS ends
  FROM {trace}
  WHERE kind = 'group.epoch'
),
settled AS (
  SELECT run_id, members, greatest(seq, since) AS since, greatest(t_us, since_us) AS since_us, least(until, ends) AS ends
  FROM stays JOIN epochs USING (run_id)
  WHERE state = 'STABLE' AND epoch = group_epoch AND seq < ends AND since < until
),
counted AS (
  SELECT run_id, members, since_us, change, sum(change) OVER (PARTITION BY run_id ORDER BY seq) AS so_many
  FROM (
    SELECT run_id, members, since_us, since AS seq, 1 AS change FROM settled
    UNION ALL
    SELECT run_id, members, since_us, ends, -1 FROM settled
  )
),
formed AS (
  SELECT run_id, min(since_us) AS t_us
  FROM counted
  WHERE so_many = members AND change = 1
  GROUP BY run_id
)
SELECT run_id, t_us / 1e6 AS seconds
FROM {traced} LEFT JOIN formed USING (run_id)
