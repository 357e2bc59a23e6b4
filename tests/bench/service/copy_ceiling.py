#!/usr/bin/env python3
"""What the links between host and GPUs carry, without the server: the ceiling of runtime_bench.

    python3 tests/bench/service/copy_ceiling.py

On each GPU alone and on all at once, copies of 384 MiB in and 128 MiB out (the proportion of q, k, v to out) run at the
same time, each in a stream of its own, between pinned memory and the GPU. Prints GB/s in and out a GPU, medians of
rounds, and what all carry together beside the first alone. Needs torch.
"""
import argparse
import statistics
import threading
import time

import torch

IN_BYTES, OUT_BYTES = 384 << 20, 128 << 20
COPIES = 5  # enqueued before each look at the clock


class Link:
    def __init__(self, gpu):
        self.gpu = gpu
        self.host_in = torch.ones(IN_BYTES, dtype=torch.uint8).pin_memory()
        self.host_out = torch.ones(OUT_BYTES, dtype=torch.uint8).pin_memory()
        self.gpu_in = torch.ones(IN_BYTES, dtype=torch.uint8, device=f"cuda:{gpu}")
        self.gpu_out = torch.ones(OUT_BYTES, dtype=torch.uint8, device=f"cuda:{gpu}")
        self.streams = [torch.cuda.Stream(gpu), torch.cuda.Stream(gpu)]

    def copies_per_second(self, start, seconds):
        torch.cuda.set_device(self.gpu)
        torch.cuda.synchronize()
        start.wait()
        begin, copies = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            for _ in range(COPIES):
                with torch.cuda.stream(self.streams[0]):
                    self.gpu_in.copy_(self.host_in, non_blocking=True)
                with torch.cuda.stream(self.streams[1]):
                    self.host_out.copy_(self.gpu_out, non_blocking=True)
            torch.cuda.synchronize()
            copies += COPIES
        return copies / (time.perf_counter() - begin)


def run(links, seconds):
    """Copies a second of each link, all at once."""
    start, rates = threading.Barrier(len(links)), {}

    def work(link):
        rates[link.gpu] = link.copies_per_second(start, seconds)

    threads = [threading.Thread(target=work, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rates[link.gpu] for link in links]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    arguments = parser.parse_args()
    links = [Link(gpu) for gpu in range(torch.cuda.device_count())]
    sides = [[link] for link in links] + ([links] if len(links) > 1 else [])
    rounds = [[run(side, arguments.seconds) for side in sides] for _ in range(arguments.rounds)]
    for i, side in enumerate(sides):
        for j, link in enumerate(side):
            rate = statistics.median(round_[i][j] for round_ in rounds)
            print(f"{len(side)} GPUs at once, GPU {link.gpu}: {rate * IN_BYTES / 1e9:.1f} GB/s in, "
                  f"{rate * OUT_BYTES / 1e9:.1f} GB/s out")
    if len(links) > 1:
        print(f"together {statistics.median(sum(round_[-1]) / round_[0][0] for round_ in rounds):.2f} of GPU 0 alone")


if __name__ == "__main__":
    main()
