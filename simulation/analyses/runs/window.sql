-- View `window`: one row for each time the coordinator took a single active consumer for something else than it may be
-- (`opened_by` says what did), and for each time it knew again (null). Until then another one may be active beside it, as
-- RabbitMQ's protocol has it.
SELECT run_id, actor, seq, opened_by
FROM (
  SELECT run_id, actor, seq, state_to,
         CASE
           WHEN state_from = 'FORGOTTEN_ACTIVE' AND state_to = 'DISCONNECTED_ACTIVE' THEN 'twice lost'
           WHEN state_to = 'CONNECTED_ACTIVE' AND state_from <> 'DISCONNECTED_ACTIVE' THEN NULL
           WHEN NOT (state_from IN {active_like} AND state_to NOT IN {active_like}) THEN 'none'
           WHEN state_to = 'FORGOTTEN_ACTIVE' THEN 'forgotten'
           WHEN state_to = 'UNREGISTERED' AND command IN ('PurgeNodes', 'Tick') THEN 'removed'
           WHEN state_to = 'UNREGISTERED' AND command = 'ConnectionDown' THEN 'closed'
           WHEN state_to = 'UNREGISTERED' THEN 'none'
           WHEN command = 'ActivateConsumer' AND state_from = 'CONNECTED_ACTIVE' THEN 'demoted'
           WHEN command = 'ActivateConsumer' THEN 'early'
           WHEN command = 'ConnectionReconnected' THEN 'returned'
           WHEN command = 'ConnectionDown' THEN 'abandoned'
           ELSE 'none'
         END AS opened_by
  FROM (SELECT *, split_part(detail, ' ', 1) AS command FROM {trace} WHERE kind = 'sac.consumer')
)
WHERE opened_by IS NULL OR opened_by <> 'none'
