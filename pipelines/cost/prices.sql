--! name    = "prices"
--! doc     = "The price book: prices of a GPU-hour over time, as entered with `tidegate price`. Which entry applies to a GPU is in price_of."
--! question = "What was entered into the price book, and how is the price of owned GPUs composed?"
--! example  = "SELECT cluster, pool, gpu_model, contract, currency, price_micros_per_gpu_hour / 1000000.0 AS price, written_off_micros_per_gpu_hour / 1000000.0 AS written_off, power_micros_per_gpu_hour / 1000000.0 AS power, from_time, to_time FROM prices ORDER BY cluster, pool, gpu_model, from_time"
--! sources = ["capacity_events"]
--! per     = ["cluster", "owner"]
--! key     = ["cluster", "owner", "pool", "gpu_model", "from_time"]
--! [columns]
--! cluster                          = "Cluster of the GPUs."
--! owner                            = "Payer: `total` for everybody."
--! pool                             = "Pool of the GPUs; NULL for any."
--! gpu_model                        = "Model of the GPUs as jobs and nodes name it; NULL for any."
--! contract                         = "Kind of contract: reserved, on_demand, spot or owned. One price applies to a GPU at a time; another contract is another price."
--! price_micros_per_gpu_hour        = "Price of a GPU-hour, held or not, millionths of the currency."
--! currency                         = "Currency as in ISO 4217."
--! written_off_micros_per_gpu_hour  = "Of an owned GPU: capital / (months x 730.5 h), rounded half up; a month is 365.25 / 12 days."
--! power_micros_per_gpu_hour        = "Of an owned GPU: power x price of energy, rounded half up. The rest of the price beyond these two is not explained here."
--! capital_micros_per_gpu           = "Purchase price of a GPU, with its share of node, network and building, millionths of the currency."
--! depreciation_months              = "Months over which it is written off."
--! power_mw_per_gpu                 = "Power of a GPU with its share of node and cooling, mW."
--! energy_micros_per_kwh            = "Price of energy, millionths of the currency per kWh."
--! from_time                        = "Start."
--! to_time                          = "End: the next entry for the same pool and model, or the entered end; NULL for the entry in force."
--! entered_time                     = "Time of entry; of several entries for the same start, the last entered is shown."
WITH entries AS (
    -- One row per entry; place 1 is the last of those for the same start.
    SELECT *,
           row_number() OVER (
               PARTITION BY cluster, owner, pool, gpu_model, event_time
               ORDER BY entered_time DESC NULLS LAST, price_micros_per_gpu_hour DESC NULLS LAST, contract, currency,
                        capital_micros_per_gpu, depreciation_months, power_mw_per_gpu, energy_micros_per_kwh
           ) AS place
    FROM capacity_events
    WHERE kind = 'PRICE_SET'
), spans AS (
    -- One row per such entry, with the start of the next.
    SELECT *, lead(event_time) OVER (PARTITION BY cluster, owner, pool, gpu_model ORDER BY event_time) AS to_time
    FROM entries
    WHERE place = 1
)
SELECT cluster, owner, pool, gpu_model, contract, price_micros_per_gpu_hour, currency,
       (4 * capital_micros_per_gpu + 1461 * depreciation_months) / (2 * 1461 * depreciation_months) AS written_off_micros_per_gpu_hour,
       millionths(power_mw_per_gpu, energy_micros_per_kwh) AS power_micros_per_gpu_hour,
       capital_micros_per_gpu, depreciation_months, power_mw_per_gpu, energy_micros_per_kwh,
       event_time AS from_time, to_time, entered_time
FROM spans
-- An entry without a price ends the entry before it.
WHERE price_micros_per_gpu_hour IS NOT NULL
