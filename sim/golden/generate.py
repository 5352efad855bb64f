#!/usr/bin/env python3
"""Writes the golden kernels: small PTX programs that cover every family of instructions.

Each kernel reads words `a`, `b`, `c` of its own from parameter p0, applies operations, and writes the
result of operation i of thread t to word `i * threads + t` of parameter p1. The header comments say how
to launch it, how its input is made, and how exactly the simulator must agree with hardware:

    // launch: grid=1 block=128 cluster=1 shared=0
    // in: WORDS KIND         see record.py
    // out: WORDS
    // op FIRST COUNT RULE: NAME     RULE is one of

    bits             equal                      nan32, nan64, nanf16, nanbf16   equal, or both NaN, in each half:
    ulp N, f16ulp N  within N units             NaN payloads are unspecified (PTX ISA 9.7.3)
    abs X            within X                   close X              within X of the larger of 1 and the value
    f16abs X, bf16abs X   halves within X

Run it after changing it; the .ptx files are kept so that a GPU machine needs nothing but record.py.
"""
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def header(target, launch, inputs, out, ops, maps=(), version="8.0"):
    lines = [f"// launch: {launch}", f"// in: {inputs}", f"// out: {out}"]
    lines += [f"// map: {m}" for m in maps]
    lines += [f"// op {first} {count} {rule}: {name}" for first, count, rule, name in ops]
    lines += [f".version {version}", f".target {target}", ".address_size 64"]
    return lines


def params(maps):
    return ", ".join([".param .u64 p0", ".param .u64 p1"] + [f".param .align 64 .b8 map{i}[128]" for i in range(len(maps))])


REGS = """\t.reg .pred %p<16>;
\t.reg .b16 %rs<32>;
\t.reg .b32 %r<160>;
\t.reg .b64 %rd<64>;"""


class Table:
    """A kernel of independent operations on the words a = %r1, b = %r2, c = %r3 of each thread, and the
    doublewords A = %rd1 = a:b, B = %rd2 = b:c."""

    def __init__(self, name, kind, target="sm_80", threads=128, rule="bits", version="8.0"):
        self.rule, self.version = rule, version
        self.name, self.kind, self.target, self.threads = name, kind, target, threads
        self.ops, self.body, self.words = [], [], 0

    def op(self, text, rule=None, wide=False, name=None):
        """`text` computes %r9 (or %rd9) in a scope of its own."""
        count = 2 if wide else 1
        rule = rule or self.rule
        self.ops.append((self.words, count, rule, name or text.strip().split(";")[-2].strip().split()[0]))
        self.body.append(f"\t{{ {text}")
        if wide:
            self.body.append("\tmov.b64 {%r9, %r8}, %rd9;")
        for i in range(count):
            reg = ["%r9", "%r8"][i]
            self.body.append(f"\tst.global.b32 [%rd5+{4 * self.threads * (self.words + i)}], {reg}; }}" if i == count - 1 else f"\tst.global.b32 [%rd5+{4 * self.threads * (self.words + i)}], {reg};")
        self.words += count

    def write(self):
        t = self.threads
        text = header(self.target, f"grid=1 block={t}", f"{3 * t} {self.kind}", self.words * t, self.ops, version=self.version)
        text += [f".visible .entry {self.name}({params([])})", "{", REGS,
                 "\tld.param.u64 %rd3, [p0];", "\tld.param.u64 %rd4, [p1];", "\tmov.u32 %r0, %tid.x;",
                 "\tmul.wide.u32 %rd6, %r0, 12;", "\tadd.s64 %rd3, %rd3, %rd6;",
                 "\tmul.wide.u32 %rd6, %r0, 4;", "\tadd.s64 %rd5, %rd4, %rd6;",
                 "\tld.global.b32 %r1, [%rd3];", "\tld.global.b32 %r2, [%rd3+4];", "\tld.global.b32 %r3, [%rd3+8];",
                 "\tmov.b64 %rd1, {%r1, %r2};", "\tmov.b64 %rd2, {%r2, %r3};",
                 "\tcvt.u16.u32 %rs1, %r1;", "\tcvt.u16.u32 %rs2, %r2;", "\tcvt.u16.u32 %rs3, %r3;"]
        text += self.body + ["\tret;", "}"]
        save(self.name, text)


def save(name, lines):
    with open(os.path.join(HERE, name + ".ptx"), "w") as f:
        f.write("\n".join(lines) + "\n")


def integers():
    k = Table("int32", "bits")
    for t in ("u32", "s32"):
        for o in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            k.op(f"{o}.{t} %r9, %r1, %r2;")
        # A zero divisor is unspecified: make it odd.
        for o in ("div", "rem"):
            k.op(f"or.b32 %r7, %r2, 1; {o}.{t} %r9, %r1, %r7;")
        for o in ("mad.lo", "mad.hi"):
            k.op(f"{o}.{t} %r9, %r1, %r2, %r3;")
        k.op(f"mul.wide.{t} %rd9, %r1, %r2;", wide=True)
        k.op(f"mad.wide.{t} %rd9, %r1, %r2, %rd2;", wide=True)
        k.op(f"sad.{t} %r9, %r1, %r2, %r3;")
        k.op(f"mul24.lo.{t} %r9, %r1, %r2;")
        k.op(f"mad24.lo.{t} %r9, %r1, %r2, %r3;")
    for o in ("add.sat.s32", "sub.sat.s32"):
        k.op(f"{o} %r9, %r1, %r2;")
    for o in ("neg.s32", "abs.s32"):
        k.op(f"{o} %r9, %r1;")
    k.op("add.cc.u32 %r7, %r1, %r2; addc.u32 %r9, %r3, %r1;")
    k.op("sub.cc.u32 %r7, %r1, %r2; subc.u32 %r9, %r3, %r1;")
    k.op("dp4a.s32.s32 %r9, %r1, %r2, %r3;")
    k.op("dp4a.u32.s32 %r9, %r1, %r2, %r3;")
    k.op("dp4a.u32.u32 %r9, %r1, %r2, %r3;")
    k.write()

    k = Table("int32_relu", "bits", "sm_90")
    for o in ("min.relu.s32", "max.relu.s32"):
        k.op(f"{o} %r9, %r1, %r2;")
    k.write()

    k = Table("int64", "bits")
    for t in ("u64", "s64"):
        for o in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            k.op(f"{o}.{t} %rd9, %rd1, %rd2;", wide=True)
        for o in ("div", "rem"):
            k.op(f"or.b64 %rd8, %rd2, 1; {o}.{t} %rd9, %rd1, %rd8;", wide=True)
        k.op(f"mad.lo.{t} %rd9, %rd1, %rd2, %rd1;", wide=True)
        k.op(f"shr.{t} %rd9, %rd1, %r3;", wide=True, name="shr any amount")
        k.op(f"and.b32 %r7, %r3, 127; shr.{t} %rd9, %rd1, %r7;", wide=True)
    for o in ("neg.s64", "abs.s64", "not.b64", "brev.b64"):
        k.op(f"{o} %rd9, %rd1;", wide=True)
    for o in ("popc.b64", "clz.b64", "bfind.u64", "bfind.s64", "bfind.shiftamt.s64"):
        k.op(f"{o} %r9, %rd1;")
    k.op("and.b32 %r7, %r3, 127; shl.b64 %rd9, %rd1, %r7;", wide=True)
    for t in ("u64", "s64"):
        k.op(f"and.b32 %r7, %r3, 127; shr.u32 %r6, %r3, 8; and.b32 %r6, %r6, 127; bfe.{t} %rd9, %rd1, %r7, %r6;", wide=True)
    k.op("and.b32 %r7, %r3, 127; shr.u32 %r6, %r3, 8; and.b32 %r6, %r6, 127; bfi.b64 %rd9, %rd1, %rd2, %r7, %r6;", wide=True)
    k.write()

    k = Table("int16", "bits")
    for t in ("u16", "s16"):
        for o in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            k.op(f"{o}.{t} %rs9, %rs1, %rs2; cvt.u32.u16 %r9, %rs9;", name=f"{o}.{t}")
        k.op(f"or.b16 %rs8, %rs2, 1; div.{t} %rs9, %rs1, %rs8; cvt.u32.u16 %r9, %rs9;", name=f"div.{t}")
        k.op(f"or.b16 %rs8, %rs2, 1; rem.{t} %rs9, %rs1, %rs8; cvt.u32.u16 %r9, %rs9;", name=f"rem.{t}")
        k.op(f"mad.lo.{t} %rs9, %rs1, %rs2, %rs3; cvt.u32.u16 %r9, %rs9;", name=f"mad.lo.{t}")
        k.op(f"mul.wide.{t} %r9, %rs1, %rs2;")
        k.op(f"and.b32 %r7, %r3, 31; shr.{t} %rs9, %rs1, %r7; cvt.u32.u16 %r9, %rs9;", name=f"shr.{t}")
    k.op("and.b32 %r7, %r3, 31; shl.b16 %rs9, %rs1, %r7; cvt.u32.u16 %r9, %rs9;", name="shl.b16")
    for o in ("neg.s16", "abs.s16", "not.b16", "cnot.b16"):
        k.op(f"{o} %rs9, %rs1; cvt.u32.u16 %r9, %rs9;", name=o)
    k.write()


