-- View `move`: one row for each rebalance of a formed group that ended: the number of partitions that moved from one host to another, the
-- number that got their first owner, and the number that had to move (`least`), which is the smallest that leaves each
-- member with as many partitions as it had afterwards. A host that returns and gets its partitions again has not moved
-- them.
WITH attributed AS (
  SELECT run_id, "group", topic, partition, seq, actor,
         last_value(began IGNORE NULLS) OVER (
           PARTITION BY run_id, "group" ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
         ) AS rebalance
  FROM (
    SELECT run_id, "group", begin_seq AS seq, rebalance AS began, NULL AS topic, NULL AS partition, NULL AS actor
    FROM {rebalance}
    UNION ALL
    SELECT run_id, "group", seq, NULL, topic, partition, actor FROM {ownership} WHERE NOT fenced AND NOT sac
  )
),
owned AS (
  SELECT run_id, "group", topic, partition, rebalance, after,
         lag(after) OVER (PARTITION BY run_id, "group", topic, partition ORDER BY rebalance) AS before
  FROM (
    SELECT run_id, "group", topic, partition, rebalance, arg_max(actor, seq) AS after
    FROM attributed
    WHERE topic IS NOT NULL AND rebalance IS NOT NULL
    GROUP BY run_id, "group", topic, partition, rebalance
  )
),
gone AS (SELECT * FROM owned WHERE before IS DISTINCT FROM after),
changed AS (
  SELECT run_id, "group", rebalance, member, sum(change) AS gain, sum(moved) AS moved, sum(first) AS first
  FROM (
    SELECT run_id, "group", rebalance, after AS member, 1 AS change, (before IS NOT NULL)::INT AS moved, (before IS NULL)::INT AS first
    FROM gone
    UNION ALL
    SELECT run_id, "group", rebalance, before, -1, 0, 0 FROM gone WHERE before IS NOT NULL
  )
  GROUP BY run_id, "group", rebalance, member
)
SELECT run_id, "group", rebalance, begin_us,
       coalesce(moved, 0)::BIGINT AS moved,
       coalesce(first, 0)::BIGINT AS first,
       coalesce(greatest(gains - first, 0), 0)::BIGINT AS least
FROM {rebalance} LEFT JOIN (
  SELECT run_id, "group", rebalance, sum(moved) AS moved, sum(first) AS first, sum(greatest(gain, 0)) AS gains
  FROM changed
  GROUP BY run_id, "group", rebalance
) USING (run_id, "group", rebalance)
WHERE settled = 'Stable' AND NOT forms
