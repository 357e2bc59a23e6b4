"""Times of calls beside each other, by CUDA events."""
import statistics

import torch


def medians(calls, rounds, repeats, warmups=3):
    """Milliseconds a call of each contender (name -> function of a number that rotates its inputs), medians.

    Every round times all of them in turn, behind work that keeps the GPU busy while the host runs ahead, and begins with
    another: that work lets the GPU cool, so that whoever comes next has the faster clock (by 5 % where calls take long).
    As many rounds more are run as it takes for all to be first equally often."""
    rounds = -(-rounds // len(calls)) * len(calls)
    times = {name: [] for name in calls}
    for call in calls.values():
        for i in range(warmups):
            call(i)
    torch.cuda.synchronize()
    names = list(calls)
    for r in range(rounds):
        pending = []
        torch.cuda._sleep(1_000_000 * len(calls) * (repeats + 1))  # half a millisecond of host time a call
        for place in range(len(names)):
            name = names[(r + place) % len(names)]
            call = calls[name]
            call(r)
            for i in range(repeats):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                call(r + i)
                end.record()
                pending.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in pending:
            times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(t) for name, t in times.items()}
