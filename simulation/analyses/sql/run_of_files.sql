-- View `run`, if files hold different runs with the same id: the file, or its folder, is a parameter of these.
SELECT run_id, scenario,
       CASE
         WHEN file IS NULL THEN parameters
         WHEN parameters = '{{}}' THEN concat('{{"file": ', file, '}}')
         ELSE concat('{{"file": ', file, ', ', substr(parameters, 2))
       END AS parameters,
       run_end_us
FROM {traced} AS traced LEFT JOIN {file} AS file USING (run_id)
