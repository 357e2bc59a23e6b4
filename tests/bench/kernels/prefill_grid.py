"""FLASH prefill beside what a user would pick instead, in one process on one GPU: cuDNN through torch's
scaled_dot_product_attention, FlashAttention-2 likewise, and FlashAttention-3 where the package fa3-fwd is installed.

Cells: 16k tokens a call, heads * head_dim = 2048, 4*B*H*L*L*d FLOPs (halved if causal); short sequences by graph
replay; a window of 1024 keys at L = 16k; the ceiling, a matrix product of 8192 x 8192 x 8192. Calls are timed beside
each other (timing.py); inputs rotate. Prints the ratio ours / best peer per cell and the geometric mean, and writes JSON.

Usage: prefill_grid.py [--part grid,short,window,ceiling] [--dtype bf16,fp16] [--head-dim 64,128,256] [--rounds 8]
                       [--library libattend_kernels_bench.so] [--json out.json]"""
import argparse
import datetime
import json
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attend_kernels
from timing import medians

try:
    import fa3_fwd_interface as fa3
except ImportError:
    fa3 = None

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SETS = 3
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION, "eff": SDPBackend.EFFICIENT_ATTENTION}


def inputs(batch, heads, length, dim, dtype):
    return [[torch.randn(batch, heads, length, dim, device="cuda", dtype=dtype) for _ in range(3)] for _ in range(SETS)]


def contenders(names, library, tensors, causal):
    """name -> function of the round's number."""
    calls = {}
    for name in names:
        if name == "ours":
            ours = [attend_kernels.Attention(library, *t, causal="top_left" if causal else None) for t in tensors]
            calls[name] = lambda i, ours=ours: ours[i % SETS]()
        elif name == "fa3":
            if fa3 is None or tensors[0][0].dtype != torch.bfloat16:
                continue
            copies = [[x.transpose(1, 2).contiguous() for x in t] for t in tensors]
            calls[name] = lambda i, copies=copies: fa3.flash_attn_func(*copies[i % SETS], causal=causal)
        else:
            def run(i, backend=BACKENDS[name]):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(*tensors[i % SETS], is_causal=causal)
            calls[name] = run
    return calls


def replayed(calls, rounds, per_graph=20):
    graphs = {}
    for name, call in calls.items():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(SETS):
                call(i)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for i in range(per_graph):
                call(i)
    ms = medians({name: lambda i, g=g: g.replay() for name, g in graphs.items()}, rounds, 3)
    return {name: t / per_graph for name, t in ms.items()}


def show(rows, kind, key, unit, values, larger_is_better):
    peers = [v for name, v in values.items() if name != "ours"]
    best = max(peers) if larger_is_better else min(peers)
    ratio = values["ours"] / best if larger_is_better else best / values["ours"]
    rows.append({"kind": kind, "cell": key, "unit": unit, "values": values, "ratio": ratio})
    print(f"{kind:6} {key:28}", *(f"{name} {v:7.1f}" for name, v in values.items()), f"ratio {ratio:.3f}", flush=True)


def mean(rows, what):
    ratios = [r["ratio"] for r in rows]
    if ratios:
        print(f"{what}: {len(ratios)} cells, geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, "
              f"least {min(ratios):.3f}, below 0.98: {sum(r < 0.98 for r in ratios)}", flush=True)


def grid(args, library, rows):
    for dtype in args.dtype:
        begin = len(rows)
        for dim in args.head_dim:
            for causal in (False, True):
                for length in args.lengths:
                    tensors = inputs(16384 // length, 2048 // dim, length, dim, DTYPES[dtype])
                    flops = 4 * 16384 * 2048 * length * (0.5 if causal else 1)
                    ms = medians(contenders(("ours", "cudnn", "fa3", "fa2"), library, tensors, causal), args.rounds, 3)
                    show(rows, "grid", f"{dtype} d{dim} {'causal' if causal else 'full'} {length}", "TFLOP/s",
                         {name: flops / t / 1e9 for name, t in ms.items()}, True)
        mean(rows[begin:], f"{dtype} prefill")


def short(args, library, rows):
    begin = len(rows)
    for dim in (d for d in args.head_dim if d <= 128):
        for batch, heads in ((1, 8), (4, 8), (16, 16)):
            for length in (64, 128, 256, 512):
                tensors = inputs(batch, heads, length, dim, torch.bfloat16)
                ms = replayed(contenders(("ours", "cudnn", "fa3", "fa2", "eff"), library, tensors, False), args.rounds)
                show(rows, "short", f"d{dim} {batch}x{heads} {length}", "us", {n: 1e3 * t for n, t in ms.items()}, False)
    mean(rows[begin:], "short sequences")


def window(args, library, rows):
    """Ours alone: the time of a window of 1024 keys over its share of the work of full causal."""
    length, keys = 16384, 1024
    share = (keys * (keys + 1) / 2 + (length - keys) * (keys + 1)) / (length * (length + 1) / 2)
    for dim in args.head_dim:
        tensors = inputs(1, 2048 // dim, length, dim, torch.bfloat16)
        calls = {}
        for name, left in (("causal", -1), ("window", keys)):
            ours = [attend_kernels.Attention(library, *t, causal="top_left", window=(left, -1)) for t in tensors]
            calls[name] = lambda i, ours=ours: ours[i % SETS]()
        ms = medians(calls, args.rounds, 3)
        times_share = ms["window"] / ms["causal"] / share
        rows.append({"kind": "window", "cell": f"d{dim}", "unit": "ms", "values": ms, "times_share": times_share})
        print(f"window d{dim}: causal {ms['causal']:.3f} ms, window {ms['window']:.3f} ms, {times_share:.2f} x its share")


def ceiling(args, library, rows):
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ms = medians({"product": lambda i: a @ b}, args.rounds, 3)
    rows.append({"kind": "ceiling", "cell": f"bf16 {size}", "unit": "TFLOP/s", "values": {"product": 2 * size**3 / ms["product"] / 1e9}})
    print(f"ceiling: a bf16 matrix product of {size} runs at {rows[-1]['values']['product']:.0f} TFLOP/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda s: s.split(",")
    numbers = lambda s: [int(x) for x in s.split(",")]
    parser.add_argument("--part", type=words, default=["grid", "short", "window", "ceiling"])
    parser.add_argument("--dtype", type=words, default=["bf16", "fp16"])
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--lengths", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--library")
    parser.add_argument("--json")
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), "fa3", fa3 is not None)
    library, rows = attend_kernels.load(args.library), []
    for part in args.part:
        {"grid": grid, "short": short, "window": window, "ceiling": ceiling}[part](args, library, rows)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                       "date": datetime.date.today().isoformat(), "rows": rows}, f)


if __name__ == "__main__":
    main()
