"""What people write today: Python grpcio with raw bytes, and torch's scaled_dot_product_attention.

One process, unary calls of /a/attend, without protobuf: four int32 [batch, heads, length, head_dim], then q, k
and v in fp16; the reply is the output's bytes. On the GPU where there is one. Prints its port, serves until it is
killed; where torch or grpcio is missing it prints that instead.
"""
import sys

try:
    import grpc
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(error, flush=True)
    sys.exit(0)
from concurrent import futures

THREADS = 16
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def attend(request, _context):
    shape = np.frombuffer(request[:16], dtype=np.int32).tolist()
    qkv = torch.frombuffer(bytearray(request[16:]), dtype=torch.float16).view(3, *shape)
    q, k, v = qkv.to(DEVICE, non_blocking=True)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).cpu().numpy().tobytes()


def main():
    handler = grpc.unary_unary_rpc_method_handler(attend, None, None)
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", {"attend": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    torch.zeros(1, device=DEVICE)
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
