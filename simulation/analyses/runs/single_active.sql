-- View `single_active`: one row for each single active consumer. Its actor is `HOST/STREAM`. The actor of another member
-- may have a slash as well: ids that librdkafka makes do.
SELECT DISTINCT run_id, actor
FROM {trace}
WHERE kind = 'member.state' AND (state_from IN {single_active_states} OR state_to IN {single_active_states})
