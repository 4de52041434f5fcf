-- View `window`: one row for each time that the coordinator's view of a single active consumer became wrong
-- (`opened_by` is the reason), and for each time that it became right again (null). Until then another consumer may be
-- active at the same time, as RabbitMQ's protocol allows.
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
