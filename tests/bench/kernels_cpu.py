#!/usr/bin/env python3
"""The CPU kernels beside torch's CPU scaled_dot_product_attention, in one run.

    python3 tests/bench/kernels_cpu.py build/release/tests/bench/attend_bench_kernels_cpu

Each round runs every cell once with each library, one after the other, so that both meet the same
neighbours; cells are medians over the rounds. Prints a Markdown table and writes JSON with --json. Needs
torch. Ratios above 1 mean that Attend is faster. Times are of the CPU (all threads), which other work on the
machine disturbs less than the clock; --clock compares the clock. --least compares the least of the rounds: where
strangers run on the other threads of the same cores, single calls take half as long again.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Attend:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, kernel, cell, threads):
        words = (f"--kernel {kernel} --dtype {cell['dtype']} --batch 1 --heads {cell['heads']} "
                 f"--q-len {cell['length']} --dim {cell['dim']} --threads {threads} --rounds 1")
        if cell["causal"]:
            words += " --causal"
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def run_torch(cell, backend):
    """Seconds by the clock and of the CPU; the first call is not counted."""
    shape = (1, cell["heads"], cell["length"], cell["dim"])
    q, k, v = (torch.randn(shape, dtype=DTYPES[cell["dtype"]]) for _ in range(3))
    with torch.no_grad(), sdpa_kernel(backend):
        for _ in range(2):
            clock, cpu = time.perf_counter(), time.process_time()
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cell["causal"])
            taken = time.perf_counter() - clock, time.process_time() - cpu
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=DTYPES)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--clock", action="store_true")
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    attend = Attend(args.binary)
    of_rounds = min if args.least else statistics.median
    pick = 0 if args.clock else 1
    ours = "best_ms" if args.clock else "cpu_ms"
    cells = [
        {"dtype": dtype, "dim": dim, "length": length, "heads": args.heads, "causal": args.causal}
        for dtype in args.dtypes for dim in args.dims for length in args.lengths
    ]
    for cell in cells:
        cell["times_ms"] = {name: [] for name in ("flash", "torch flash", "naive", "torch math", "online")}
    for _ in range(args.rounds):
        for cell in cells:
            times = cell["times_ms"]
            for kernel in ("flash", "naive", "online"):
                report = attend.run(kernel, cell, args.threads)
                times[kernel].append(report[ours])
                cell["instructions"] = report["instructions"]
            times["torch flash"].append(run_torch(cell, SDPBackend.FLASH_ATTENTION)[pick] * 1e3)
            times["torch math"].append(run_torch(cell, SDPBackend.MATH)[pick] * 1e3)
    print("| dtype | d | L | flash, ms | torch flash, ms | ratio | naive, ms | torch MATH, ms | ratio | online, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for cell in cells:
        m = {name: of_rounds(values) for name, values in cell["times_ms"].items()}
        cell["flash_ratio"] = m["torch flash"] / m["flash"]
        cell["naive_ratio"] = m["torch math"] / m["naive"]
        print(f"| {cell['dtype']} | {cell['dim']} | {cell['length']} | {m['flash']:.1f} | {m['torch flash']:.1f} | "
              f"{cell['flash_ratio']:.2f} | {m['naive']:.1f} | {m['torch math']:.1f} | {cell['naive_ratio']:.2f} | "
              f"{m['online']:.1f} |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "threads": args.threads, "cells": cells}, file, indent=1)


if __name__ == "__main__":
    main()