def bits():
    k = Table("bits", "bits")
    for o in ("and", "or", "xor"):
        k.op(f"{o}.b32 %r9, %r1, %r2;")
    for o in ("not.b32", "cnot.b32", "popc.b32", "clz.b32", "brev.b32", "bfind.u32", "bfind.s32", "bfind.shiftamt.u32"):
        k.op(f"{o} %r9, %r1;")
    for o in ("shl.b32", "shr.u32", "shr.s32"):
        k.op(f"and.b32 %r7, %r2, 63; {o} %r9, %r1, %r7;")
        k.op(f"{o} %r9, %r1, %r2;", name=o + " any amount")
    for d in "lr":
        for mode in ("wrap", "clamp"):
            k.op(f"and.b32 %r7, %r3, 63; shf.{d}.{mode}.b32 %r9, %r1, %r2, %r7;")
    for t in ("u32", "s32"):
        k.op(f"and.b32 %r7, %r2, 63; shr.u32 %r6, %r2, 8; and.b32 %r6, %r6, 63; bfe.{t} %r9, %r1, %r7, %r6;")
        k.op(f"bfe.{t} %r9, %r1, %r2, %r3;", name=f"bfe.{t} any field")
    k.op("and.b32 %r7, %r3, 63; shr.u32 %r6, %r3, 8; and.b32 %r6, %r6, 63; bfi.b32 %r9, %r1, %r2, %r7, %r6;")
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        k.op(f"prmt.b32{mode} %r9, %r1, %r2, %r3;")
    for table in (0xE8, 0x96, 0x1B, 0x80):
        k.op(f"lop3.b32 %r9, %r1, %r2, %r3, {table};", name=f"lop3 {table:#x}")
    for mode in ("clamp", "wrap"):
        k.op(f"and.b32 %r7, %r1, 63; and.b32 %r6, %r2, 63; bmsk.{mode}.b32 %r9, %r7, %r6;")
    k.write()


def floats():
    k = Table("f32", "bits", rule="nan32")
    for o in ("add", "sub", "mul"):
        for r in ("rn", "rz", "rm", "rp"):
            k.op(f"{o}.{r}.f32 %r9, %r1, %r2;")
        k.op(f"{o}.ftz.f32 %r9, %r1, %r2;")
        k.op(f"{o}.sat.f32 %r9, %r1, %r2;")
        k.op(f"{o}.rz.ftz.sat.f32 %r9, %r1, %r2;")
    for r in ("rn", "rz", "rm", "rp"):
        k.op(f"fma.{r}.f32 %r9, %r1, %r2, %r3;")
    k.op("fma.rn.ftz.f32 %r9, %r1, %r2, %r3;")
    k.op("fma.rn.sat.f32 %r9, %r1, %r2, %r3;")
    for o in ("min", "max"):
        for m in ("", ".ftz", ".NaN"):
            k.op(f"{o}{m}.f32 %r9, %r1, %r2;")
    for o in ("div", "rcp", "sqrt"):
        for r in ("rn", "rz", "rm", "rp"):
            k.op(f"{o}.{r}.f32 %r9, %r1{', %r2' if o == 'div' else ''};")
    k.op("div.rn.ftz.f32 %r9, %r1, %r2;")
    for o in ("neg.f32", "abs.f32", "neg.ftz.f32", "abs.ftz.f32"):
        k.op(f"{o} %r9, %r1;")
    k.op("copysign.f32 %r9, %r1, %r2;")
    for c in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        k.op(f"testp.{c}.f32 %p1, %r1; selp.b32 %r9, 1, 0, %p1;", name=f"testp.{c}")
    k.write()

    k = Table("f64", "bits")
    for o in ("add", "sub", "mul", "div", "min", "max"):
        k.op(f"{o}{'' if o in ('min', 'max') else '.rn'}.f64 %rd9, %rd1, %rd2;", wide=True, rule="nan64")
    k.op("fma.rn.f64 %rd9, %rd1, %rd2, %rd1;", wide=True, rule="nan64")
    for o in ("sqrt.rn", "rcp.rn", "neg", "abs"):
        k.op(f"{o}.f64 %rd9, %rd1;", wide=True, rule="nan64")
    k.write()

    # Documented errors (PTX ISA 9.7.3): both sides may use all of it, plus one ulp for the reference.
    k = Table("approximate", "f32")
    for o, rule in (("ex2.approx.f32", "ulp 3"), ("ex2.approx.ftz.f32", "ulp 3"), ("rcp.approx.f32", "ulp 2"),
                    ("rcp.approx.ftz.f32", "ulp 2"), ("tanh.approx.f32", "close 1e-3")):
        k.op(f"{o} %r9, %r1;", rule)
    # The documented bound holds in [-2 pi, 2 pi]: arguments are below 6.
    for o in ("sin.approx.f32", "cos.approx.f32"):
        k.op(f"mul.f32 %r7, %r1, 0f3F400000; {o} %r9, %r7;", "abs 1.5e-6")
    for o, rule in (("sqrt.approx.f32", "ulp 3"), ("rsqrt.approx.f32", "ulp 4"), ("rsqrt.approx.ftz.f32", "ulp 4"),
                    ("lg2.approx.f32", "abs 3e-7"), ("lg2.approx.ftz.f32", "abs 3e-7")):
        # lg2: 2^-22 absolute near 1, relative elsewhere: arguments are below 8.
        k.op(f"abs.f32 %r7, %r1; {o} %r9, %r7;", rule.replace("3e-7", "1e-6"))
    k.op("div.approx.f32 %r9, %r1, %r2;", "ulp 4")
    k.op("div.full.f32 %r9, %r1, %r2;", "ulp 4")
    k.target = "sm_90a"
    for o, t, rule in (("ex2.approx.f16x2", "f16x2", "f16ulp 4"), ("tanh.approx.f16x2", "f16x2", "f16abs 2e-3"),
                       ("ex2.approx.ftz.bf16x2", "bf16x2", "f16ulp 2"), ("tanh.approx.bf16x2", "bf16x2", "bf16abs 1.6e-2")):
        k.op(f"cvt.rn.{t}.f32 %r7, %r1, %r2; {o} %r9, %r7;", rule)
    k.write()


