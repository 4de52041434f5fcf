-- View `handover`: one row for each time that a member was assigned a partition, with the time without a reader before
-- (`gap_us`), the reason for the release (`cause`, null for the first owner of a partition), whether there was no owner
-- before (`first`), whether the previous owner had stopped reading (`apart`), and the time that this member and
-- `before_actor` both held it (`shared_us`). Both times are null if the trace does not tell. A partition begins with its topic, or when the topic grows; no member can
-- have it before.
WITH births AS (
  SELECT run_id, actor AS topic,
         list(struct_pack(
           t_us := t_us,
           created := starts_with(detail, 'created'),
           partitions := try_cast(split_part(detail, ' ', 2) AS INT)
         )) AS births
  FROM {trace}
  WHERE kind = 'topic' AND (starts_with(detail, 'created') OR starts_with(detail, 'grown'))
  GROUP BY run_id, actor
),
followed AS (
  SELECT run_id, topic, partition, actor, seq, from_us, held_until_us,
         max(struct_pack(until_us := coalesce(until_us, 9223372036854775807), ended_by := ended_by)) OVER earlier AS before,
         max(struct_pack(until_us := coalesce(held_until_us, 9223372036854775807), actor := actor)) OVER earlier AS holder
  FROM {ownership}
  WHERE NOT fenced
  WINDOW earlier AS (PARTITION BY run_id, topic, partition ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
created AS (
  SELECT followed.*, run_end_us, logged, births,
         coalesce(list_max(list_transform(list_filter(births, lambda b: b.created AND b.t_us <= from_us), lambda b: b.t_us)), 0) AS created_us
  FROM followed JOIN {traced} USING (run_id) LEFT JOIN births USING (run_id, topic)
),
born AS (
  SELECT *,
         coalesce(
           list_min(list_transform(list_filter(births, lambda b: b.partitions > partition AND b.t_us >= created_us), lambda b: b.t_us)),
           created_us
         ) AS born_us
  FROM created
)
SELECT run_id, topic, partition, actor, holder.actor AS before_actor, seq, from_us,
       CASE WHEN before IS NOT NULL THEN coalesce(before.ended_by, 'assigned again') END AS cause,
       before IS NULL OR before.until_us < born_us AS first,
       before.until_us >= born_us AND before.until_us <= from_us AS apart,
       CASE
         WHEN before.ended_by IN ('gone', 'taken') OR logged AND before IS NULL THEN NULL
         ELSE greatest(from_us - greatest(born_us, coalesce(before.until_us, 0)), 0)
       END AS gap_us,
       CASE
         WHEN logged THEN NULL
         WHEN holder.until_us > from_us
         THEN least(holder.until_us, coalesce(held_until_us, run_end_us), run_end_us) - from_us
         ELSE 0
       END AS shared_us
FROM born
