-- View `sharing`: one row for each time that two members held a partition, with the window of single active consumers
-- in which this happened (`opened_by`), if there was one.
SELECT shared.run_id, shared.seq, shared.topic, shared.partition, shared_us,
       coalesce(
         max(struct_pack(seq := opening.seq, opened_by := opened_by)) FILTER (WHERE opening.actor = shared.before_actor).opened_by,
         max(struct_pack(seq := opening.seq, opened_by := opened_by)) FILTER (WHERE opening.actor = shared.actor).opened_by
       ) AS opened_by
FROM (SELECT * FROM {handover} WHERE shared_us > 0) AS shared
LEFT JOIN {window} AS opening
  ON opening.run_id = shared.run_id AND opening.seq < shared.seq AND opening.actor IN (shared.actor, shared.before_actor)
GROUP BY shared.run_id, shared.seq, shared.topic, shared.partition, shared_us
