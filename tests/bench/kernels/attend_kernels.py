"""The CUDA kernels on torch tensors, through the C interface of bench_library.cc. For benchmarks and checks: the
calls run on torch's current stream, in torch's own memory, so that they can be timed beside torch's."""
import ctypes
import functools
import math
import os

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
KERNELS = {"naive": 1, "online": 2, "flash": 3}
LAYOUTS = {"bhld": 0, "blhd": 1}
CAUSAL = {None: 0, "bottom_right": 1, "top_left": 2}


class Call(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_int32) for n in ("dtype", "kernel", "layout", "causal", "partial", "q_heads", "kv_heads", "head_dim", "v_head_dim")]
        + [(n, ctypes.c_float) for n in ("scale", "softcap")]
        + [(n, ctypes.c_int64) for n in ("batch", "q_len", "kv_len", "window_left", "window_right")]
        + [(n, ctypes.c_void_p) for n in ("q_lengths", "kv_lengths", "q", "k", "v", "out", "lse", "sinks", "alibi_slopes",
                                          "device_workspace", "host_workspace")]
        + [("workspace_bytes", ctypes.c_int64)])


def load(path=None):
    path = path or os.environ.get("ATTEND_KERNELS_BENCH", os.path.join(os.path.dirname(__file__), "libattend_kernels_bench.so"))
    library = ctypes.CDLL(path)
    library.attend_bench_enqueue.argtypes = [ctypes.POINTER(Call), ctypes.c_char_p, ctypes.c_void_p]
    return library


def _pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


@functools.cache
def default_workspace():
    """Shared by all calls that bring none of their own: they must not overlap in time."""
    return torch.empty(64 << 20, dtype=torch.uint8, device="cuda"), torch.empty(64 << 20, dtype=torch.uint8).pin_memory()


class Attention:
    """One prepared call: () enqueues it on the current stream. Holds its tensors."""

    def __init__(self, library, q, k, v, out=None, *, layout="bhld", kernel="flash", causal=None, scale=None, softcap=0.0,
                 window=(-1, -1), lse=None, sinks=None, alibi_slopes=None, q_lengths=None, kv_lengths=None, partial=False,
                 variant="", workspace=None):
        self.library, self.variant = library, variant.encode()
        heads, tokens = (1, 2) if layout == "bhld" else (2, 1)
        if out is None:
            out = torch.empty(*q.shape[:3], v.shape[3], device=q.device, dtype=torch.float32 if partial else q.dtype)
        self.out, self.lse = out, lse
        lengths = [None if x is None else (ctypes.c_int64 * len(x))(*x) for x in (q_lengths, kv_lengths)]
        self.keep = (q, k, v, out, lse, sinks, alibi_slopes, lengths)
        c = Call(dtype=DTYPES[q.dtype], kernel=KERNELS[kernel], layout=LAYOUTS[layout], causal=CAUSAL[causal], partial=partial,
                 q_heads=q.shape[heads], kv_heads=k.shape[heads], head_dim=q.shape[3], v_head_dim=v.shape[3],
                 scale=1 / math.sqrt(q.shape[3]) if scale is None else scale, softcap=softcap, batch=q.shape[0],
                 q_len=q.shape[tokens], kv_len=k.shape[tokens], window_left=window[0], window_right=window[1],
                 q=_pointer(q), k=_pointer(k), v=_pointer(v), out=_pointer(out), lse=_pointer(lse), sinks=_pointer(sinks),
                 alibi_slopes=_pointer(alibi_slopes))
        c.q_lengths, c.kv_lengths = [None if x is None else ctypes.addressof(x) for x in lengths]
        device, host = self.workspace = workspace or default_workspace()
        c.device_workspace, c.host_workspace, c.workspace_bytes = device.data_ptr(), host.data_ptr(), device.numel()
        self.call = c

    def __call__(self):
        if self.library.attend_bench_enqueue(ctypes.byref(self.call), self.variant, torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("attend_bench_enqueue failed; see stderr")
        return self.out
