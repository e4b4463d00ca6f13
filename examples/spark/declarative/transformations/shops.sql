-- Computed again from all paid orders in each run.
CREATE MATERIALIZED VIEW shops AS
SELECT shop, count(*) AS orders, sum(total) AS total
FROM paid
GROUP BY shop;
