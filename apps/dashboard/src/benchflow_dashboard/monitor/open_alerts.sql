-- One open alert for each rule and group, also if two servers check the same rules at one time.
-- An older version may have opened a second one.
UPDATE monitor_alerts SET resolved = opened WHERE resolved IS NULL AND EXISTS (
    SELECT 1 FROM monitor_alerts AS other
    WHERE other.rule = monitor_alerts.rule AND other.grp = monitor_alerts.grp
        AND other.resolved IS NULL
        AND (other.opened < monitor_alerts.opened
            OR (other.opened = monitor_alerts.opened AND other.id < monitor_alerts.id))
);
CREATE UNIQUE INDEX IF NOT EXISTS monitor_alerts_open ON monitor_alerts (rule, grp)
    WHERE resolved IS NULL;
