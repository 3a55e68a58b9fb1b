--! name    = "prices"
--! doc     = "The price book: what a GPU-hour costs, from when to when, as entered with `tidegate price`. Which entry holds for a GPU is in price_of."
--! question = "What was entered into the price book, and what is the price of owned GPUs made of?"
--! example  = "SELECT cluster, pool, gpu_model, contract, currency, price_micros_per_gpu_hour / 1000000.0 AS price, written_off_micros_per_gpu_hour / 1000000.0 AS written_off, power_micros_per_gpu_hour / 1000000.0 AS power, from_time, to_time FROM prices ORDER BY cluster, pool, gpu_model, from_time"
--! sources = ["capacity_events"]
--! per     = ["cluster", "owner"]
--! key     = ["cluster", "owner", "pool", "gpu_model", "from_time"]
--! [columns]
--! cluster                          = "Cluster of the GPUs."
--! owner                            = "Who pays: `total`, everybody."
--! pool                             = "Pool of the GPUs; NULL for any."
--! gpu_model                        = "Model of the GPUs as jobs and nodes name it; NULL for any."
--! contract                         = "How they are paid for: reserved, on_demand, spot or owned. One price holds for a GPU at a time: another contract is another price."
--! price_micros_per_gpu_hour        = "Price of a GPU-hour, held or not, millionths of the currency."
--! currency                         = "Currency as in ISO 4217."
--! written_off_micros_per_gpu_hour  = "Of an owned GPU: capital / (months x 730.5 h), rounded half up; a month is 365.25 / 12 days."
--! power_micros_per_gpu_hour        = "Of an owned GPU: power x price of energy, rounded half up. What the price holds beyond these two is not explained here."
--! capital_micros_per_gpu           = "What a GPU was bought for, with its share of node, network and building, millionths of the currency."
--! depreciation_months              = "Over how many months that is written off."
--! power_mw_per_gpu                 = "Power of a GPU with its share of node and cooling, mW."
--! energy_micros_per_kwh            = "Price of energy, millionths of the currency per kWh."
--! from_time                        = "From when on."
--! to_time                          = "Until when: the next entry for the same pool and model, or its end; NULL for the one in force."
--! entered_time                     = "When it was entered; of several from the same time on the last one entered is here."
WITH entries AS (
    SELECT *,
           row_number() OVER (
               PARTITION BY cluster, owner, pool, gpu_model, event_time
               ORDER BY entered_time DESC NULLS LAST, price_micros_per_gpu_hour DESC NULLS LAST, contract, currency,
                        capital_micros_per_gpu, depreciation_months, power_mw_per_gpu, energy_micros_per_kwh
           ) AS place
    FROM capacity_events
    WHERE kind = 'PRICE_SET'
), spans AS (
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
-- An entry without a price is the end of the one before.
WHERE price_micros_per_gpu_hour IS NOT NULL
