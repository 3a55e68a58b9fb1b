--! name    = "link_peaks"
--! doc     = "What the PCIe and NVLink ports of a GPU can carry at most in one direction, by model. A server may give a GPU a slower or narrower PCIe link than the GPU could use; which one it has is not known here, so a share of this is rather too low. What is not here is not known."
--! question = "What can the PCIe and NVLink ports of a GPU model carry?"
--! example  = "SELECT model, pcie_bytes_per_second / 1000000000 AS pcie_gb_per_second, nvlink_bytes_per_second / 1000000000 AS nvlink_gb_per_second, nvlink_source FROM link_peaks ORDER BY model"
--! sources = []
--! [columns]
--! model                   = "Model as NVML names it; % stands for any text. The longest name that fits counts."
--! pcie_bytes_per_second   = "Bytes per second over PCIe in one direction at most, after line coding; NULL if it is not known."
--! nvlink_bytes_per_second = "Bytes per second over all NVLinks in one direction at most; 0 for a model without NVLink, NULL if it is not known, as of cards on which a bridge may be fitted or not."
--! pcie_source             = "Where pcie_bytes_per_second is from: generation and width by the data sheet, x the rate of that generation (PCI-SIG)."
--! nvlink_source           = "Where nvlink_bytes_per_second is from; data sheets state both directions together, here it is half of that."
SELECT CAST(column1 AS TEXT) AS model,
       CAST(column2 AS BIGINT) AS pcie_bytes_per_second,
       CAST(column3 AS BIGINT) AS nvlink_bytes_per_second,
       CAST(column4 AS TEXT) AS pcie_source,
       CAST(column5 AS TEXT) AS nvlink_source
FROM (VALUES
    ('Tesla V100-SXM2-%', 15753846153, 150000000000, 'Gen3 x16: 8 GT/s x 16 x 128/130 / 8', 'data sheet: 300 GB/s, 6 links'),
    ('%A100-SXM4-%', 31507692307, 300000000000, 'Gen4 x16: 16 GT/s x 16 x 128/130 / 8', 'data sheet: 600 GB/s, 12 links'),
    ('%A100 80GB PCIe', 31507692307, NULL, 'Gen4 x16: 16 GT/s x 16 x 128/130 / 8', NULL),
    ('NVIDIA H100 80GB HBM3', 63015384615, 450000000000, 'Gen5 x16: 32 GT/s x 16 x 128/130 / 8', 'data sheet: 900 GB/s, 18 links'),
    ('NVIDIA H100 PCIe', 63015384615, NULL, 'Gen5 x16: 32 GT/s x 16 x 128/130 / 8', NULL),
    ('NVIDIA H200', 63015384615, 450000000000, 'Gen5 x16: 32 GT/s x 16 x 128/130 / 8', 'data sheet: 900 GB/s, 18 links'),
    ('NVIDIA B200', NULL, 900000000000, NULL, 'data sheet: 1800 GB/s, 18 links'),
    ('NVIDIA GB200', NULL, 900000000000, NULL, 'data sheet: 1800 GB/s, 18 links'),
    ('NVIDIA L4', 31507692307, 0, 'Gen4 x16: 16 GT/s x 16 x 128/130 / 8', 'data sheet: none'),
    ('NVIDIA L40S', 31507692307, 0, 'Gen4 x16: 16 GT/s x 16 x 128/130 / 8', 'data sheet: none')
)
