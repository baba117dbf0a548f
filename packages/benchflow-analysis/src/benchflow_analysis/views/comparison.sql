-- Views that compare the variants of a job with its baseline: the variant that the manifest names,
-- or else the first one of the schedule.

CREATE VIEW baselines AS
SELECT trials.job, coalesce(any_value(manifest.baseline), arg_min(variant, "index")) AS baseline
FROM trials LEFT JOIN run_manifest AS manifest USING (job)
GROUP BY trials.job;

CREATE VIEW win_loss_tie AS
SELECT variants.job, baselines.baseline, variants.variant,
       count(*) AS tasks,
       count(*) FILTER (variants.mean_reward > base.mean_reward) AS wins,
       count(*) FILTER (variants.mean_reward < base.mean_reward) AS losses,
       count(*) FILTER (variants.mean_reward = base.mean_reward) AS ties,
       avg(variants.mean_reward - base.mean_reward ORDER BY variants.task) AS delta
FROM task_variant_matrix AS variants
JOIN baselines USING (job)
JOIN task_variant_matrix AS base
  ON base.job = variants.job AND base.task = variants.task AND base.variant = baselines.baseline
WHERE variants.variant <> baselines.baseline
  AND variants.scored > 0 AND base.scored > 0
GROUP BY variants.job, baselines.baseline, variants.variant
ORDER BY variants.job, variants.variant;

CREATE VIEW ranking AS
SELECT job, rank() OVER (PARTITION BY job ORDER BY mean_reward DESC NULLS LAST) AS rank,
       variant, mean_reward, pass_rate, tasks, scored, unscored, cost_usd
FROM variant_summary
ORDER BY job, rank, variant;

CREATE VIEW best_config AS
SELECT ranking.job, ranking.variant, mean_reward, pass_rate, scored, snapshots.config
FROM ranking LEFT JOIN variant_snapshots AS snapshots USING (job, variant)
WHERE rank = 1
ORDER BY ranking.job, ranking.variant;

CREATE VIEW trend AS
SELECT job, variant, repeat,
       count(reward) AS scored,
       count(*) - count(reward) AS unscored,
       avg(reward ORDER BY "index") AS mean_reward,
       mean_reward - lag(mean_reward) OVER (PARTITION BY job, variant ORDER BY repeat) AS change
FROM trials
GROUP BY job, variant, repeat
ORDER BY job, variant, repeat;
