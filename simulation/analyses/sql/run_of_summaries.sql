-- View `run`, where a campaign left summaries: each traced run under its scenario and parameters.
SELECT traced.run_id, summary.scenario, summary.parameters, run_end_us
FROM {traced} AS traced JOIN {summary} AS summary USING (run_id)
