-- Time until clients were in ERROR after a handler, their own or another one of the application, returned a shutdown,
-- and time until the application's last client was.
SELECT scenario, parameters, answer, requests, count,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max,
       last_at[0] AS last_median, last_at[1] AS last_max, unfinished
FROM (
  SELECT scenario, parameters, answer,
         count(seconds) AS count,
         percentile_disc(array(0.5, 0.9, 0.99, 1.0)) WITHIN GROUP (ORDER BY seconds) AS at,
         count(*) - count(seconds) AS unfinished
  FROM (SELECT *, (end_us - asked_us) / 1e6 AS seconds FROM {escalation} AS escalation)
  GROUP BY scenario, parameters, answer
)
JOIN (
  SELECT scenario, parameters, answer,
         count(*) AS requests,
         percentile_disc(array(0.5, 1.0)) WITHIN GROUP (ORDER BY seconds) AS last_at
  FROM (
    SELECT run_id, scenario, parameters, answer, request, max(end_us - asked_us) / 1e6 AS seconds
    FROM {escalation} AS escalation
    GROUP BY run_id, scenario, parameters, answer, request
  )
  GROUP BY scenario, parameters, answer
) USING (scenario, parameters, answer)
ORDER BY scenario, parameters, answer
