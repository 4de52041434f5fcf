-- View `recovery`: one row for each time that a partition moved to another owner that then processed records of it, or
-- to the same one again. `lag` is the number of records that waited when the owner had done its first batch, including
-- those of the batch. `caught_up_us` is the time from the handover until it had caught up, null if never. `again` is
-- the number of records that had been processed before. The owner has caught up with the first batch that leaves no
-- more records than it had: more may arrive while one is processed.
WITH processed AS (
  SELECT run_id, seq, t_us, held.topic, held.partition,
         try_cast(split_part(detail, '..', 1) AS BIGINT) AS first,
         try_cast(split_part(split_part(detail, '..', 2), ' of ', 1) AS BIGINT) AS "end",
         try_cast(split_part(detail, ' of ', 2) AS BIGINT) AS log_end
  FROM {trace}, unnest(partitions) AS each(held)
  WHERE kind = 'records'
),
mixed AS (
  SELECT run_id, seq, t_us, topic, partition, first, "end", log_end, NULL AS cause FROM processed
  UNION ALL
  SELECT run_id, seq, from_us, topic, partition, NULL, NULL, NULL, cause FROM {handover} WHERE NOT first
),
numbered AS (
  SELECT *,
         sum((first IS NULL)::INT) OVER so_far AS number,
         max("end") OVER (
           PARTITION BY run_id, topic, partition ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
         ) AS done
  FROM mixed
  WINDOW so_far AS (PARTITION BY run_id, topic, partition ORDER BY seq)
),
summed AS (
  SELECT run_id, topic, partition, number,
         min(t_us) FILTER (WHERE first IS NULL) AS from_us,
         arg_min(cause, seq) FILTER (WHERE first IS NULL) AS cause,
         min(struct_pack(seq := seq, lag := log_end - first)) FILTER (WHERE first IS NOT NULL).lag AS lag,
         min(t_us) FILTER (WHERE log_end - "end" <= "end" - first) AS caught_up_at_us,
         sum(greatest(least("end", coalesce(done, first)) - first, 0))::BIGINT AS again,
         count(first) AS batches
  FROM numbered
  WHERE number > 0
  GROUP BY run_id, topic, partition, number
)
SELECT run_id, topic, partition, from_us, cause, lag, caught_up_at_us - from_us AS caught_up_us, again
FROM summed
WHERE batches > 0
