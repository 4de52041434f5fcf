-- View `move`: one row a rebalance that ended: how many partitions went from one host to another, how many got their first
-- owner, and how many had to move at least (`least`): so many as it takes to leave each member with as many partitions as
-- it had afterwards. A host that comes back and gets its partitions again has not moved them.
WITH begins AS (
  SELECT run_id, `group`, rebalance, begin_seq FROM {rebalance} AS rebalance
),
given AS (
  SELECT run_id, `group`, seq, actor, topic, partition FROM {ownership} AS ownership WHERE NOT fenced AND NOT sac
),
attributed AS (
  SELECT run_id, `group`, topic, partition, seq, actor,
         last_value(began, true) OVER (PARTITION BY run_id, `group` ORDER BY seq) AS rebalance
  FROM (
    SELECT run_id, `group`, begin_seq AS seq, rebalance AS began, NULL AS topic, NULL AS partition, NULL AS actor
    FROM begins
    UNION ALL
    SELECT run_id, `group`, seq, NULL AS began, topic, partition, actor FROM given
  )
),
owned AS (
  SELECT run_id, `group`, topic, partition, rebalance, after,
         lag(after) OVER (PARTITION BY run_id, `group`, topic, partition ORDER BY rebalance) AS before
  FROM (
    SELECT run_id, `group`, topic, partition, rebalance, max_by(actor, seq) AS after
    FROM attributed
    WHERE topic IS NOT NULL AND rebalance IS NOT NULL
    GROUP BY run_id, `group`, topic, partition, rebalance
  )
),
changed AS (
  SELECT run_id, `group`, rebalance, member,
         sum(CASE WHEN member = after THEN 1 ELSE -1 END) AS gain,
         count_if(member = after AND before IS NOT NULL) AS moved,
         count_if(before IS NULL) AS first
  FROM (SELECT *, explode(array_compact(array(before, after))) AS member FROM owned WHERE NOT before <=> after)
  GROUP BY run_id, `group`, rebalance, member
)
SELECT run_id, `group`, rebalance, begin_us, scenario, parameters,
       coalesce(moved, 0L) AS moved,
       coalesce(first, 0L) AS first,
       coalesce(greatest(gains - first, 0L), 0L) AS least
FROM {rebalance} AS rebalance LEFT JOIN (
  SELECT run_id, `group`, rebalance, sum(moved) AS moved, sum(first) AS first, sum(greatest(gain, 0L)) AS gains
  FROM changed
  GROUP BY run_id, `group`, rebalance
) USING (run_id, `group`, rebalance)
WHERE settled = 'Stable'