def halves():
    for name, t, target in (("f16", "f16", "sm_80"), ("bf16", "bf16", "sm_90a")):
        k = Table(name, "bits", target, rule=f"nan{t}")
        for o in ("add", "sub", "mul"):
            k.op(f"{o}.rn.{t}x2 %r9, %r1, %r2;")
            k.op(f"{o}.rn.{t} %rs9, %rs1, %rs2; cvt.u32.u16 %r9, %rs9;", name=f"{o}.{t}")
        k.op(f"fma.rn.{t}x2 %r9, %r1, %r2, %r3;")
        k.op(f"fma.rn.relu.{t}x2 %r9, %r1, %r2, %r3;")
        for o in ("min", "max"):
            for m in ("", ".NaN"):
                k.op(f"{o}{m}.{t}x2 %r9, %r1, %r2;")
        for o in ("neg", "abs"):
            k.op(f"{o}.{t}x2 %r9, %r1;")
        if t == "f16":
            k.op("add.ftz.f16x2 %r9, %r1, %r2;")
            k.op("add.sat.f16x2 %r9, %r1, %r2;")
            k.op("mul.ftz.sat.f16x2 %r9, %r1, %r2;")
            k.op("fma.rn.ftz.f16x2 %r9, %r1, %r2, %r3;")
            k.op("fma.rn.sat.f16x2 %r9, %r1, %r2, %r3;")
        for c in ("eq", "lt", "geu", "nan"):
            k.op(f"setp.{c}.{t}x2 %p1|%p2, %r1, %r2; selp.b32 %r7, 1, 0, %p1; selp.b32 %r6, 2, 0, %p2; or.b32 %r9, %r7, %r6;", name=f"setp.{c}.{t}x2")
        k.write()


def conversions():
    k = Table("convert", "bits", "sm_90a")
    for t in ("u8", "s8", "u16", "s16"):
        k.op(f"cvt.u32.{t} %r9, %r1;" if t[1:] == "8" else f"cvt.{t[0]}32.{t} %r9, %rs1;")
    for t in ("u8", "s8", "u16", "s16"):
        k.op(f"cvt.sat.{t}.s32 {'%rs9' if t[1:] == '16' else '%r9'}, %r1;" + (" cvt.u32.u16 %r9, %rs9;" if t[1:] == "16" else ""), name=f"cvt.sat.{t}.s32")
    k.op("cvt.sat.u32.s64 %r9, %rd1;")
    k.op("cvt.s64.s32 %rd9, %r1;", wide=True)
    k.op("cvt.u64.u32 %rd9, %r1;", wide=True)
    k.op("cvt.u32.u64 %r9, %rd1;")
    for i in ("rni", "rzi", "rmi", "rpi"):
        for t in ("s32", "u32"):
            k.op(f"cvt.{i}.{t}.f32 %r9, %r1;")
        for t in ("s64", "u64"):
            k.op(f"cvt.{i}.{t}.f32 %rd9, %r1;", wide=True)
        k.op(f"cvt.{i}.f32.f32 %r9, %r1;", "nan32")
        k.op(f"cvt.{i}.s32.f64 %r9, %rd1;")
    k.op("cvt.rzi.s16.f32 %rs9, %r1; cvt.u32.u16 %r9, %rs9;", name="cvt.rzi.s16.f32")
    k.op("cvt.rzi.u16.f32 %rs9, %r1; cvt.u32.u16 %r9, %rs9;", name="cvt.rzi.u16.f32")
    for r in ("rn", "rz", "rm", "rp"):
        for t in ("s32", "u32"):
            k.op(f"cvt.{r}.f32.{t} %r9, %r1;")
        for t in ("s64", "u64"):
            k.op(f"cvt.{r}.f32.{t} %r9, %rd1;")
        k.op(f"cvt.{r}.f32.f64 %r9, %rd1;", "nan32")
    k.op("cvt.f64.f32 %rd9, %r1;", wide=True, rule="nan64")
    k.op("cvt.rn.f64.s64 %rd9, %rd1;", wide=True)
    for r in ("rn", "rz"):
        k.op(f"cvt.{r}.f16.f32 %rs9, %r1; cvt.u32.u16 %r9, %rs9;", name=f"cvt.{r}.f16.f32", rule="nanf16")
        k.op(f"cvt.{r}.bf16.f32 %rs9, %r1; cvt.u32.u16 %r9, %rs9;", name=f"cvt.{r}.bf16.f32", rule="nanbf16")
        for t in ("f16x2", "bf16x2"):
            k.op(f"cvt.{r}.{t}.f32 %r9, %r1, %r2;", f"nan{t[:-2]}")
            k.op(f"cvt.{r}.relu.{t}.f32 %r9, %r1, %r2;", f"nan{t[:-2]}")
    k.op("cvt.rna.tf32.f32 %r9, %r1;", "nan32")
    k.op("cvt.f32.f16 %r9, %rs1;", "nan32")
    k.op("cvt.f32.bf16 %r9, %rs1;", "nan32")
    k.op("cvt.ftz.f32.f16 %r9, %rs1;", "nan32")
    k.op("cvt.sat.f32.f32 %r9, %r1;")
    k.op("cvt.rn.f16.s32 %rs9, %r1; cvt.u32.u16 %r9, %rs9;", name="cvt.rn.f16.s32")
    k.op("cvt.rni.s32.f16 %r9, %rs1;")
    k.op("cvt.rzi.u32.f16 %r9, %rs1;")
    k.write()


def codes():
    k = Table("codes", "bits", "sm_89", rule="nanf16", version="8.1")
    # All 256 codes, two a thread, and random ones.
    every = "mad.lo.s32 %r7, %r0, 514, 256; cvt.u16.u32 %rs9, %r7;"
    for relu in ("", ".relu"):
        k.op(f"{every} cvt.rn{relu}.f16x2.e4m3x2 %r9, %rs9;")
        k.op(f"cvt.rn{relu}.f16x2.e4m3x2 %r9, %rs1;")
    k.write()


