"""Tables (report.md) and pictures (speed.svg, bytes.svg) from the JSON that the grids of this folder wrote into a
directory. Takes what is there. With a README, puts the tables between its lines "<!-- measured -->" and
"<!-- /measured -->", and the pictures beside it. Needs matplotlib.

Usage: report.py DIRECTORY [README]"""
import json
import math
import os
import re
import shutil
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

# Contenders have the same colour and name everywhere.
STYLES = {"ours": ("Attend", "#c2410c", 2.2), "cudnn": ("cuDNN", "#1d4ed8", 1.4), "fa3": ("FlashAttention-3", "#15803d", 1.4),
          "fa2": ("FlashAttention-2", "#7c3aed", 1.4)}
KERNELS = {"naive": ("NAIVE", "#1d4ed8"), "online": ("ONLINE", "#15803d"), "flash": ("FLASH", "#c2410c")}
plt.rcParams.update({"svg.hashsalt": "attend", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False,
                     "axes.spines.right": False, "axes.grid": True, "grid.color": "#e5e7eb", "axes.axisbelow": True})


def short(length):
    return f"{length // 1024}k" if length >= 1024 else str(length)


def table(header, rows):
    return "\n".join(["| " + " | ".join(map(str, r)) + " |" for r in [header, ["---"] * len(header), *rows]]) + "\n"


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def slashed(values, form):
    return " / ".join(format(v, form) for v in values)


class Grid:
    """Rows of prefill_grid.py by (dtype, d, mask): lengths and contenders' values."""

    def __init__(self, rows):
        self.curves = {}
        for row in rows:
            if row["kind"] != "grid":
                continue
            dtype, dim, mask, length = row["cell"].split()
            self.curves.setdefault((dtype, dim[1:], mask), []).append((int(length), row["values"]))

    def table(self):
        lines = []
        for (dtype, dim, mask), cells in self.curves.items():
            ours = [v["ours"] for _, v in cells]
            best = [max(v.get("cudnn", 0), v.get("fa3", 0)) for _, v in cells]
            lines.append((dtype, dim, mask, slashed(ours, ".0f"), slashed(best, ".0f"), slashed((a / b for a, b in zip(ours, best)), ".2f")))
        lengths = " / ".join(short(n) for n, _ in next(iter(self.curves.values())))
        text = f"TFLOP/s at L = {lengths}; the peer is the better of cuDNN and FlashAttention-3 (fp16: cuDNN).\n\n"
        text += table(["dtype", "d", "mask", "ours", "best peer", "ratio"], lines) + "\nGeometric means:"
        for dtype in dict.fromkeys(key[0] for key in self.curves):
            cells = [v for key, curve in self.curves.items() if key[0] == dtype for _, v in curve]
            best = geometric_mean([v["ours"] / max(v.get("cudnn", 0), v.get("fa3", 0)) for v in cells])
            text += f" {dtype} {best:.3f}"
            peers = [f"{geometric_mean([v['ours'] / v[p] for v in cells]):.3f} against {STYLES[p][0]}" for p in ("cudnn", "fa3", "fa2") if p in cells[0]]
            text += f" ({', '.join(peers)});"
        return text[:-1] + ".\n"

    def picture(self, ceiling, path):
        keys = [k for k in self.curves if k[0] == "bf16"] or list(self.curves)
        dims, masks = list(dict.fromkeys(k[1] for k in keys)), list(dict.fromkeys(k[2] for k in keys))
        figure, axes = plt.subplots(len(masks), len(dims), figsize=(3.3 * len(dims), 2.6 * len(masks)), sharex=True, sharey=True, squeeze=False)
        for y, mask in enumerate(masks):
            for x, dim in enumerate(dims):
                cells, ax = self.curves.get((keys[0][0], dim, mask), []), axes[y][x]
                for name, (label, colour, width) in STYLES.items():
                    points = [(n, v[name]) for n, v in cells if name in v]
                    if points:
                        ax.plot(*zip(*points), color=colour, lw=width, marker="o", ms=3, label=label, zorder=3 if name == "ours" else 2)
                if ceiling:
                    ax.axhline(ceiling, color="#6b7280", lw=1, ls="--", label="matrix product, 8192³")
                ax.set_xscale("log", base=2)
                ax.set_xticks([n for n, _ in cells], [short(n) for n, _ in cells])
                ax.set_ylim(bottom=0)
                ax.set_title(f"{keys[0][0]}, head_dim {dim}, {mask}", fontsize=9)
                if x == 0:
                    ax.set_ylabel("TFLOP/s")
                if y == len(masks) - 1:
                    ax.set_xlabel("L")
        handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        figure.savefig(path, metadata={"Date": None})


def short_sequences(rows):
    cells = {}
    for row in (r for r in rows if r["kind"] == "short"):
        dim, heads, length = row["cell"].split()
        cells.setdefault((dim[1:], heads.replace("x", "×")), []).append((int(length), row["values"]))
    lines = []
    for key, values in cells.items():
        ours = [v["ours"] for _, v in values]
        best = [min(t for name, t in v.items() if name != "ours") for _, v in values]
        lines.append((*key, slashed(ours, ".1f"), slashed(best, ".1f"), slashed((b / a for a, b in zip(ours, best)), ".2f")))
    lengths = " / ".join(str(n) for n, _ in next(iter(cells.values())))
    return f"### Short sequences\n\nbf16, full, replayed graph, µs a call at L = {lengths}; the peer is the best of cuDNN, FlashAttention-2 and -3, EFFICIENT.\n\n" + table(["d", "B×H", "ours", "best peer", "ratio"], lines)


