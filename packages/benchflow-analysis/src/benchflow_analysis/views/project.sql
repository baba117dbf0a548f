-- Views across all jobs that are open.

CREATE VIEW all_trials AS
SELECT * FROM trials ORDER BY job, "index";

CREATE VIEW all_runs AS
SELECT manifest.*, progress.* EXCLUDE (job, slots),
       started.started_at, started.finished_at
FROM run_manifest AS manifest
LEFT JOIN run_progress AS progress USING (job)
LEFT JOIN (
    SELECT job, min(started_at) AS started_at, max(finished_at) AS finished_at
    FROM trials GROUP BY job
) AS started USING (job)
ORDER BY manifest.created_at NULLS LAST, started.started_at NULLS LAST, manifest.job;

CREATE VIEW pass_rate_trend AS
SELECT job, variant, pass_rate, scored,
       pass_rate - lag(pass_rate) OVER (PARTITION BY variant ORDER BY place) AS change
FROM variant_summary
JOIN (SELECT job, row_number() OVER () AS place FROM all_runs) USING (job)
ORDER BY variant, place;
