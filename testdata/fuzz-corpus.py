"""Writes testdata/fuzz: a few small valid files for each reader of tests/fuzz_readers.rs.

Standard library only. Run it in testdata/. Tar archives are those of testdata/tar as well.
"""

import gzip, io, json, os, pickle, shutil, struct, sys, tarfile, types, zipfile


def put(name, data):
    path = os.path.join("fuzz", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def dump(value):
    return json.dumps(value, ensure_ascii=False)


text = "The first line, with a café — and “quotes”.\r\nsecond\tline  \n\n<|endoftext|> 日本語 😀\nlast"
put("text/plain.txt", b"\xef\xbb\xbf" + text.encode())
put("text/cut.txt", text.encode()[:20] + b"\xff\n" + text.encode()[21:])
lines = [{"text": line, "id": i, "score": [1.5, None]} for i, line in enumerate(text.split("\n"))]
put("jsonl/plain.jsonl", "".join(dump(line) + "\n" for line in lines))
put("jsonl/python.jsonl", '{"x":NaN,"text":"a \\ud83d\\ude00 \\ud83d"}\n{"text":"","y":-Infinity}\n')
put("ids/arrays.jsonl", "[1,2,3]\n[]\n\n[50256]\n")
put("ids/samples.jsonl", '{"type":"run"}\n{"type":"sample","tokens":[7,8],"text":null}\n')

for name in ["sparse-gnu", "sparse-pax-0.1", "sparse-pax-1.0", "two", "kinds", "empty"]:
    with open(f"tar/{name}.tar", "rb") as f:
        put(f"archive/{name}.tar", f.read())
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out:
    for name, data in [("é" * 60 + "/" + "x" * 80, b"long name\n"), ("b.gz", gzip.compress(b"inside\n", mtime=0))]:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        out.addfile(member, io.BytesIO(data))
put("archive/pax.tar", packed.getvalue())
put("archive/pax.tar.gz", gzip.compress(packed.getvalue(), mtime=0))
put("archive/plain.zst", bytes.fromhex("28b52ffd0058290000616263640a"))

# Tokenizers: byte-level with a few merges and added tokens, WordPiece, Unigram, a pattern.
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
chars = {b: chr(b) for b in printable}
for b in range(256):
    if b not in chars:
        chars[b] = chr(256 + len(chars) - len(printable))
vocab = {chars[b]: b for b in range(256)}
merges = [["t", "h"], ["th", "e"], [chars[32], "the"]]
for left, right in merges:
    vocab[left + right] = len(vocab)


def added(id, content, **marks):
    flags = {k: bool(marks.get(k)) for k in ["single_word", "lstrip", "rstrip", "normalized", "special"]}
    return {"id": id, "content": content, **flags}


level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level}
bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
       "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
       "vocab": vocab, "merges": merges}
tokens = [added(259, "<|endoftext|>", special=True), added(260, "<m>", lstrip=True, rstrip=True),
          added(257, "the", single_word=True, normalized=True)]
put("tokenizer/tokenizer.json", dump({**base, "added_tokens": tokens, "model": bpe}))
split = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\b\\w+|[^\\w\\s]+$"}, "behavior": "Isolated", "invert": False},
    {**level, "use_regex": False}]}
