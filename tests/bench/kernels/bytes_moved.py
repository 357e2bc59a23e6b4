"""Bytes that each kernel reads from and writes to device memory on the lecture's shape (B = 4, H = 8, d = 64, not
causal, fp16), counted by the hardware through Nsight Compute, which this script starts on itself. Writes JSON beside
a count by formula: the matrix of scores once for each pass that walks it, and q, k, v and out.

Usage: bytes_moved.py [--lengths 512,...] [--library libattend_kernels_bench.so] [--json out.json]"""
import argparse
import csv
import io
import json
import subprocess
import sys

import attend_kernels

BATCH, HEADS, DIM = 4, 8, 64
# Passes over the matrix of fp32 scores.
PASSES = {"naive": 8, "online": 3, "flash": 0}
METRICS = ["dram__bytes_read.sum", "dram__bytes_write.sum"]


def numbers(text):
    return [int(x) for x in text.split(",")]


def run_all(args):
    """Each kernel at each length, what it launches alone inside the profiler's range, behind a recognisable kernel of
    torch's."""
    import torch
    profiler = torch.cuda.cudart()
    library = attend_kernels.load(args.library)
    longest = max(args.lengths)
    workspace = (torch.empty(4 * BATCH * HEADS * longest * (longest + 2048) + (64 << 20), dtype=torch.uint8, device="cuda"),
                 torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True))
    mark = torch.zeros(1, device="cuda", dtype=torch.float64)
    for length in args.lengths:
        q, k, v = (torch.randn(BATCH, HEADS, length, DIM, device="cuda", dtype=torch.float16) for _ in range(3))
        for kernel in PASSES:
            attention = attend_kernels.Attention(library, q, k, v, kernel=kernel, workspace=workspace)
            torch.cuda.synchronize()
            profiler.cudaProfilerStart()
            mark.erfinv_()
            attention()
            torch.cuda.synchronize()
            profiler.cudaProfilerStop()


def profile(args):
    """[bytes of each kernel launched] of each run, in order. Ours are those between two marks: their names do not tell,
    because Nsight Compute leaves out outer namespaces."""
    command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(METRICS),
               "--profile-from-start", "off", sys.executable, __file__, "--child", "--lengths", ",".join(map(str, args.lengths))]
    if args.library:
        command += ["--library", args.library]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table = csv.DictReader(io.StringIO(text[text.index('"ID"'):]))
    units = next(table)
    factors = {m: {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}[units[m]] for m in METRICS}
    runs, names = [], []
    for row in table:
        names.append(row["Kernel Name"])
        if "erfinv" in row["Kernel Name"]:
            runs.append([])
        else:
            runs[-1].append(sum(float(row[m].replace(",", "")) * factors[m] for m in METRICS))
    if len(runs) != len(args.lengths) * len(PASSES) or not all(runs):
        sys.exit("a kernel is missing from what Nsight Compute found:\n" + "\n".join(names))
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--library")
    parser.add_argument("--json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_all(args)
    runs, rows = iter(profile(args)), []
    for length in args.lengths:
        for kernel, passes in PASSES.items():
            by_kernel = next(runs)
            formula = passes * 4 * BATCH * HEADS * length**2 + 4 * BATCH * HEADS * length * DIM * 2
            rows.append({"kernel": kernel, "length": length, "bytes": sum(by_kernel), "formula": formula, "launches": by_kernel})
            print(f"{kernel:6} {length:6} {sum(by_kernel) / 1e6:10.1f} MB, by formula {formula / 1e6:10.1f} MB", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"rows": rows}, f)


if __name__ == "__main__":
    main()
