#!/usr/bin/env python3
"""Keeps one GPU busy in phases of known work, and prints what it did as JSON lines.

    load.py --phase NAME --seconds S [--report SOCKET]

Needs PyTorch. Each line has the phase, its bounds on this machine's clock (ms), and the operations
of its matrix products.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

SIDE = 8192
# A product of two square matrices: a multiplication and an addition for each of SIDE^3 pairs.
FLOPS = 2 * SIDE**3
# Products between two readings of the clock, so that the queue of the device never runs dry.
BURST = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--phase", choices=sorted(PHASES), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--report", metavar="SOCKET", help="report steps to the agent there")
    options = parser.parse_args()
    report = reporter(options.report) if options.report else lambda *_: None
    work = PHASES[options.phase]()
    torch.cuda.synchronize()
    began, flops, step = time.time(), 0, 0
    while (since := time.time()) - began < options.seconds:
        done = work()
        torch.cuda.synchronize()
        report(step, since, time.time() - since, done)
        flops, step = flops + done, step + 1
    ended = time.time()
    line = {"phase": options.phase, "from_ms": int(began * 1000), "to_ms": int(ended * 1000), "flops": flops}
    print(json.dumps(line), flush=True)


def reporter(path: str):
    """Sends each burst as a training step through the client that jobs use."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy/clients/python"))
    import tidegate

    tidegate.configure(path, job="bf16", rank=0, world_size=1, precision="bf16", flops_convention="palm")
    return lambda step, start, took, flops: tidegate.step(step, start=start, duration_s=took, model_flops=flops)


def products(kind: torch.dtype):
    """Matrix products without a pause."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=kind) for _ in range(2))

    def work() -> int:
        for _ in range(BURST):
            torch.matmul(a, b)
        return BURST * FLOPS

    return work


def half():
    """As `bf16`, but the device rests as long as it works."""
    burst = products(torch.bfloat16)

    def work() -> int:
        began = time.time()
        flops = burst()
        torch.cuda.synchronize()
        time.sleep(time.time() - began)
        return flops

    return work


def copies():
    """Copies 16 GB within the device's memory: no operation at all."""
    source = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def work() -> int:
        for _ in range(BURST):
            target.copy_(source)
        return 0

    return work


def idle():
    """A process that holds memory and does nothing."""
    held = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")

    def work() -> int:
        time.sleep(0.2)
        return 0 * held.element_size()

    return work


PHASES = {
    "bf16": lambda: products(torch.bfloat16),
    "fp32": lambda: products(torch.float32),
    "half": half,
    "copies": copies,
    "idle": idle,
}

if __name__ == "__main__":
    main()
