--! name    = "link_peaks"
--! doc     = "Peak bandwidth of the PCIe and NVLink ports of GPU models, in one direction: schemas/link_peaks.csv. A server may connect a GPU over a slower or narrower PCIe link than the GPU supports; that is not known here, so shares of this peak may be too low. Models that are missing here are not known."
--! question = "What is the peak bandwidth of a GPU model's PCIe and NVLink ports?"
--! example  = "SELECT model, pcie_bytes_per_second / 1000000000 AS pcie_gb_per_second, nvlink_bytes_per_second / 1000000000 AS nvlink_gb_per_second, nvlink_source FROM link_peaks ORDER BY model"
--! sources = []
--! catalog = { file = "schemas/link_peaks.csv", key = ["model"], whole_numbers = ["pcie_bytes_per_second", "nvlink_bytes_per_second"] }
--! [columns]
--! model                   = "Model in NVML's words; % stands for any text. The longest matching name wins."
--! pcie_bytes_per_second   = "Peak of PCIe in one direction after line coding, bytes per second; NULL if not known."
--! nvlink_bytes_per_second = "Peak of all NVLinks in one direction, bytes per second; 0 for a model without NVLink; NULL if not known, as for cards with an optional bridge."
--! pcie_source             = "Source: generation and width by the data sheet, times the rate of that generation (PCI-SIG)."
--! nvlink_source           = "Source; data sheets state both directions together, the value here is half of that."
SELECT model, pcie_bytes_per_second, nvlink_bytes_per_second, pcie_source, nvlink_source
FROM catalog
