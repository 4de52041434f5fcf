-- View `ownership`: one row for each time that a member was assigned a partition. It reads the partition from the end
-- of the assigned callback until a revoked or lost callback begins (`until_us`, `ended_by`), and holds it until the
-- revoked callback has ended (`held_until_us`). A single active consumer (`sac`) reads its stream while it is active,
-- and holds it until it has stepped down; its actor is `HOST/STREAM`. Everything ends with the process, and with the
-- topic. Reading and holding also end when the coordinator removes the member; a member that was removed and has not
-- joined since (`fenced`) reads and holds nothing. `believed_until_us` ignores the coordinator: a fenced member
-- continues until it notices. If a log does not say when a member stopped, `ended_by` is gone or taken, and `until_us`
-- is the time of the record that shows it. Times are null if the stretch lasts to the end of the trace.
WITH acts AS (
  SELECT run_id, seq, t_us, "group", actor, partitions, kind = 'member.state' AS sac,
         CASE WHEN kind = 'member.state' THEN split_part(actor, '/', 1) ELSE actor END AS host,
         CASE
           WHEN kind = 'callback.end' AND error = '' AND detail = 'assigned' THEN 'assigned'
           WHEN kind = 'callback.end' AND error = '' AND detail IN ('revoked', 'taken') THEN 'let go'
           WHEN kind = 'callback.begin' AND detail IN ('revoked', 'lost', 'taken') THEN detail
           WHEN kind = 'host' AND detail IN ('crash', 'stopped') THEN detail
           WHEN kind = 'host' AND detail = 'start' THEN 'crash'
           WHEN kind = 'member.removed' THEN CASE WHEN detail = 'gone' THEN 'gone' ELSE 'fenced' END
           WHEN kind = 'heartbeat' AND error = '' THEN 'joined'
           WHEN kind = 'member.state' AND state_to = 'ACTIVE' THEN 'assigned'
           WHEN kind = 'member.state' AND state_to = 'STEPPING_DOWN' THEN 'stepped down'
           WHEN kind = 'member.state' AND state_to = 'LOST' THEN 'lost'
           WHEN kind = 'member.state' AND state_from IN ('ACTIVE', 'STEPPING_DOWN') THEN 'let go'
         END AS act
  FROM {trace}
  WHERE kind IN ('callback.begin', 'callback.end', 'host', 'member.removed')
     OR kind = 'heartbeat' AND split_part(detail, ' ', 1) IN ('join', 'full')
     OR kind = 'member.state' AND (state_to = 'ACTIVE' OR state_from IN ('ACTIVE', 'STEPPING_DOWN'))
),
ended AS (
  SELECT *,
         first_value(CASE WHEN act IN ('crash', 'stopped') THEN struct_pack(seq := seq, t_us := t_us, act := act) END IGNORE NULLS) OVER later AS gone,
         first_value(CASE WHEN act IN ('fenced', 'gone') THEN struct_pack(seq := seq, t_us := t_us, act := act) END IGNORE NULLS) OVER later AS fence,
         coalesce(last_value(CASE WHEN act IN ('crash', 'stopped', 'fenced', 'gone', 'joined') THEN act END IGNORE NULLS) OVER earlier IN ('fenced', 'gone'), false) AS fenced
  FROM acts
  WHERE act IS NOT NULL
  WINDOW later AS (PARTITION BY run_id, host ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
         earlier AS (PARTITION BY run_id, host ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
each AS (
  SELECT run_id, seq, t_us, "group", actor, sac, act, gone, fence, fenced, held.topic, held.partition
  FROM ended, unnest(partitions) AS each(held)
  WHERE act IN ('assigned', 'revoked', 'lost', 'taken', 'stepped down', 'let go')
),
followed AS (
  SELECT *,
         lead(struct_pack(seq := seq, t_us := t_us, act := act)) OVER (
           PARTITION BY run_id, topic, partition, actor ORDER BY seq
         ) AS next,
         first_value(CASE WHEN act IN ('assigned', 'lost', 'let go') THEN struct_pack(seq := seq, t_us := t_us, act := act) END IGNORE NULLS) OVER (
           PARTITION BY run_id, topic, partition, actor ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
         ) AS release
  FROM each
),
deletions AS (
  SELECT run_id, actor AS topic, list(struct_pack(seq := seq, t_us := t_us, act := 'topic deleted')) AS deletions
  FROM {trace}
  WHERE kind = 'topic' AND starts_with(detail, 'deleted')
  GROUP BY run_id, actor
),
given AS (
  SELECT followed.*, list_min(list_filter(deletions, lambda d: d.seq > followed.seq)) AS deleted
  FROM followed LEFT JOIN deletions USING (run_id, topic)
  WHERE act = 'assigned'
)
SELECT run_id, "group", topic, partition, actor, sac, fenced, seq, t_us AS from_us,
       CASE WHEN fenced THEN t_us ELSE least(next, gone, fence, deleted).t_us END AS until_us,
       CASE WHEN fenced THEN 'fenced' ELSE least(next, gone, fence, deleted).act END AS ended_by,
       CASE WHEN fenced THEN t_us ELSE least(release, gone, fence, deleted).t_us END AS held_until_us,
       least(release, gone, deleted).t_us AS believed_until_us
FROM given
