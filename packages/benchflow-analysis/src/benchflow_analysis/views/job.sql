-- Views over the facts of a job. A pass is a reward of at least 1. Unscored trials are counted and
-- in no mean. Sums and means have an order, so that threads do not change their last digit.

CREATE VIEW task_variant_matrix AS
SELECT job, task, variant,
       count(*) AS trials,
       count(reward) AS scored,
       count(*) - count(reward) AS unscored,
       count(*) FILTER (reward >= 1) AS passes,
       avg(reward ORDER BY "index") AS mean_reward
FROM trials
GROUP BY job, task, variant
ORDER BY job, task, variant;

CREATE VIEW variant_summary AS
WITH spending AS (
    SELECT job, variant,
           sum(tokens_in)::BIGINT AS tokens_in,
           sum(tokens_out)::BIGINT AS tokens_out,
           sum(cost_usd ORDER BY "index") AS cost_usd,
           median(seconds) AS median_seconds
    FROM trials
    GROUP BY job, variant
), rewards AS (
    SELECT job, variant,
           count(*) AS tasks,
           sum(trials)::BIGINT AS trials,
           sum(scored)::BIGINT AS scored,
           sum(unscored)::BIGINT AS unscored,
           avg(mean_reward ORDER BY task) AS mean_reward,
           avg(passes / scored ORDER BY task) FILTER (scored > 0) AS pass_rate
    FROM task_variant_matrix
    GROUP BY job, variant
)
SELECT rewards.*, spending.* EXCLUDE (job, variant)
FROM rewards JOIN spending USING (job, variant)
ORDER BY job, variant;

CREATE VIEW run_progress AS
SELECT manifest.job, manifest.slots,
       count(trials.slot) AS resolved,
       greatest(manifest.slots - count(trials.slot), 0) AS remaining,
       count(*) FILTER (trials.status = 'completed') AS completed,
       count(*) FILTER (trials.status = 'failed') AS failed,
       count(*) FILTER (trials.status = 'skipped_pruned') AS skipped_pruned,
       avg(trials.reward ORDER BY trials."index") AS mean_reward
FROM run_manifest AS manifest LEFT JOIN trials USING (job)
GROUP BY manifest.job, manifest.slots
ORDER BY manifest.job;
