"""NVIDIA's own programs, which say what the GPU does while Tidegate records it."""

import statistics
import subprocess
from datetime import datetime
from pathlib import Path

SMI = [
    "utilization.gpu", "utilization.memory", "memory.used", "power.draw.average", "power.draw.instant", "clocks.sm",
    "clocks.mem", "temperature.gpu",
]
# Numbers of nvmlGpmMetricId_t: graphics, SM, occupancy, integer, tensor, FP64 tensor, HMMA, DRAM, FP64, FP32, FP16.
GPM = "1,2,3,4,5,6,7,10,11,12,13"


class Witness:
    """A program that prints a line a second, kept in a file."""

    def __init__(self, file: Path, command: list[str]):
        self.file = file
        self.process = subprocess.Popen(command, stdout=file.open("w"), stderr=subprocess.STDOUT)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def means(self, since_ms: float, until_ms: float) -> dict[str, float]:
        """Mean of each column between two times."""
        inside = [row for at_ms, row in self.rows() if since_ms <= at_ms < until_ms]
        columns = {name for row in inside for name in row}
        return {name: statistics.fmean(row[name] for row in inside if name in row) for name in sorted(columns)}


class Smi(Witness):
    def __init__(self, file: Path):
        fields = ",".join(["timestamp", *SMI])
        super().__init__(file, ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", "1000"])

    def rows(self):
        for line in self.file.read_text().splitlines():
            at, *values = [field.strip() for field in line.split(",")]
            try:
                at_ms = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp() * 1000
                yield at_ms, {name: float(value) for name, value in zip(SMI, values) if value[:1].isdigit()}
            except ValueError:
                continue


class Dmon(Witness):
    """GPM metrics of dmon, in percent."""

    def __init__(self, file: Path):
        super().__init__(file, ["nvidia-smi", "dmon", "-i", "0", "-d", "1", "-o", "DT", "--gpm-metrics", GPM])

    def rows(self):
        names: list[str] = []
        for line in self.file.read_text().splitlines():
            fields = line.lstrip("#").split()
            if line.startswith("#"):
                names = fields if "Time" in fields else names
                continue
            try:
                at = datetime.strptime(" ".join(fields[:2]), "%Y%m%d %H:%M:%S")
            except ValueError:
                continue
            values = {name: float(value) for name, value in zip(names[2:], fields[2:]) if value.replace(".", "").isdigit()}
            yield at.timestamp() * 1000, values
