-- View `situation`: how often a run came to each situation that puts an invariant to the test, if it did.
SELECT run_id, situation, reached
FROM (SELECT run_id, unnest([{situation_names}]) AS situation, unnest([{situation_counts}])::BIGINT AS reached FROM {trace} GROUP BY run_id)
WHERE reached > 0