def windows(rows):
    found = [f"{r['times_share']:.2f} ({r['cell']})" for r in rows if r["kind"] == "window"]
    return f"A window of 1024 keys at L = 16k, causal, takes {' / '.join(found)} times its share of full causal.\n" if found else ""


def decode(results):
    names = [n for n in ("ours", "paged", "fa2", "fa3", "cudnn") if any(n in r["GBs"] for r in results)]
    lines = []
    for r in results:
        batch, q_heads, kv_heads, length, dim = r["row"]
        lines.append((batch, f"{q_heads}/{kv_heads}", length, dim, *(round(r["GBs"][n]) if n in r["GBs"] else "–" for n in names)))
    return "### Decode\n\nbf16, one query token, GB/s of K and V read; paged: pages of 64 tokens.\n\n" + table(["B", "Hq/Hkv", "Lk", "d", *names], lines)


def lecture(rows):
    text = "### The lecture's grid\n\nB = 4, H = 8, d = 64, not causal, ms a call.\n\n"
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        chosen = [r for r in rows if r["dtype"] == dtype]
        names = list(chosen[0]["ms"])
        ratios = list(chosen[0]["ratios"])
        lines = [(r["length"], *(f"{r['ms'][n]:.3f}" for n in names), *(f"{r['ratios'][n]:.2f}" for n in ratios), f"{r['errors']['flash']:.1e}")
                 for r in chosen]
        text += table([f"{dtype}, L", *names, *ratios, "error of flash"], lines) + "\n"
    return text


def bytes_moved(rows, path):
    figure, ax = plt.subplots(figsize=(5.2, 3.4))
    lines = []
    for kernel, (label, colour) in KERNELS.items():
        chosen = [r for r in rows if r["kernel"] == kernel]
        lengths = [r["length"] for r in chosen]
        ax.plot(lengths, [r["formula"] for r in chosen], color=colour, lw=1, ls="--")
        ax.plot(lengths, [r["bytes"] for r in chosen], color=colour, lw=2, marker="o", ms=4, label=label)
        lines.append((label, *(f"{r['bytes'] / 1e6:.0f}" for r in chosen)))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [short(n) for n in lengths])
    ax.set_xlabel("L")
    ax.set_ylabel("bytes of device memory")
    ax.set_title("Bytes moved (dashed: by formula), fp16, B 4, H 8, d 64", fontsize=9)
    ax.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return "Bytes moved in fp16, MB, counted by the hardware:\n\n" + table(["kernel", *map(short, lengths)], lines)


def read(directory, name):
    path = os.path.join(directory, name + ".json")
    if not os.path.exists(path):
        return None
    with open(path) as f:
        return json.load(f)


def report(directory):
    """The sections of the report; draws the pictures."""
    if prefill := read(directory, "prefill_grid"):
        rows = prefill["rows"]
        ceiling = next((r["values"]["product"] for r in rows if r["kind"] == "ceiling"), None)
        yield f"One {prefill['device']}, torch {prefill['torch']}, cuDNN {prefill['cudnn']}, {prefill['date']}.\n"
        if (grid := Grid(rows)).curves:
            grid.picture(ceiling, os.path.join(directory, "speed.svg"))
            yield "### Prefill\n\n![TFLOP/s by length beside cuDNN, FlashAttention-2 and FlashAttention-3](speed.svg)\n\n" + grid.table()
        if ceiling:
            yield f"A bf16 matrix product of 8192³ runs at {ceiling:.0f} TFLOP/s.\n"
        if any(r["kind"] == "short" for r in rows):
            yield short_sequences(rows)
        yield windows(rows)
    if found := read(directory, "decode_grid"):
        yield decode(found["results"])
    if found := read(directory, "lecture_grid"):
        yield lecture(found["rows"])
    if found := read(directory, "bytes_moved"):
        yield bytes_moved(found["rows"], os.path.join(directory, "bytes.svg")) + "\n![Bytes of device memory by length: NAIVE, ONLINE, FLASH](bytes.svg)\n"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    directory = sys.argv[1]
    text = "\n".join(section for section in report(directory) if section)
    with open(os.path.join(directory, "report.md"), "w") as f:
        f.write(text)
    print(text)
    if len(sys.argv) == 2:
        return
    readme = sys.argv[2]
    with open(readme) as f:
        before = f.read()
    after, places = re.subn(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", lambda _: text, before, flags=re.DOTALL)
    if places != 1:
        sys.exit(f"{readme} has no place for the tables")
    with open(readme, "w") as f:
        f.write(after)
    for name in ("speed.svg", "bytes.svg"):
        if os.path.exists(os.path.join(directory, name)):
            shutil.copy(os.path.join(directory, name), os.path.dirname(readme) or ".")


if __name__ == "__main__":
    main()
