#!/usr/bin/env python3
"""Runs the golden kernels on an NVIDIA GPU and keeps its answers.

    python3 sim/golden/record.py [OUTPUT_DIRECTORY [KERNEL...]]

Needs Python 3.8 and libcuda.so.1, nothing else. Reads every sim/golden/*.ptx (or those named), makes its
input from its name (the same generator is in sim/tests/golden.rs), runs it on device 0, and writes NAME.bin
for each kernel and index.json to OUTPUT_DIRECTORY (default: answers/ beside this file).

A fault on the device ends the process's context, so each kernel runs in a process of its own. Kernels that
fail are named at the end, and the exit status is 1.
"""
import ctypes
import glob
import json
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1

# Values that random bits seldom hit.
EDGES = [0, 0x80000000, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00800000, 0x007FFFFF,
         0x3F800000, 0xBF800000, 0x4F000000, 0xCF000000, 0x7C007C00, 0xFC00FC00, 0x7F807F80, 0x00010001, 0x3C003C00, 0x42FE0000]


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & MASK
    return h


class SplitMix:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31


def make_input(name, words, kind):
    """`words` little-endian words of a kind: bits (random, with edge values), f32 (uniform in [-8, 8)),
    halves / bhalves (pairs of f16 / bf16, multiples of 1/64 in [-2, 2))."""
    rng = SplitMix(fnv(name.encode()))
    out = bytearray()
    for _ in range(words):
        r = rng.next()
        if kind == "bits":
            word = EDGES[(r >> 32) % len(EDGES)] if r & 7 == 0 else r >> 32
        elif kind == "f32":
            value = (r >> 32) - (1 << 32) if r >> 63 else r >> 32
            word = struct.unpack("<I", struct.pack("<f", value / (1 << 28)))[0]
        else:
            word = 0
            for i in range(2):
                value = (((r >> (32 + 8 * i)) & 0xFF) - 128) / 64
                if kind == "halves":
                    bits = struct.unpack("<H", struct.pack("<e", value))[0]
                else:
                    bits = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
                word |= bits << (16 * i)
        out += struct.pack("<I", word)
    return bytes(out)


def parse_header(text):
    head = {"map": []}
    for line in text.splitlines():
        if not line.startswith("// "):
            break
        key, _, value = line[3:].partition(": ")
        if key == "map":
            head["map"].append(dict(f.split("=", 1) for f in value.split()))
        elif key in ("launch", "in", "out"):
            head[key] = value
    launch = dict(f.split("=") for f in head["launch"].split())
    head["launch"] = {k: int(v) for k, v in launch.items()}
    words, head["kind"] = head["in"].split()
    head["in"] = int(words)
    head["out"] = int(head["out"])
    return head


cuda = ctypes.CDLL("libcuda.so.1") if sys.argv[1:2] == ["--one"] else None


def check(result, what):
    if result != 0:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(result, ctypes.byref(text))
        raise SystemExit(f"{what}: error {result}: {text.value and text.value.decode()}")


TYPES = {"u8": (0, 1), "u16": (1, 2), "u32": (2, 4), "f32": (7, 4), "bf16": (9, 2), "f16": (6, 2)}
SWIZZLES = {"0": 0, "32": 1, "64": 2, "128": 3}


def encode_map(spec, buffers):
    kind, size = TYPES[spec["ty"]]
    of, _, offset = spec["of"].partition("+")
    address = buffers[of] + int(offset or 0)
    dims = [int(d) for d in spec["dims"].split(",")]
    box = [int(b) for b in spec["box"].split(",")]
    strides = []
    stride = size * dims[0]
    for d in dims[1:]:
        strides.append(stride)
        stride *= d
    rank = len(dims)
    raw = (ctypes.c_uint8 * 256)()
    start = (-ctypes.addressof(raw)) % 64
    target = ctypes.addressof(raw) + start
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    check(cuda.cuTensorMapEncodeTiled(
        ctypes.c_void_p(target), ctypes.c_int(kind), u32(rank), ctypes.c_void_p(address),
        (u64 * rank)(*dims), (u64 * max(rank - 1, 1))(*(strides or [0])), (u32 * rank)(*box), (u32 * rank)(*[1] * rank),
        ctypes.c_int(0), ctypes.c_int(SWIZZLES[spec["swizzle"]]), ctypes.c_int(0), ctypes.c_int(1 if spec.get("fill") == "nan" else 0)),
        f"cuTensorMapEncodeTiled {spec}")
    return bytes(raw[start:start + 128])


