"""A history of GPUs as a dcgm-exporter's scrapes, and what an import of it must give.

The expectations are computed here from the scrapes, by the words of the guide: a sample is the last
scrape of a step and stands for it; what was not scraped is unknown.
"""

from dataclasses import dataclass, field
from fractions import Fraction

HOUR_S, STEP_S, SCRAPE_S = 3600, 60, 30
# 2026-01-10 00:00 UTC.
BEGIN_S = 1_768_003_200
# What is imported; scrapes begin before it and end after it.
HOURS = 4
MIB = 1 << 20

# Name, column of gpu_samples, and the column's units in one of the name.
FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util_ppm", 10_000),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("graphics_active_ppm", 1_000_000),
    "DCGM_FI_DEV_POWER_USAGE": ("power_mw", 1_000),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_mj", 1),
    "DCGM_FI_DEV_FB_USED": ("framebuffer_used_bytes", MIB),
    "DCGM_FI_DEV_XID_ERRORS": ("xid_code", 1),
}
OF_THE_BOARD = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_XID_ERRORS"}
COLUMNS = [column for column, _ in FIELDS.values()]


@dataclass
class Device:
    """A GPU, or a MIG instance of one."""

    node: str
    gpu: int
    uuid: str
    instance: str = ""
    hostname: bool = True
    gap: range = range(0)
    """Seconds after the begin without scrapes."""
    scrapes: dict[str, list[tuple[int, Fraction | None]]] = field(default_factory=dict)
    """By name: time in ms, and the number; none is NaN."""

    @property
    def mig_uuid(self) -> str:
        return f"MIG-{self.uuid}/{self.instance}" if self.instance else ""

    def labels(self) -> dict[str, str]:
        labels = {"instance": f"{self.node}:9400", "job": "dcgm", "gpu": str(self.gpu), "UUID": self.uuid,
                  "modelName": "NVIDIA H100 80GB HBM3", "device": f"nvidia{self.gpu}", "pod": "trainer-0"}
        if self.hostname:
            labels["Hostname"] = self.node
        if self.instance:
            labels |= {"GPU_I_ID": self.instance, "GPU_I_PROFILE": "1g.10gb"}
        return labels


def made(with_nan: bool) -> list[Device]:
    devices = [
        Device("n1", 0, "GPU-aaaa"),
        Device("n1", 1, "GPU-bbbb", gap=range(5_000, 6_500)),
        # Without the label, the node is that of `instance`. It is down for the whole of an hour.
        Device("n2", 0, "GPU-cccc", hostname=False, gap=range(HOUR_S - 1, 2 * HOUR_S + 10)),
        Device("n2", 0, "GPU-cccc", instance="3", hostname=False, gap=range(HOUR_S - 1, 2 * HOUR_S + 10)),
    ]
    for number, device in enumerate(devices):
        energy = 1_000_000 * (number + 1)
        for at_s in range(-600, HOURS * HOUR_S + 600, SCRAPE_S):
            if at_s in device.gap:
                continue
            watts = 300 + (at_s // 30 * 7 + number * 11) % 390 + Fraction(number, 4)
            energy += int(watts) * 1_000 * SCRAPE_S
            if number == 1 and at_s == 3 * HOUR_S + 600:
                # The driver was loaded anew.
                energy = 0
            numbers = {
                "DCGM_FI_DEV_GPU_UTIL": Fraction((at_s // 30 + number) % 101),
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Fraction((at_s // 30 * 13 + number) % 1_000, 1_000),
                "DCGM_FI_DEV_POWER_USAGE": watts,
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Fraction(energy),
                "DCGM_FI_DEV_FB_USED": Fraction(1_000 + at_s % 7_000 // 10),
                "DCGM_FI_DEV_XID_ERRORS": Fraction(79 if number == 0 and at_s >= 2 * HOUR_S - 30 else 0),
            }
            if number == 0 and at_s in range(1_800, 1_920):
                numbers["DCGM_FI_DEV_GPU_UTIL"] = None
            # Each target has its own second of the interval.
            at_ms = (BEGIN_S + at_s + 7 * (number // 2) + 3) * 1_000
            for name, value in numbers.items():
                if value is None and not with_nan:
                    continue
                if not device.instance or name not in OF_THE_BOARD:
                    device.scrapes.setdefault(name, []).append((at_ms, value))
    return devices


def openmetrics(devices: list[Device]) -> str:
    """The scrapes in OpenMetrics' text format, with series that are no device's."""
    lines = []

    def series(name: str, labels: dict[str, str], scrapes) -> None:
        inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
        for at_ms, value in scrapes:
            text = "NaN" if value is None else repr(float(value))
            lines.append(f"{name}{{{inside}}} {text} {at_ms / 1_000:.3f}")

    once = [(BEGIN_S * 1_000 + 90_000, Fraction(1))]
    for name in FIELDS:
        lines.append(f"# TYPE {name} gauge")
        for device in devices:
            if name in device.scrapes:
                series(name, device.labels(), device.scrapes[name])
        if name == "DCGM_FI_DEV_GPU_UTIL":
            series(name, {"instance": "n3:9400", "gpu": "0"}, once)
            series(name, {"instance": "n3:9400", "gpu": "first", "UUID": "GPU-dddd"}, once)
    for name in ["DCGM_FI_DEV_VGPU_LICENSE_STATUS", "node_load1"]:
        lines.append(f"# TYPE {name} gauge")
        series(name, devices[0].labels(), once)
    return "\n".join([*lines, "# EOF\n"])


def expected(devices: list[Device], first_hour: int = 0, hours: int = HOURS) -> list[dict]:
    """Rows of gpu_samples, by device and time."""
    rows = []
    for device in devices:
        before = None
        # One step before the first, from which counters grow.
        for at_s in range(first_hour * HOUR_S - STEP_S, (first_hour + hours) * HOUR_S, STEP_S):
            end_ms = (BEGIN_S + at_s) * 1_000
            row = {"node": device.node, "gpu_uuid": device.uuid, "mig_uuid": device.mig_uuid, "gpu_index": device.gpu,
                   "time": end_ms, "interval_us": STEP_S * 1_000_000, "growth": None}
            scraped = False
            for name, (column, factor) in FIELDS.items():
                inside = [value for at_ms, value in device.scrapes.get(name, []) if end_ms - STEP_S * 1_000 < at_ms <= end_ms]
                scraped |= bool(inside)
                row[column] = round(inside[-1] * factor) if inside and inside[-1] is not None else None
            if not scraped:
                before = None
                continue
            if before is not None and row["energy_mj"] is not None and row["energy_mj"] >= before:
                row["growth"] = row["energy_mj"] - before
            before = row["energy_mj"]
            if at_s >= first_hour * HOUR_S:
                rows.append(row)
    return sorted(rows, key=lambda row: (row["node"], row["gpu_uuid"], row["mig_uuid"], row["time"]))