put("tokenizer/split.json", dump({**base, "pre_tokenizer": split, "model": {**bpe, "dropout": 0.1}}))
words = ["[UNK]", "ab", "##cd", "the", "q", "##q", "[SEP]"]
put("tokenizer/wordpiece.json", dump({**base, "added_tokens": [added(6, "[SEP]", special=True)],
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                   "strip_accents": None, "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(words)}}}))
space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
put("tokenizer/unigram.json", dump({**base, "pre_tokenizer": space, "decoder": space,
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"},
                   {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
              "vocab": [["<unk>", 0.0], ["▁", -1.5], ["▁ab", -2.0], ["cd", -2.5], ["a", -3.0]]}}))

# A shard folder of ten tokens in three documents.
ids = [1, 2, 259, 5, 6, 7, 259, 8, 9, 259]
head = struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1012)
shard = head + struct.pack(f"<{len(ids)}H", *ids)
put("shard/shard-000000.bin", shard)
put("shard/wide.bin", struct.pack("<3i", 20240801, 7, 3) + bytes(1012) + struct.pack("<3I", 1, 2, 299))
put("lengths/shard-000000.len", struct.pack("<3I", 3, 4, 3))
manifest = {"format": "ao-shards", "version": 1, "complete": True, "created_by": "ao-tokenize 0.1.0",
    "tokenizer": {"name": "t", "hash": "0123456789abcdef", "lossy": False}, "vocab_size": 261, "eos_id": 259,
    "token_type": "u16", "packing": {"rule": "document"}, "detokenizer": "none",
    "totals": {"documents": 3, "tokens": 10, "bytes_of_text": 20},
    "shards": [{"file": "shard-000000.bin", "tokens": 10, "documents": 3, "bytes_of_text": 20, "xxh3": "0" * 16}],
    "argv": ["ao-tokenize"], "config": {"split": None}}
put("manifest/manifest.json", dump(manifest))
put("manifest/compat.json", dump({**manifest, "packing": {"rule": "compat", "rows": 2, "procs": 1}}))
put("manifest/stream.json", dump({**manifest, "packing": {"rule": "stream"}, "eos_id": None, "tokenizer": None}))


def npy(kind, shape, data):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


put("npy/two-rows.npy", npy("<u2", (2, 4), struct.pack("<8H", 0, 1, 2, 3, 3, 1, 0, 2)))
put("npy/one-row.npy", npy("<i8", (3,), struct.pack("<3q", 2, 0, 1)))
for i, spec in enumerate(["l2r", "uniform", "fixed:7", "fractal", "blocks:4:inner=0,2,3,1:outer=uniform",
                          "mix:0.5*l2r+0.5*blocks:8", "ramp:10..90:l2r->mix:0.9*uniform+0.1*fixed:3"]):
    put(f"spec/{i}", spec)

# A GPT-2 of one layer, as safetensors and as torch.save writes it.
C, V, T = 4, 8, 4
shapes = {"transformer.wte.weight": [V, C], "transformer.wpe.weight": [T, C],
          "transformer.ln_f.weight": [C], "transformer.ln_f.bias": [C], "lm_head.weight": [V, C]}
for part, shape in {"ln_1.weight": [C], "ln_1.bias": [C], "ln_2.weight": [C], "ln_2.bias": [C],
                    "attn.c_attn.weight": [3 * C, C], "attn.c_attn.bias": [3 * C],
                    "attn.c_proj.weight": [C, C], "attn.c_proj.bias": [C], "mlp.c_fc.weight": [4 * C, C],
                    "mlp.c_fc.bias": [4 * C], "mlp.c_proj.weight": [C, 4 * C], "mlp.c_proj.bias": [C]}.items():
    shapes[f"transformer.h.0.{part}"] = shape


def size(shape):
    n = 1
    for k in shape:
        n *= k
    return n


header, at = {"__metadata__": {"format": "pt"}}, 0
for name, shape in sorted(shapes.items()):
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * size(shape)]}
    at += 4 * size(shape)
encoded = dump(header).encode()
encoded += b" " * (-len(encoded) % 8)
put("safetensors/model.safetensors", struct.pack("<Q", len(encoded)) + encoded + bytes(at))


class FloatStorage:
    pass


def rebuild(*parts):
    return parts


FloatStorage.__module__, FloatStorage.__qualname__ = "torch", "FloatStorage"
rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = "torch._utils", "_rebuild_tensor_v2", "_rebuild_tensor_v2"
torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
torch.FloatStorage, torch._utils, utils._rebuild_tensor_v2 = FloatStorage, utils, rebuild
sys.modules["torch"], sys.modules["torch._utils"] = torch, utils


