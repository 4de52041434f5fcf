-- View `escalation`: one row for each life of a client of an application that a failed thread was to end. It lasts from
-- the handler's response (`asked_us`; `request` is the row with it) until the client is in ERROR. A client that starts
-- while the application shuts down counts from its start. `end_us` is null if the trace ends first. Lives that end in
-- another way, by a crash or a close, are left out.
WITH marks AS (
  SELECT run_id, seq, t_us,
         CASE WHEN kind = 'thread.failed' THEN regexp_extract(actor, '^(.*)-[A-Za-z]*StreamThread', 1) ELSE actor END AS client,
         CASE
           WHEN kind = 'thread.failed' AND starts_with(detail, 'SHUTDOWN_APPLICATION') THEN 'asked'
           WHEN kind = 'thread.failed' AND starts_with(detail, 'SHUTDOWN_CLIENT') THEN 'failed'
           WHEN kind = 'client.state' AND state_from = 'CREATED' THEN 'begins'
           WHEN kind = 'client.state' AND state_to IN ('ERROR', 'NOT_RUNNING') THEN state_to
           WHEN kind = 'host' AND detail = 'crash' THEN 'crash'
         END AS what
  FROM {trace}
  WHERE kind IN ('client.state', 'thread.failed', 'host')
),
requests AS (
  SELECT run_id, list(struct_pack(seq := seq, t_us := t_us) ORDER BY seq) AS requests
  FROM marks
  WHERE what = 'asked'
  GROUP BY run_id
),
lives AS (
  SELECT run_id, client, seq AS begin_seq, t_us AS begin_us, what,
         first_value(CASE WHEN what IN ('ERROR', 'NOT_RUNNING', 'crash', 'begins')
                          THEN struct_pack(what := what, seq := seq, t_us := t_us) END IGNORE NULLS) OVER later AS ending,
         first_value(CASE WHEN what = 'failed' THEN struct_pack(seq := seq, t_us := t_us) END IGNORE NULLS) OVER later AS failed
  FROM marks
  WHERE what IS NOT NULL
  WINDOW later AS (PARTITION BY run_id, client ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
),
judged AS (
  SELECT lives.*, ending.what AS ended_by,
         CASE WHEN failed.seq < coalesce(ending.seq, 9223372036854775807) THEN failed END AS own,
         list_filter(requests, lambda r: r.seq > begin_seq AND r.seq < coalesce(ending.seq, 9223372036854775807))[1] AS within,
         list_filter(requests, lambda r: r.seq < begin_seq)[-1] AS earlier
  FROM lives LEFT JOIN requests USING (run_id)
  WHERE what = 'begins'
),
caused AS (
  SELECT *,
         CASE
           WHEN within IS NOT NULL AND (own IS NULL OR within.seq < own.seq) THEN 'SHUTDOWN_APPLICATION'
           WHEN own IS NOT NULL THEN 'SHUTDOWN_CLIENT'
           WHEN ended_by = 'ERROR' AND earlier IS NOT NULL THEN 'SHUTDOWN_APPLICATION'
         END AS answer
  FROM judged
  WHERE coalesce(ended_by, 'ERROR') = 'ERROR'
)
SELECT run_id, client, answer,
       CASE WHEN answer = 'SHUTDOWN_CLIENT' THEN own.seq ELSE coalesce(within, earlier).seq END AS request,
       CASE WHEN answer = 'SHUTDOWN_CLIENT' THEN own.t_us ELSE greatest(coalesce(within, earlier).t_us, begin_us) END AS asked_us,
       ending.t_us AS end_us
FROM caused
WHERE answer IS NOT NULL
