"""Decode beside what a user would pick instead, in one process on one GPU: one query token for each sequence against
a long K and V in bf16, dense and in pages of 64 tokens, as GB/s of K and V read. Peers: FlashAttention-2 and cuDNN
through torch's scaled_dot_product_attention, and FlashAttention-3 where the package fa3-fwd is installed.

Every round times each contender in turn with CUDA events; inputs rotate through several sets, each larger than the
L2 cache; medians over the rounds. Every result is checked against float32 attention first. Writes JSON.

Usage: decode_grid.py [--rounds 15] [--rows 0,1,2,3,4] [--pages 64] [--library libattend_kernels_bench.so]
                      [--no-peers] [--json out.json]"""
import argparse
import ctypes
import json
import math
import os
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import fa3_fwd_interface as fa3
except ImportError:
    fa3 = None

# batch, q_heads, kv_heads, kv_len, head_dim
ROWS = [(1, 32, 32, 32768, 128), (16, 32, 8, 8192, 128), (64, 32, 8, 4096, 128), (1, 32, 8, 131072, 128),
        (8, 8, 4, 32768, 256)]
SETS = 3
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Call(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_int32) for n in ("dtype", "q_heads", "kv_heads", "head_dim", "page_tokens")]
                + [("scale", ctypes.c_float)]
                + [(n, ctypes.c_int64) for n in ("batch", "q_len", "kv_len")]
                + [(n, ctypes.c_void_p) for n in ("q", "k", "v", "page_table", "out", "device_workspace", "host_workspace")]
                + [(n, ctypes.c_int64) for n in ("device_workspace_bytes", "host_workspace_bytes")])


class Decode:
    """A prepared call on q [B, Hq, Lq, D]; k and v [B, Hkv, Lk, D], or pages [n, tokens, Hkv, D] with a table."""

    def __init__(self, library, q, k, v, kv_len, page_table=None, variant=""):
        self.library, self.variant = library, variant.encode()
        paged = page_table is not None
        self.out = torch.full_like(q, float("nan"))
        self.call = Call(dtype=DTYPES[q.dtype], q_heads=q.shape[1], kv_heads=k.shape[2] if paged else k.shape[1],
                         head_dim=q.shape[3], page_tokens=k.shape[1] if paged else 0, scale=1 / math.sqrt(q.shape[3]),
                         batch=q.shape[0], q_len=q.shape[2], kv_len=kv_len, q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(),
                         page_table=page_table.data_ptr() if paged else None, out=self.out.data_ptr())
        need = ctypes.c_int64(), ctypes.c_int64()
        if library.attend_decode_workspace(ctypes.byref(self.call), self.variant, *map(ctypes.byref, need)):
            raise RuntimeError("attend_decode_workspace failed; see stderr")
        device = torch.empty(need[0].value, dtype=torch.uint8, device=q.device)
        host = torch.empty(need[1].value, dtype=torch.uint8, pin_memory=True)
        self.call.device_workspace, self.call.device_workspace_bytes = device.data_ptr(), need[0].value
        self.call.host_workspace, self.call.host_workspace_bytes = host.data_ptr(), need[1].value
        self.keep = (q, k, v, page_table, device, host)

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        if self.library.attend_decode_enqueue(ctypes.byref(self.call), self.variant, ctypes.c_void_p(stream)):
            raise RuntimeError("attend_decode_enqueue failed; see stderr")
        return self.out


def into_pages(x, tokens, order):
    """[B, H, L, D] as pages [n, tokens, H, D], page i of all sequences' at place order[i]."""
    batch, heads, length, dim = x.shape
    pages = x.view(batch, heads, length // tokens, tokens, dim).permute(0, 2, 3, 1, 4).reshape(-1, tokens, heads, dim)
    scattered = torch.empty(pages.shape, device=x.device, dtype=x.dtype)  # contiguous, also where pages is a view
    scattered[order] = pages
    return scattered


def backend(which, q, k, v):
    def run():
        with sdpa_kernel(which):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return run


def flash3(q, k, v):
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))

    def run():
        out = fa3.flash_attn_with_kvcache(q, k, v, causal=False)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    return run


def contenders(args, row, seed):
    batch, q_heads, kv_heads, length, dim = row
    generator = torch.Generator(device="cuda").manual_seed(seed)
    q, k, v = (torch.randn(batch, h, n, dim, device="cuda", dtype=torch.bfloat16, generator=generator)
               for h, n in ((q_heads, 1), (kv_heads, length), (kv_heads, length)))
    run = {"ours": Decode(args.kernels, q, k, v, length)}
    # K and V of a page lie in the same place of their tensors, as caches have them; pages in random order.
    order = torch.randperm(batch * length // args.pages, generator=generator, device="cuda")
    run["paged"] = Decode(args.kernels, q, into_pages(k, args.pages, order), into_pages(v, args.pages, order), length,
                          order.to(torch.int32))
    if not args.no_peers:
        run["fa2"] = backend(SDPBackend.FLASH_ATTENTION, q, k, v)
        run["cudnn"] = backend(SDPBackend.CUDNN_ATTENTION, q, k, v)
        if fa3 is not None:
            run["fa3"] = flash3(q, k, v)
    return run, (q, k, v)


def expected(q, k, v):
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q, dtype=torch.float32)
    for b in range(q.shape[0]):
        for h in range(k.shape[1]):
            rows = q[b, h * group:(h + 1) * group, 0].float()
            weights = torch.softmax(rows @ k[b, h].float().T / math.sqrt(q.shape[3]), -1)
            out[b, h * group:(h + 1) * group, 0] = weights @ v[b, h].float()
    return out


def measure(args, row):
    sets = []
    for i in range(SETS):
        run, tensors = contenders(args, row, args.seed + i)
        if i == 0:
            right = expected(*tensors)
            for name in list(run):
                try:
                    error = ((run[name]().float() - right).norm() / right.norm()).item()
                except RuntimeError as e:
                    print(f"  {name}: {str(e).splitlines()[0][:100]}")
                    error = math.nan
                if not error < 1.5e-2:
                    print(f"  {name}: relative error {error}")
                    if name in ("ours", "paged"):
                        raise SystemExit(f"wrong result: {name} {row}")
                    run.pop(name)
            names = list(run)
        sets.append(run)
    times = {n: [] for n in names}
    for r in range(args.rounds + 2):
        for place in range(len(names)):
            name = names[(r + place) % len(names)]
            fn = sets[r % SETS][name]
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(200_000)  # the host runs ahead
            begin.record()
            fn()
            end.record()
            torch.cuda.synchronize()
            if r >= 2:
                times[name].append(begin.elapsed_time(end))
    batch, _, kv_heads, length, dim = row
    gigabytes = 2 * batch * kv_heads * length * dim * 2 / 1e6
    return {n: gigabytes / statistics.median(t) for n, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", default="0,1,2,3,4")
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    parser.add_argument("--library", default=os.environ.get("ATTEND_KERNELS_BENCH", "libattend_kernels_bench.so"))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.kernels = ctypes.CDLL(os.path.abspath(args.library))
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cudnn", torch.backends.cudnn.version(), "fa3",
          fa3 is not None, "seed", args.seed)
    results = []
    for index in map(int, args.rows.split(",")):
        row = ROWS[index]
        speeds = measure(args, row)
        results.append({"row": row, "GBs": speeds})
        print("decode", *row, {n: round(x) for n, x in speeds.items()}, flush=True)
        torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"device": torch.cuda.get_device_name(), "seed": args.seed, "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