class Storage:
    def __init__(self, key, count):
        self.id = ("storage", FloatStorage, key, "cpu", count)


class Tensor:
    def __init__(self, key, shape):
        self.key, self.shape = key, tuple(shape)

    def __reduce__(self):
        stride, n = [], 1
        for k in reversed(self.shape):
            stride.insert(0, n)
            n *= k
        return rebuild, (Storage(self.key, n), 0, self.shape, tuple(stride), False, {})


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.id if isinstance(value, Storage) else None


model = {name: Tensor(str(i), shape) for i, (name, shape) in enumerate(shapes.items())}
whole = {"model": model, "iter_num": 5, "best_val_loss": 1.5, "model_args": {
    "n_layer": 1, "n_head": 2, "n_embd": C, "block_size": T, "bias": True, "vocab_size": V, "dropout": 0.0}}
pickled = io.BytesIO()
Pickler(pickled, 2).dump(whole)
archive = io.BytesIO()
with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as out:
    def entry(name, data):
        out.writestr(zipfile.ZipInfo(f"model/{name}", (2020, 1, 1, 0, 0, 0)), data)
    entry("data.pkl", pickled.getvalue())
    for i, shape in enumerate(shapes.values()):
        entry(f"data/{i}", bytes(4 * size(shape)))
    entry("version", "3\n")
put("torch/model.pt", archive.getvalue())

put("scores/scores.jsonl", "".join(dump(r) + "\n" for r in [
    {"type": "run", "tool": "ao-score", "version": "0.1.0", "argv": [], "config": {}, "inputs": []},
    {"type": "sequence", "index": 0, "token_count": 4, "estimate": "exact", "nll_nats": 3.5, "perplexity": 2.4},
    {"type": "sequence", "index": 1, "token_count": 4, "estimate": "exact", "nll_nats": 4.5, "perplexity": 3.1,
     "nll_nats_orders": [4.0, 5.0], "bytes": 9}]))
put("templates/templates.jsonl", "".join(dump(r) + "\n" for r in [
    {"text": "The ___ sat"}, {"text": ["She worked ", {"gap": 2}, " the"]}, {"text": 'a{"gap":3}b ______ c'},
    {"tokens": [464, None, {"gap": 2}, 3332], "given": [3, 0]}]))
put("samples/samples.jsonl", "".join(dump(r) + "\n" for r in [
    {"type": "run", "tool": "ao-sample", "version": "0.1.0", "argv": [], "config": {}, "inputs": []},
    {"type": "sample", "id": 0, "tokens": [464, 3290, 50256, 3332], "text": "The dog<|endoftext|> sat", "order": [0, 1, 2, 3]},
    {"id": "x", "text": "She worked with her sleeves rolled up"}, {"tokens": []},
    {"type": "summary", "complete": False, "samples": 3}]))
put("masks/masks.jsonl", "".join(dump(r) + "\n" for r in [
    {"masked": [3, 0], "level": 0.4}, {"masked": [], "level": 1.0}, {"masked": [1, 2, 4], "level": 0.75}]))
put("orderings/orderings.jsonl", "".join(dump(r) + "\n" for r in [
    [[[], []], [[1], [1]], [[0, 1], [1, 0]]], [[[], []], [[1], [1]], [[1, 0], [1, 0]]]]))
sizes = {"block_size": 16, "vocab_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 32}
for arch, more in {
        "ao-gpt": {"cond_dim": 16, "dropout": 0.1, "bias": True, "position_encoding": "adaln"}, "gpt2": {"activation": "gelu"},
        "sigma-gpt": {}, "sigma-official": {}, "radd": {"mask_id": 3}, "mdlm": {"cond_dim": 16, "noise_eps": 1e-3},
        "sedd": {"cond_dim": 16, "scale_by_sigma": True}}.items():
    put(f"config/{arch}.json", dump({"arch": arch, **sizes, **more}))