def compares():
    k = Table("compare", "bits")
    def one(text, name):
        k.op(f"{text} selp.b32 %r9, %r1, %r2, %p1;", name=name)
    for c in ("eq", "ne", "lt", "le", "gt", "ge"):
        for t in ("s32", "u32", "s16", "u16"):
            a = "%rs" if t[1:] == "16" else "%r"
            one(f"setp.{c}.{t} %p1, {a}1, {a}2;", f"setp.{c}.{t}")
        one(f"setp.{c}.s64 %p1, %rd1, %rd2;", f"setp.{c}.s64")
        one(f"setp.{c}.f64 %p1, %rd1, %rd2;", f"setp.{c}.f64")
    for c in ("lo", "ls", "hi", "hs"):
        one(f"setp.{c}.u32 %p1, %r1, %r2;", f"setp.{c}.u32")
    for c in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        one(f"setp.{c}.f32 %p1, %r1, %r2;", f"setp.{c}.f32")
        one(f"setp.{c}.ftz.f32 %p1, %r1, %r2;", f"setp.{c}.ftz.f32")
    for b in ("and", "or", "xor"):
        k.op(f"setp.lt.s32 %p3, %r1, 0; setp.gt.{b}.s32 %p1|%p2, %r1, %r2, !%p3; selp.b32 %r7, 1, 0, %p1; selp.b32 %r6, 2, 0, %p2; or.b32 %r9, %r7, %r6;", name=f"setp.gt.{b}")
        k.op(f"setp.lt.s32 %p3, %r1, 0; setp.lt.s32 %p4, %r2, 0; {b}.pred %p1, %p3, %p4; selp.b32 %r9, 1, 0, %p1;", name=f"{b}.pred")
    k.op("setp.lt.s32 %p3, %r1, 0; not.pred %p1, %p3; selp.b32 %r9, 1, 0, %p1;", name="not.pred")
    k.op("setp.lt.s32 %p3, %r1, 0; selp.b64 %rd9, %rd1, %rd2, %p3;", wide=True)
    k.write()


def exchange():
    k = Table("exchange", "bits", "sm_90a")
    for mode in ("idx", "up", "down", "bfly"):
        clamp = 0 if mode == "up" else 31
        for control in (clamp, clamp | 0x1800, clamp | 0x1000):
            k.op(f"and.b32 %r7, %r2, 31; shfl.sync.{mode}.b32 %r6|%p1, %r1, %r7, {control}, -1; selp.b32 %r7, 0x5a5a, 0, %p1; xor.b32 %r9, %r6, %r7;", name=f"shfl.{mode} control {control:#x}")
    k.op("setp.lt.s32 %p1, %r1, 0; vote.sync.ballot.b32 %r9, %p1, -1;")
    for mode in ("all", "any", "uni"):
        k.op(f"setp.lt.s32 %p1, %r1, 0; vote.sync.{mode}.pred %p2, %p1, -1; selp.b32 %r9, 1, 0, %p2;", name=f"vote.{mode}")
    for o in ("add", "min", "max"):
        k.op(f"redux.sync.{o}.s32 %r9, %r1, -1;")
        k.op(f"redux.sync.{o}.u32 %r9, %r1, -1;")
    for o in ("and", "or", "xor"):
        k.op(f"redux.sync.{o}.b32 %r9, %r1, -1;")
    k.op("and.b32 %r7, %r1, 3; match.any.sync.b32 %r9, %r7, -1;")
    k.op("and.b32 %r7, %r1, 3; match.all.sync.b32 %r6|%p1, %r7, -1; selp.b32 %r7, 1, 0, %p1; add.u32 %r9, %r6, %r7;", name="match.all")
    k.op("elect.sync %r6|%p1, -1; selp.b32 %r9, 1, 0, %p1;", name="elect")
    k.op("activemask.b32 %r9;")
    k.op("mov.u32 %r9, %lanemask_lt;")
    k.op("mov.u32 %r9, %lanemask_ge;")
    k.write()