def run(path):
    name = os.path.splitext(os.path.basename(path))[0]
    text = open(path).read()
    head = parse_header(text)
    data = make_input(name, head["in"], head["kind"])
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), text.encode() + b"\0"), f"{name}: cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"{name}: cuModuleGetFunction")
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(source), ctypes.c_size_t(len(data))), "cuMemAlloc")
    check(cuda.cuMemAlloc_v2(ctypes.byref(target), ctypes.c_size_t(4 * head["out"])), "cuMemAlloc")
    check(cuda.cuMemcpyHtoD_v2(source, data, ctypes.c_size_t(len(data))), "cuMemcpyHtoD")
    check(cuda.cuMemsetD8_v2(target, ctypes.c_ubyte(0), ctypes.c_size_t(4 * head["out"])), "cuMemsetD8")
    buffers = {"in": source.value, "out": target.value}
    arguments = [source, target] + [(ctypes.c_uint8 * 128)(*encode_map(m, buffers)) for m in head["map"]]
    pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
    shape = head["launch"]
    shared = shape.get("shared", 0)
    check(cuda.cuFuncSetAttribute(function, 8, shared), "cuFuncSetAttribute")
    check(cuda.cuLaunchKernel(function, shape["grid"], 1, 1, shape["block"], 1, 1, shared, None, pointers, None), f"{name}: cuLaunchKernel")
    check(cuda.cuCtxSynchronize(), f"{name}: run")
    result = ctypes.create_string_buffer(4 * head["out"])
    check(cuda.cuMemcpyDtoH_v2(result, target, ctypes.c_size_t(4 * head["out"])), "cuMemcpyDtoH")
    return result.raw, {"input_fnv": f"{fnv(data):016x}", "ptx_fnv": f"{fnv(text.encode()):016x}"}


def open_device():
    """Makes device 0 current and says what it is."""
    device, context, driver = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(cuda.cuDriverGetVersion(ctypes.byref(driver)), "cuDriverGetVersion")
    title = ctypes.create_string_buffer(100)
    check(cuda.cuDeviceGetName(title, 100, device), "cuDeviceGetName")
    return {"device": title.value.decode(), "driver": driver.value}


def record_one(folder, name):
    """In a process of its own: writes NAME.bin and prints the facts for the index."""
    device = open_device()
    answer, facts = run(os.path.join(HERE, name + ".ptx"))
    with open(os.path.join(folder, name + ".bin"), "wb") as f:
        f.write(answer)
    print(json.dumps({**facts, **device}))


def record(folder, names):
    os.makedirs(folder, exist_ok=True)
    index_path = os.path.join(folder, "index.json")
    index, failed = {}, []
    if os.path.exists(index_path):
        with open(index_path) as f:
            index = json.load(f)
    for name in names:
        index.pop(name, None)
        try:
            child = subprocess.run([sys.executable, os.path.abspath(__file__), "--one", folder, name],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
            why = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
            done = child.returncode == 0
        except subprocess.TimeoutExpired:
            why, done = "no end after 60 s", False
        if done:
            index[name] = json.loads(child.stdout)
            print(f"{name}: recorded")
        else:
            failed.append(name)
            print(f"{name}: FAILED: {why}")
    with open(index_path, "w") as f:
        json.dump(index, f, indent=1, sort_keys=True)
        f.write("\n")
    print(f"{len(names) - len(failed)} of {len(names)} kernels recorded in {folder}")
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--one"]:
        return record_one(*arguments[1:])
    folder = arguments[0] if arguments else os.path.join(HERE, "answers")
    kernels = sorted(os.path.splitext(os.path.basename(p))[0] for p in glob.glob(os.path.join(HERE, "*.ptx")))
    record(folder, arguments[1:] or kernels)


if __name__ == "__main__":
    main()
