--! name    = "link_peaks"
--! doc     = "What the PCIe and NVLink ports of a GPU can carry at most in one direction, by model. A server may give a GPU a slower or narrower PCIe link than the GPU could use; which one it has is not known here, so a share of this is rather too low. What is not here is not known."
--! question = "What can the PCIe and NVLink ports of a GPU model carry?"
--! example  = "SELECT model, pcie_bytes_per_second / 1000000000 AS pcie_gb_per_second, nvlink_bytes_per_second / 1000000000 AS nvlink_gb_per_second, nvlink_source FROM link_peaks ORDER BY model"
--! sources = []
--! catalog = { file = "schemas/link_peaks.csv", key = ["model"], whole_numbers = ["pcie_bytes_per_second", "nvlink_bytes_per_second"] }
--! [columns]
--! model                   = "Model as NVML names it; % stands for any text. The longest name that fits counts."
--! pcie_bytes_per_second   = "Bytes per second over PCIe in one direction at most, after line coding; NULL if it is not known."
--! nvlink_bytes_per_second = "Bytes per second over all NVLinks in one direction at most; 0 for a model without NVLink, NULL if it is not known, as of cards on which a bridge may be fitted or not."
--! pcie_source             = "Where pcie_bytes_per_second is from: generation and width by the data sheet, x the rate of that generation (PCI-SIG)."
--! nvlink_source           = "Where nvlink_bytes_per_second is from; data sheets state both directions together, here it is half of that."
SELECT model, pcie_bytes_per_second, nvlink_bytes_per_second, pcie_source, nvlink_source
FROM catalog