def matrices():
    def kernel(name, target, kind, ops, body, words=4096, shared=16384, block=32):
        text = header(target, f"grid=1 block={block} shared={shared}", f"{words} {kind}", sum(o[1] for o in ops) * block, ops)
        text += [".extern .shared .align 1024 .b8 smem[];", f".visible .entry {name}({params([])})", "{", REGS,
                 "\tld.param.u64 %rd3, [p0];", "\tld.param.u64 %rd4, [p1];", "\tmov.u32 %r0, %tid.x;", "\tmov.u32 %r100, smem;",
                 "\tmul.wide.u32 %rd6, %r0, 4;", "\tadd.s64 %rd5, %rd4, %rd6;"]
        text += body + ["\tret;", "}"]
        save(name, text)

    def fill(words, block):
        """Copies `words` input words to shared memory."""
        return ["\tshl.b32 %r101, %r0, 2;", "\tadd.s32 %r102, %r100, %r101;", "\tadd.s64 %rd7, %rd3, %rd6;", "\tmov.u32 %r103, 0;",
                "FILL:", "\tld.global.b32 %r104, [%rd7];", "\tst.shared.b32 [%r102], %r104;",
                f"\tadd.s64 %rd7, %rd7, {4 * block};", f"\tadd.s32 %r102, %r102, {4 * block};", f"\tadd.s32 %r103, %r103, {block};",
                f"\tsetp.lt.u32 %p1, %r103, {words};", "\t@%p1 bra FILL;"]

    def out(regs, first, block):
        return [f"\tst.global.b32 [%rd5+{4 * block * (first + i)}], {r};" for i, r in enumerate(regs)]

    # ldmatrix / stmatrix: rows 32 bytes apart from a lane-dependent start.
    ops, body, word = [], fill(4096, 32) + ["\tbar.sync 0;", "\tmul.lo.u32 %r105, %r0, 48;", "\tadd.s32 %r105, %r105, %r100;"], 0
    for n in (1, 2, 4):
        for trans in ("", ".trans"):
            regs = [f"%r{20 + i}" for i in range(n)]
            body.append(f"\tldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{', '.join(regs)}}}, [%r105];")
            body += out(regs, word, 32)
            ops.append((word, n, "bits", f"ldmatrix.x{n}{trans}"))
            word += n
    for n in (1, 2, 4):
        for trans in ("", ".trans"):
            regs = [f"%r{20 + i}" for i in range(4)]
            body += ["\tbar.sync 0;", f"\tstmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%r105], {{{', '.join(regs[:n])}}};", "\tbar.sync 0;"]
            for i in range(4):
                body += [f"\tld.shared.b32 %r{30 + i}, [%r105+{4 * i}];"]
            body += out([f"%r{30 + i}" for i in range(4)], word, 32)
            ops.append((word, 4, "bits", f"stmatrix.x{n}{trans}"))
            word += 4
    kernel("matrix_moves", "sm_90a", "bits", ops, body)

    # mma.sync: fragments straight from the input.
    for kind, types in (("halves", (("f16", "f32"), ("f16", "f16"))), ("bhalves", (("bf16", "f32"),)), ("f32", (("tf32", "f32"),))):
        ops, word = [], 0
        body = ["\tmul.wide.u32 %rd8, %r0, 48;", "\tadd.s64 %rd8, %rd3, %rd8;"]
        body += [f"\tld.global.b32 %r{10 + i}, [%rd8+{4 * i}];" for i in range(12)]
        for t, acc in types:
            for k in ((4, 8) if t == "tf32" else (8, 16)):
                per = 1 if t == "tf32" else 2
                na, nb = 16 * k // 32 // per, max(8 * k // 32 // per, 1)
                nd = 4 if acc == "f32" else 2
                a = ", ".join(f"%r{10 + i}" for i in range(na))
                b = ", ".join(f"%r{14 + i}" for i in range(nb))
                # An f32 accumulator starts from small f32 values made of the input, an f16 one from it.
                c = [f"%r{20 + i}" for i in range(nd)]
                if acc == "f32":
                    body += [f"\tcvt.rn.f32.s32 %r{20 + i}, %r{16 + i}; mul.f32 %r{20 + i}, %r{20 + i}, 0f30000000;" for i in range(4)]
                else:
                    body += [f"\tmov.b32 %r{20 + i}, %r{16 + i};" for i in range(2)]
                d = [f"%r{30 + i}" for i in range(nd)]
                body.append(f"\tmma.sync.aligned.m16n8k{k}.row.col.{acc}.{t}.{t}.{acc} {{{', '.join(d)}}}, {{{a}}}, {{{b}}}, {{{', '.join(c)}}};")
                body += out(d, word, 32)
                ops.append((word, nd, "close 1e-5" if acc == "f32" else "f16ulp 2", f"mma.m16n8k{k}.{acc}.{t}"))
                word += nd
        name = {"halves": "mma_f16", "bhalves": "mma_bf16", "f32": "mma_tf32"}[kind]
        kernel(name, "sm_80", kind, ops, body, words=384, shared=0)

    # wgmma: A at byte 0, B at byte 16384 of shared memory filled with input; descriptors by layout.
    def desc(start, lbo, sbo, swizzle):
        return (start >> 4) | (lbo >> 4) << 16 | (sbo >> 4) << 32 | swizzle << 62

    layouts = [  # name, trans, swizzle code, LBO, SBO of A (64 x 16) and of B (16 x 16), start offset
        ("K none", 0, 0, (128, 256), (128, 256), 0), ("K none apart", 0, 0, (4096, 128), (2048, 128), 0),
        ("K 32B", 0, 3, (16, 256), (16, 256), 0), ("K 64B", 0, 2, (16, 512), (16, 512), 0), ("K 128B", 0, 1, (16, 1024), (16, 1024), 0),
        ("K 128B second step", 0, 1, (16, 1024), (16, 1024), 32), ("K 128B last step", 0, 1, (16, 1024), (16, 1024), 96),
        ("K 64B second step", 0, 2, (16, 512), (16, 512), 32), ("K 128B wide groups", 0, 1, (16, 2048), (16, 2048), 0),
        ("MN none", 1, 0, (1024, 128), (256, 128), 0), ("MN none apart", 1, 0, (128, 512), (128, 256), 0),
        ("MN 32B", 1, 3, (512, 256), (512, 256), 0), ("MN 64B", 1, 2, (1024, 512), (1024, 512), 0), ("MN 128B", 1, 1, (4096, 1024), (4096, 1024), 0),
    ]
    for t, kind in (("bf16", "bhalves"), ("f16", "halves")):
        ops, word = [], 0
        body = fill(8192, 128) + ["\tfence.proxy.async.shared::cta;", "\tbar.sync 0;", "\tand.b32 %r105, %r100, 262143;", "\tshr.u32 %r105, %r105, 4;", "\tcvt.u64.u32 %rd10, %r105;"]
        def mma(name, n, acc, a, b, extra, rule):
            nonlocal word
            nd = n // 2 if acc == "f32" else n // 4
            d = [f"%r{20 + i}" for i in range(nd)]
            body.extend([f"\tmov.b32 {r}, 0;" for r in d])
            body.extend(["\twgmma.fence.sync.aligned;", "\tsetp.ne.b32 %p2, 0, 0;", "\tsetp.eq.b32 %p3, 0, 0;"])
            # Once without the old accumulator, once on top of it.
            for p in ("%p2", "%p3"):
                body.append(f"\twgmma.mma_async.sync.aligned.m64n{n}k16.{acc}.{t}.{t} {{{', '.join(d)}}}, {a}, {b}, {p}, {extra};")
            body.extend(["\twgmma.commit_group.sync.aligned;", "\twgmma.wait_group.sync.aligned 0;"])
            body.extend(out(d, word, 128))
            ops.append((word, nd, rule, name))
            word += nd
        for name, trans, swizzle, la, lb, step in layouts:
            body += [f"\tadd.s64 %rd11, %rd10, {desc(step, la[0], la[1], swizzle)};", f"\tadd.s64 %rd12, %rd10, {desc(16384 + step, lb[0], lb[1], swizzle)};"]
            mma(f"{name}", 16, "f32", "%rd11", "%rd12", f"1, 1, {trans}, {trans}", "close 1e-5")
        body += [f"\tadd.s64 %rd11, %rd10, {desc(0, 16, 1024, 1)};", f"\tadd.s64 %rd12, %rd10, {desc(16384, 2048, 1024, 1)};"]
        mma("n 64 MN-major B, negated", 64, "f32", "%rd11", "%rd12", "-1, 1, 0, 1", "close 1e-5")
        body += ["\tadd.s64 %rd8, %rd3, %rd6;"] + [f"\tld.global.b32 %r{110 + i}, [%rd8+{512 * i}];" for i in range(4)]
        mma("A from registers", 24, "f32", "{%r110, %r111, %r112, %r113}", "%rd12", "1, -1, 0", "close 1e-5")
        if t == "f16":
            mma("f16 accumulator", 32, "f16", "%rd11", "%rd12", "1, 1, 0, 0", "f16ulp 2")
        kernel(f"wgmma_{t}", "sm_90a", kind, ops, body, words=8192, shared=32768, block=128)
    ops, word = [], 0
    body = fill(8192, 128) + ["\tfence.proxy.async.shared::cta;", "\tbar.sync 0;", "\tand.b32 %r105, %r100, 262143;", "\tshr.u32 %r105, %r105, 4;", "\tcvt.u64.u32 %rd10, %r105;", "\tsetp.ne.b32 %p2, 0, 0;"]
    for name, swizzle, lbo, sbo in (("none", 0, 128, 256), ("32B", 3, 16, 256), ("64B", 2, 16, 512), ("128B", 1, 16, 1024)):
        d = [f"%r{20 + i}" for i in range(8)]
        body += [f"\tadd.s64 %rd11, %rd10, {desc(0, lbo, sbo, swizzle)};", f"\tadd.s64 %rd12, %rd10, {desc(16384, lbo, sbo, swizzle)};", "\twgmma.fence.sync.aligned;",
                 f"\twgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {{{', '.join(d)}}}, %rd11, %rd12, %p2, 1, 1;",
                 "\twgmma.commit_group.sync.aligned;", "\twgmma.wait_group.sync.aligned 0;"]
        body += out(d, word, 128)
        ops.append((word, 8, "close 1e-5", f"tf32 {name}"))
        word += 8
    kernel("wgmma_tf32", "sm_90a", "f32", ops, body, words=8192, shared=32768, block=128)


