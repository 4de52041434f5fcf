-- View `run`: one row for each run, with its scenario and parameters, and the time of its last row.
SELECT run_id, scenario, parameters, run_end_us FROM {traced} AS traced
