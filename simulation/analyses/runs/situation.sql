-- View `situation`: number of times that a run reached each situation that tests an invariant, if it did. Kafka's own
-- log of groups reaches none, as no judge judges it.
SELECT run_id, situation, reached
FROM (SELECT run_id, unnest([{situation_names}]) AS situation, unnest([{situation_counts}])::BIGINT AS reached FROM {trace} WHERE world <> '{log_world}' GROUP BY run_id)
WHERE reached > 0