def majors():
    """wgmma whose operands lie each its own way, in the shapes of a backward pass: shared memory is filled with
    input, A starts at byte 0 and B at byte 16384."""
    block, words = 128, 12288
    def desc(start, lbo, sbo, swizzle):
        return (start >> 4) | (lbo >> 4) << 16 | (sbo >> 4) << 32 | swizzle << 62

    # By majorness and swizzle: code, LBO and SBO. An MN-major operand wider than the swizzle span goes on LBO further.
    layouts = {("K", 128): (1, 16, 1024), ("K", 64): (2, 16, 512), ("K", 32): (3, 16, 256),
               ("MN", 128): (1, 2048, 1024), ("MN", 64): (2, 1024, 512), ("MN", 32): (3, 512, 256)}
    cases = [(n, a, b, swizzle, 0) for n in (64, 128) for a in ("K", "MN") for b in ("K", "MN") for swizzle in (128, 64, 32)]
    # The second step of 16 along k: 32 bytes on in K-major rows, two groups of 8 rows on in MN-major ones.
    cases += [(64, a, b, 128, 1) for a in ("K", "MN") for b in ("K", "MN")]
    # 80 queries by 128 keys: a span and a quarter.
    cases += [(80, a, b, 128, 0) for a in ("K", "MN") for b in ("K", "MN")]
    # P and dS from registers, N as wide as the head.
    cases += [(n, "registers", b, 128, 0) for n in (64, 96, 128, 192, 256) for b in ("K", "MN")]
    for t, kind in (("bf16", "bhalves"), ("f16", "halves")):
        name, ops, word = f"wgmma_majors_{t}", [], 0
        body = ["\tld.param.u64 %rd3, [p0];", "\tld.param.u64 %rd4, [p1];", "\tmov.u32 %r0, %tid.x;", "\tmov.u32 %r10, smem;",
                "\tmul.wide.u32 %rd6, %r0, 4;", "\tadd.s64 %rd5, %rd4, %rd6;", "\tadd.s64 %rd7, %rd3, %rd6;", "\tshl.b32 %r11, %r0, 2;", "\tadd.s32 %r12, %r10, %r11;", "\tmov.u32 %r13, 0;",
                "FILL:", "\tld.global.b32 %r14, [%rd7];", "\tst.shared.b32 [%r12], %r14;", f"\tadd.s64 %rd7, %rd7, {4 * block};", f"\tadd.s32 %r12, %r12, {4 * block};",
                f"\tadd.s32 %r13, %r13, {block};", f"\tsetp.lt.u32 %p1, %r13, {words};", "\t@%p1 bra FILL;",
                "\tfence.proxy.async.shared::cta;", "\tbar.sync 0;", "\tand.b32 %r15, %r10, 262143;", "\tshr.u32 %r15, %r15, 4;", "\tcvt.u64.u32 %rd10, %r15;", "\tsetp.ne.b32 %p2, 0, 0;",
                "\tadd.s64 %rd8, %rd3, %rd6;"] + [f"\tld.global.b32 %r{150 + i}, [%rd8+{512 * i}];" for i in range(4)]
        for n, a, b, swizzle, step in cases:
            def operand(major, start):
                code, lbo, sbo = layouts[major, swizzle]
                return desc(start + step * (32 if major == "K" else 2 * sbo), lbo, sbo, code)
            d = ", ".join(f"%r{20 + i}" for i in range(n // 2))
            trans = [str(int(m == "MN")) for m in (a, b) if m != "registers"]
            if a == "registers":
                source = "{%r150, %r151, %r152, %r153}"
            else:
                source = "%rd11"
                body.append(f"\tadd.s64 %rd11, %rd10, {operand(a, 0)};")
            body += [f"\tadd.s64 %rd12, %rd10, {operand(b, 16384)};", "\twgmma.fence.sync.aligned;",
                     f"\twgmma.mma_async.sync.aligned.m64n{n}k16.f32.{t}.{t} {{{d}}}, {source}, %rd12, %p2, 1, 1, {', '.join(trans)};",
                     "\twgmma.commit_group.sync.aligned;", "\twgmma.wait_group.sync.aligned 0;"]
            body += [f"\tst.global.b32 [%rd5+{4 * block * (word + i)}], %r{20 + i};" for i in range(n // 2)]
            ops.append((word, n // 2, "close 1e-5", f"N {n}, A {a}, B {b}, {swizzle}B{', second step' if step else ''}"))
            word += n // 2
        text = header("sm_90a", f"grid=1 block={block} shared={4 * words}", f"{words} {kind}", word * block, ops)
        text += [".extern .shared .align 1024 .b8 smem[];", f".visible .entry {name}({params([])})", "{", REGS] + body + ["\tret;", "}"]
        save(name, text)


def reductions():
    """Reductions of input into input, by bulk copies and by vectors: 128 words, or four to a thread."""
    block = 128
    start = ["\tld.param.u64 %rd3, [p0];", "\tld.param.u64 %rd4, [p1];", "\tmov.u32 %r0, %tid.x;"]
    bulk = [(f"{f}.{t}", "bits") for t in ("u32", "s32") for f in ("add", "min", "max")] + [(f"{f}.b32", "bits") for f in ("and", "or", "xor")]
    bulk += [("inc.u32", "bits"), ("dec.u32", "bits"), ("add.u64", "bits"), ("min.u64", "bits"), ("max.s64", "bits"), ("and.b64", "bits"), ("add.f32", "nan32")]
    bulk += [(f"{f}.{t}", f"nan{t}") for t in ("f16", "bf16") for f in ("add.noftz", "min", "max")]
    body = start + ["\tmov.u32 %r10, smem;", "\tmul.wide.u32 %rd6, %r0, 4;", "\tadd.s64 %rd5, %rd4, %rd6;", "\tadd.s64 %rd7, %rd3, %rd6;", "\tshl.b32 %r11, %r0, 2;", "\tadd.s32 %r11, %r11, %r10;",
                    "\tld.global.b32 %r12, [%rd7];", "\tld.global.b32 %r13, [%rd7+512];", "\tst.shared.b32 [%r11], %r12;"]
    body += [f"\tst.global.b32 [%rd5+{512 * i}], %r13;" for i in range(len(bulk))]
    body += ["\tfence.proxy.async;", "\tbar.sync 0;", "\tsetp.ne.u32 %p1, %r0, 0;", "\t@%p1 bra END;"]
    for i, (operation, _) in enumerate(bulk):
        body += [f"\tadd.s64 %rd8, %rd4, {512 * i};", f"\tcp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%rd8], [%r10], 512;"]
    body += ["\tcp.async.bulk.commit_group;", "\tcp.async.bulk.wait_group 0;", "END:"]
    ops = [(i, 1, rule, f"bulk {operation}") for i, (operation, rule) in enumerate(bulk)]
    text = header("sm_90a", f"grid=1 block={block} shared=512", "256 bits", len(bulk) * block, ops)
    text += [".extern .shared .align 1024 .b8 smem[];", f".visible .entry bulk_reductions({params([])})", "{", REGS] + body + ["\tret;", "}"]
    save("bulk_reductions", text)

    four, halves = "{%r10, %r11, %r12, %r13}", "{" + ", ".join(f"%rs{i}" for i in range(1, 9)) + "}"
    old = "{%r18, %r19, %r20, %r21}"
    vectors = [(f"red.global.add.v4.f32 [%rd8], {four};", "nan32"), ("red.global.add.v2.f32 [%rd8+8], {%r10, %r11};", "nan32"), ("red.global.add.f32 [%rd8+4], %r12;", "nan32"),
               (f"atom.global.add.v4.f32 {old}, [%rd8], {four}; st.global.v4.b32 [%rd8], {old};", "nan32")]
    for t in ("f16", "bf16"):
        vectors += [(f"red.global.{f}.noftz.v4.{t}x2 [%rd8], {four};", f"nan{t}") for f in ("add", "min", "max")]
        vectors += [(f"red.global.add.noftz.v8.{t} [%rd8], {halves};", f"nan{t}"), (f"red.global.add.noftz.{t}x2 [%rd8+8], %r13;", f"nan{t}")]
    body = start + ["\tmul.wide.u32 %rd6, %r0, 16;", "\tadd.s64 %rd5, %rd4, %rd6;", "\tadd.s64 %rd7, %rd3, %rd6;",
                    f"\tld.global.v4.b32 {four}, [%rd7];", "\tld.global.v4.b32 {%r14, %r15, %r16, %r17}, [%rd7+2048];"]
    body += [f"\tmov.b32 {{%rs{2 * i + 1}, %rs{2 * i + 2}}}, %r{10 + i};" for i in range(4)]
    for i, (text, _) in enumerate(vectors):
        body += [f"\tadd.s64 %rd8, %rd5, {2048 * i};", "\tst.global.v4.b32 [%rd8], {%r14, %r15, %r16, %r17};", f"\t{text}"]
    ops = [(4 * i, 4, rule, text.split(" [")[0]) for i, (text, rule) in enumerate(vectors)]
    text = header("sm_90", f"grid=1 block={block}", f"{2 * 4 * block} bits", 4 * len(vectors) * block, ops, version="8.1")
    text += [f".visible .entry vector_reductions({params([])})", "{", REGS] + body + ["\tret;", "}"]
    save("vector_reductions", text)


SIZES = {"u8": 1, "u16": 2, "bf16": 2, "u32": 4, "f32": 4}

# One kernel each, so that one which hardware refuses takes no other along.
TENSOR_LOADS = {
    "rows128": ("ty=bf16 of=in dims=64,40 box=64,16 swizzle=128", (0, 0)),
    "past_the_end": ("ty=bf16 of=in dims=64,40 box=64,16 swizzle=128", (8, 30)),
    "before_the_start": ("ty=bf16 of=in dims=40,60 box=32,16 swizzle=64", (-8, -3)),
    "u16": ("ty=u16 of=in dims=48,60 box=16,16 swizzle=32", (40, 50)),
    "f32": ("ty=f32 of=in dims=32,60 box=32,8 swizzle=128", (4, 57)),
    "u8": ("ty=u8 of=in dims=96,80 box=48,20 swizzle=0", (48, 65)),
    "four_dims": ("ty=bf16 of=in dims=64,10,4,3 box=64,4,2,1 swizzle=128", (0, 8, 1, 2)),
    "nan_fill": ("ty=bf16 of=in dims=64,10,4 box=64,4,3 swizzle=128 fill=nan", (16, 7, 2)),
}

# Of shared memory filled with input; `out` starts as zeros.
TENSOR_STORES = {
    "rows128": ("ty=bf16 of=out dims=64,20 box=64,16 swizzle=128", (0, 8), ""),
    "at_the_edges": ("ty=bf16 of=out dims=64,20 box=32,16 swizzle=64", (48, 8), ""),
    "add": ("ty=f32 of=out dims=32,20 box=32,8 swizzle=128", (4, 15), "add"),
    "max": ("ty=u32 of=out dims=32,20 box=32,8 swizzle=0", (0, 0), "max"),
}


def coordinates(at):
    return ", ".join(str(c) for c in at)


def tensor_load(name, spec, at):
    """One box into shared memory, and from there to the output."""
    block = 128
    fields = dict(f.split("=") for f in spec.split())
    count = 1
    for b in fields["box"].split(","):
        count *= int(b)
    size = count * SIZES[fields["ty"]]
    words = -(-size // 4 // block)
    body = ["\tmov.u32 %r100, smem;", "\tld.param.u64 %rd4, [p1];", "\tmov.u32 %r0, %tid.x;", "\tmul.wide.u32 %rd6, %r0, 4;", "\tadd.s64 %rd5, %rd4, %rd6;", "\tshl.b32 %r101, %r0, 2;", "\tadd.s32 %r101, %r101, %r100;",
            "\tadd.s32 %r105, %r100, 16384;", "\tsetp.ne.u32 %p1, %r0, 0;", "\t@%p1 bra READY;", "\tmbarrier.init.shared::cta.b64 [%r105], 1;", "\tfence.mbarrier_init.release.cluster;", "READY:", "\tbar.sync 0;",
            "\tmov.u64 %rd10, map0;", "\tcvta.param.u64 %rd10, %rd10;", "\t@%p1 bra SENT;", f"\tmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r105], {size};",
            f"\tcp.async.bulk.tensor.{len(at)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r100], [%rd10, {{{coordinates(at)}}}], [%r105];", "SENT:",
            "WAIT:", "\tmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r105], 0;", "\t@!%p2 bra WAIT;"]
    for w in range(words):
        body += [f"\tsetp.lt.u32 %p3, %r0, {size // 4 - w * block};", "\tmov.b32 %r20, 0;", f"\t@%p3 ld.shared.b32 %r20, [%r101+{4 * block * w}];", f"\tst.global.b32 [%rd5+{4 * block * w}], %r20;"]
    ops = [(0, words, "nanbf16" if "nan" in spec else "bits", f"tensor load {spec} at {coordinates(at)}")]
    text = header("sm_90a", f"grid=1 block={block} shared=20480", "4096 bits", words * block, ops, [spec])
    text += [".extern .shared .align 1024 .b8 smem[];", f".visible .entry {name}({params([spec])})", "{", REGS] + body + ["\tret;", "}"]
    save(name, text)


def tensor_store(name, spec, at, reduce):
    """Shared memory filled with input, then one box of it stored or reduced to the output."""
    block, words = 128, 10
    body = ["\tmov.u32 %r100, smem;", "\tld.param.u64 %rd3, [p0];", "\tmov.u32 %r0, %tid.x;", "\tmul.wide.u32 %rd6, %r0, 4;", "\tadd.s64 %rd7, %rd3, %rd6;", "\tshl.b32 %r101, %r0, 2;", "\tadd.s32 %r101, %r101, %r100;"]
    for w in range(8):
        body += [f"\tld.global.b32 %r20, [%rd7+{4 * block * w}];", f"\tst.shared.b32 [%r101+{4 * block * w}], %r20;"]
    op = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{reduce}.tile.bulk_group" if reduce else "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
    body += ["\tfence.proxy.async.shared::cta;", "\tbar.sync 0;", "\tsetp.ne.u32 %p1, %r0, 0;", "\t@%p1 bra END;", "\tmov.u64 %rd10, map0;", "\tcvta.param.u64 %rd10, %rd10;",
             f"\t{op} [%rd10, {{{coordinates(at)}}}], [%r100];", "\tcp.async.bulk.commit_group;", "\tcp.async.bulk.wait_group 0;", "END:"]
    ops = [(0, words, "bits", f"tensor {'reduction ' + reduce if reduce else 'store'} {spec} at {coordinates(at)}")]
    text = header("sm_90a", f"grid=1 block={block} shared=8192", "4096 f32", words * block, ops, [spec])
    text += [".extern .shared .align 1024 .b8 smem[];", f".visible .entry {name}({params([spec])})", "{", REGS] + body + ["\tret;", "}"]
    save(name, text)


def copies():
    block = 128
    for name, load in TENSOR_LOADS.items():
        tensor_load(f"tensor_load_{name}", *load)
    for name, store in TENSOR_STORES.items():
        tensor_store(f"tensor_store_{name}", *store)

    # Linear bulk copies, cp.async with zero fill, and a multicast between two CTAs.
    body = ["\tmov.u32 %r100, smem;", "\tld.param.u64 %rd3, [p0];", "\tld.param.u64 %rd4, [p1];", "\tmov.u32 %r0, %tid.x;", "\tmov.u32 %r1, %cluster_ctarank;",
            "\tmul.wide.u32 %rd6, %r0, 4;", "\tmul.wide.u32 %rd7, %r1, 4096;", "\tadd.s64 %rd5, %rd4, %rd6;", "\tadd.s64 %rd5, %rd5, %rd7;", "\tshl.b32 %r101, %r0, 2;", "\tadd.s32 %r101, %r101, %r100;",
            "\tadd.s32 %r105, %r100, 8192;", "\tsetp.eq.u32 %p1, %r0, 0;", "\t@!%p1 bra READY;", "\tmbarrier.init.shared::cta.b64 [%r105], 1;", "\tfence.mbarrier_init.release.cluster;", "READY:",
            "\tbarrier.cluster.arrive.aligned;", "\tbarrier.cluster.wait.aligned;",
            # Each CTA sends its kilobyte to both.
            "\t@!%p1 bra SENT;", "\tmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r105], 2048;", "\tmul.lo.u32 %r2, %r1, 1024;", "\tadd.s32 %r3, %r100, %r2;", "\tcvt.u64.u32 %rd8, %r2;", "\tadd.s64 %rd8, %rd3, %rd8;",
            "\tmov.u16 %rs1, 3;", "\tcp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%rd8], 1024, [%r105], %rs1;", "SENT:",
            "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r105], 0;", "\t@!%p2 bra W;"]
    for w in range(4):
        body += [f"\tld.shared.b32 %r20, [%r101+{512 * w}];", f"\tst.global.b32 [%rd5+{512 * w}], %r20;"]
    # cp.async of 16, 8 and 4 bytes with fewer source bytes.
    body += ["\tbar.sync 0;", "\tshl.b32 %r102, %r0, 4;", "\tadd.s32 %r102, %r102, %r100;", "\tmul.wide.u32 %rd9, %r0, 16;", "\tadd.s64 %rd9, %rd3, %rd9;", "\tadd.s64 %rd9, %rd9, 2048;",
             "\trem.u32 %r4, %r0, 17;", "\tcp.async.cg.shared.global [%r102], [%rd9], 16, %r4;", "\tcp.async.commit_group;", "\tcp.async.wait_group 0;", "\tbar.sync 0;"]
    for w in range(4):
        body += [f"\tld.shared.b32 %r20, [%r101+{512 * w}];", f"\tst.global.b32 [%rd5+{2048 + 512 * w}], %r20;"]
    body += ["\tbarrier.cluster.arrive.aligned;", "\tbarrier.cluster.wait.aligned;"]
    ops = [(0, 4, "bits", "multicast rank 0"), (4, 4, "bits", "cp.async zero fill rank 0"), (8, 4, "bits", "multicast rank 1"), (12, 4, "bits", "cp.async zero fill rank 1")]
    text = header("sm_90a", f"grid=2 block={block} cluster=2 shared=12288", "2048 bits", 16 * block, ops)
    text += [".extern .shared .align 1024 .b8 smem[];", f".visible .entry bulk_copies({params([])})", ".explicitcluster", ".reqnctapercluster 2, 1, 1", "{", REGS] + body + ["\tret;", "}"]
    save("bulk_copies", text)


def memory():
    # Loads of every width and sign, vectors, generic addresses, atomics by one thread after another.
    k = Table("loads", "bits", threads=32)
    for t in ("u8", "s8", "u16", "s16"):
        k.op(f"ld.global.{t} %r9, [%rd3+{2 if t[1:] == '16' else 3}];")
    k.op("ld.global.s8 %rd9, [%rd3+5];", wide=True)
    k.op("ld.global.v2.b16 {%rs8, %rs9}, [%rd3+4]; mov.b32 %r9, {%rs9, %rs8};", name="ld.v2.b16")
    k.op("ld.b32 %r9, [%rd3+4];", name="generic ld")
    k.op(".local .align 8 .b8 l[16]; mov.b64 %rd8, l; cvta.local.u64 %rd8, %rd8; st.b32 [%rd8], %r1; st.b16 [%rd8+1+1], %rs2; ld.b32 %r9, [%rd8];".replace("+1+1", "+2"), name="generic local")
    k.write()
    k = Table("atomics", "bits", threads=32)
    # Every lane works on its own word of the output.
    k.op("mov.b32 %r9, %r1;", name="start")
    for o in ("add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32", "exch.b32"):
        k.op(f"atom.global.{o} %r9, [%rd5], %r2;")
        k.op("ld.global.b32 %r9, [%rd5];", name=f"after {o}")
    k.op("ld.global.b32 %r7, [%rd5]; atom.global.cas.b32 %r9, [%rd5], %r7, %r3;", name="cas")
    k.op("and.b32 %r7, %r1, 0x3fffffff; and.b32 %r6, %r2, 0xbfffffff; st.global.b32 [%rd5], %r7; atom.global.add.f32 %r9, [%rd5], %r6; ld.global.b32 %r9, [%rd5];", name="add.f32")
    k.op("atom.global.add.noftz.f16x2 %r9, [%rd5], %r3; ld.global.b32 %r9, [%rd5];", "nanf16", name="add.f16x2")
    k.op("st.global.b32 [%rd5], %r1; ld.global.b32 %r9, [%rd5];", name="end")
    k.write()


integers(); bits(); floats(); halves(); conversions(); codes(); compares(); exchange(); matrices(); majors(); copies(); memory(); reductions()
print(len([f for f in os.listdir(HERE) if f.endswith(".ptx")]), "kernels")
