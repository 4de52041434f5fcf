-- View `holding`: one row for each time that the coordinator counts a partition as a member's: assigned to it, or not
-- yet released by it. `until_us` is null if this lasts to the end of the trace. A single active consumer (`sac`) has
-- its stream while it is active, or may be, and its connection is not given up. It reads (`reads`) except while it
-- steps down.
WITH told AS (
  SELECT run_id, t_us, partitions, kind = 'sac.consumer' AS sac,
         kind = 'assignment' OR state_to IN {active_like} AS holds,
         state_to <> 'CONNECTED_DEACTIVATING' AS reads,
         lead(t_us) OVER (
           PARTITION BY run_id, CASE WHEN kind = 'assignment' THEN detail ELSE concat(actor, split_part(detail, ' ', 2)) END
           ORDER BY seq
         ) AS until_us
  FROM {trace}
  WHERE kind IN ('assignment', 'sac.consumer')
)
SELECT run_id, held.topic, held.partition, sac, reads, t_us AS from_us, until_us
FROM told, unnest(partitions) AS each(held)
WHERE holds
