-- View `rebalance`: one row a rebalance, from the first raise of the group epoch until the group is Stable
-- (or Empty, or Dead) again. Further raises in between belong to it; so do the heartbeats answered meanwhile.
-- `end_us` is null where the trace ends first. Each run is sorted once, in one shuffle.
WITH marks AS (
  SELECT run_id, `group`, seq, t_us, kind, state_to, detail,
         kind IN ('group.state', 'group.epoch') AND state_to IN ('Stable', 'Empty', 'Dead') AS settles
  FROM {trace} AS trace
  WHERE kind IN ('group.epoch', 'group.state', 'heartbeat')
),
numbered AS (
  SELECT *,
         coalesce(count_if(settles) OVER before, 0) AS rebalance,
         last_value(CASE WHEN settles THEN false WHEN kind = 'group.epoch' THEN true END, true) OVER before AS under_way
  FROM marks
  WINDOW before AS (PARTITION BY run_id, `group` ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
spans AS (
  SELECT run_id, `group`, rebalance,
         min(t_us) AS begin_us,
         min(CASE WHEN settles THEN t_us END) AS end_us,
         min_by(state_to, seq) FILTER (WHERE settles) AS settled,
         min_by(detail, seq) FILTER (WHERE kind = 'group.epoch') AS cause,
         count_if(kind = 'group.epoch') AS epochs,
         count_if(kind = 'heartbeat') AS heartbeats
  FROM numbered
  WHERE under_way OR kind = 'group.epoch'
  GROUP BY run_id, `group`, rebalance
)
SELECT spans.*, (end_us - begin_us) / 1e6 AS seconds, scenario, parameters
FROM spans JOIN {run} AS run USING (run_id)
