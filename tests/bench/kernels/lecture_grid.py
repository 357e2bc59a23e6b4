"""The lecture's grid beside PyTorch's, in one process on one GPU: B = 4, H = 8, d = 64, not causal, L = 256 to 16k,
fp32 and fp16; NAIVE, ONLINE and FLASH against the backends of torch's scaled_dot_product_attention that take the
dtype (MATH, EFFICIENT, FLASH, cuDNN).

Calls are timed beside each other (timing.py); inputs rotate. Prints milliseconds and the ratios to the peers that count
(naive to MATH, fp32 flash to EFFICIENT, fp16 flash to the best), the errors of one head against float64, and writes
JSON.

Usage: lecture_grid.py [--lengths 256,...] [--dtype fp32,fp16] [--rounds 8] [--library so] [--json out.json]"""
import argparse
import json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attend_kernels
from timing import medians

BATCH, HEADS, DIM, SETS = 4, 8, 64, 3
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
BACKENDS = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION}
BACKENDS_16 = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def peer(backend, tensors):
    def run(i):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*tensors[i % SETS])
    return run


def contenders(library, tensors, dtype, workspace):
    def ours(kernel):
        calls = [attend_kernels.Attention(library, *t, kernel=kernel, workspace=workspace) for t in tensors]
        return lambda i: calls[i % SETS]()
    calls = {kernel: ours(kernel) for kernel in ("naive", "online", "flash")}
    backends = dict(BACKENDS, **(BACKENDS_16 if dtype == "fp16" else {}))
    return calls | {name: peer(backend, tensors) for name, backend in backends.items()}


def errors(calls, tensors):
    """The largest error of the last head against float64."""
    q, k, v = (x[-1, -1].double() for x in tensors[0])
    want = torch.cat([torch.softmax(rows @ k.T / DIM**0.5, -1) @ v for rows in q.split(4096)])
    return {name: (calls[name](0)[-1, -1].double() - want).abs().max().item() for name in ("naive", "online", "flash")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=lambda s: [int(x) for x in s.split(",")], default=[256, 512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dtype", type=lambda s: s.split(","), default=["fp32", "fp16"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--library")
    parser.add_argument("--json")
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
    library, rows = attend_kernels.load(args.library), []
    longest = max(args.lengths)
    device_bytes = 4 * BATCH * HEADS * longest * (longest + 2048) + (64 << 20)
    workspace = (torch.empty(device_bytes, dtype=torch.uint8, device="cuda"), torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True))
    for dtype in args.dtype:
        for length in args.lengths:
            tensors = [[torch.randn(BATCH, HEADS, length, DIM, device="cuda", dtype=DTYPES[dtype]) for _ in range(3)] for _ in range(SETS)]
            calls = contenders(library, tensors, dtype, workspace)
            error = errors(calls, tensors)
            ms = medians(calls, args.rounds, 5 if length < 4096 else 2 if length < 16384 else 1)
            best = ms["efficient"] if dtype == "fp32" else min(ms["efficient"], ms["fa2"], ms["cudnn"])
            ratios = {"naive to math": ms["math"] / ms["naive"], "online to math": ms["math"] / ms["online"],
                      "flash to best": best / ms["flash"], "flash to naive": ms["naive"] / ms["flash"]}
            rows.append({"dtype": dtype, "length": length, "ms": ms, "ratios": ratios, "errors": error})
            print(f"{dtype} {length:6}", *(f"{n} {t:.3f}" for n, t in ms.items()), "|", *(f"{n} {x:.2f}" for n, x in ratios.items()),
                  "| errors", *(f"{x:.1e}" for x in error.values()), flush=True)
            del calls, tensors
            torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, f)


if __name__ == "__main__":
    main()
