-- View `rebalance`: one row for each rebalance, from the first raise of the group epoch until the group is Stable (or
-- Empty, or Dead) again. Further raises in between belong to it, and so do the heartbeats answered in that time.
-- `forms` is true of those that only form the group: it was not Stable before, or not all of its first members had
-- joined. Tables do not count them.
-- `bytes` are those of the heartbeats and their responses, as whole frames. They come from the trace; for a keepalive
-- with an empty response they follow from the names, with 22 characters for a member id. They are null if the trace
-- does not have all of them.
-- `end_us` is null if the trace ends first. A log of groups has no heartbeats, and of a rebalance of a classic group only
-- the end: then these columns, or `seconds`, are null.
WITH joins AS (
  SELECT run_id, CASE WHEN count(joined_seq) = any_value(members) THEN max(joined_seq) END AS joined_seq
  FROM {first_member} LEFT JOIN (
    SELECT run_id, actor, min(seq) AS joined_seq
    FROM {trace}
    WHERE kind = 'heartbeat' AND error = '' AND split_part(detail, ' ', 1) = 'join'
    GROUP BY run_id, actor
  ) USING (run_id, actor)
  GROUP BY run_id
),
marks AS (
  SELECT run_id, "group", actor, seq, t_us, kind, state_to, detail,
         kind IN ('group.state', 'group.epoch') AND state_to IN ('Stable', 'Empty', 'Dead') AS settles
  FROM {trace}
  WHERE kind IN ('group.epoch', 'group.state', 'heartbeat')
),
numbered AS (
  SELECT *,
         coalesce(sum(settles::INT) OVER before, 0)::BIGINT AS rebalance,
         last_value(CASE WHEN settles THEN false WHEN kind = 'group.epoch' THEN true END IGNORE NULLS) OVER before AS under_way,
         last_value(CASE WHEN settles THEN state_to END IGNORE NULLS) OVER before AS settled_before
  FROM marks
  WINDOW before AS (PARTITION BY run_id, "group" ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
sized AS (
  SELECT *,
         CASE
           WHEN kind <> 'heartbeat' THEN 0
           WHEN contains(detail, '+')
           THEN try_cast(split_part(split_part(detail, ' ', 2), '+', 1) AS BIGINT) + try_cast(split_part(detail, '+', 2) AS BIGINT)
           WHEN detail = 'keepalive' THEN 103 + length(actor) + length("group")
         END AS bytes
  FROM numbered
  WHERE under_way OR kind = 'group.epoch'
)
SELECT run_id, "group", rebalance,
       min(seq) AS begin_seq,
       min(t_us) AS begin_us,
       min(t_us) FILTER (WHERE settles) AS end_us,
       arg_min(state_to, seq) FILTER (WHERE settles) AS settled,
       arg_min(detail, seq) FILTER (WHERE kind = 'group.epoch') AS cause,
       count_if(kind = 'group.epoch')::BIGINT AS epochs,
       CASE WHEN NOT any_value(logged) THEN count_if(kind = 'heartbeat')::BIGINT END AS heartbeats,
       CASE WHEN count(bytes) = count(*) AND NOT any_value(logged) THEN sum(bytes)::BIGINT END AS bytes,
       CASE
         WHEN NOT starts_with(arg_min(detail, seq) FILTER (WHERE kind = 'group.epoch'), '{generation}:')
         THEN (min(t_us) FILTER (WHERE settles) - min(t_us)) / 1e6
       END AS seconds,
       arg_min(coalesce(settled_before, ''), seq) <> 'Stable' OR coalesce(min(seq) < any_value(joined_seq), false) AS forms
FROM sized JOIN {traced} USING (run_id) LEFT JOIN joins USING (run_id)
GROUP BY run_id, "group", rebalance
