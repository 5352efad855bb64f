//! Golden agreement with hardware: the kernels of `golden/` against the answers a GPU gave.
//!
//! Runs without the test harness so that what was not compared is printed, never hidden: a kernel
//! without a recorded answer (or whose text or input changed since) is NOT RUN against hardware. It is
//! still run in the simulator, with every check on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ptx_sim::{
    Checks, LaunchConfig, Memory, Module, OutOfBoundsFill, Swizzle, TensorMap, TensorMapType,
    launch,
};

const EDGES: [u32; 20] = [
    0,
    0x8000_0000,
    1,
    0xffff_ffff,
    0x7fff_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x0080_0000,
    0x007f_ffff,
    0x3f80_0000,
    0xbf80_0000,
    0x4f00_0000,
    0xcf00_0000,
    0x7c00_7c00,
    0xfc00_fc00,
    0x7f80_7f80,
    0x0001_0001,
    0x3c00_3c00,
    0x42fe_0000,
];

fn fnv(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// SplitMix64, as in `record.py`.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The input `record.py` makes.
fn make_input(name: &str, words: usize, kind: &str) -> Vec<u8> {
    let mut state = fnv(name.as_bytes());
    let mut out = Vec::with_capacity(4 * words);
    for _ in 0..words {
        let r = splitmix(&mut state);
        let high = (r >> 32) as u32;
        let word = match kind {
            "bits" if r & 7 == 0 => EDGES[high as usize % EDGES.len()],
            "bits" => high,
            "f32" => ((f64::from(high as i32) / f64::from(1 << 28)) as f32).to_bits(),
            _ => (0..2).fold(0, |word, i| {
                let value = (((r >> (32 + 8 * i)) & 0xff) as f32 - 128.0) / 64.0;
                let bits = if kind == "halves" {
                    half::f16::from_f32(value).to_bits()
                } else {
                    half::bf16::from_f32(value).to_bits()
                };
                word | u32::from(bits) << (16 * i)
            }),
        };
        out.extend(word.to_le_bytes());
    }
    out
}

/// How closely results must agree.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Bits,
    /// f64 in two planes of words, any NaN equal to any other.
    Nan64,
    /// Equal, or both NaN.
    Nan32,
    NanHalves(fn(u32) -> f64),
    Ulp(i64),
    F16Ulp(i64),
    Abs(f64),
    HalvesAbs(f64, fn(u32) -> f64),
    /// Relative to the larger of 1 and the value.
    Close(f64),
}

struct Op {
    first: usize,
    count: usize,
    rule: Rule,
    name: String,
}

struct Golden {
    name: String,
    ptx: String,
    grid: u32,
    block: u32,
    shared: u32,
    input: Vec<u8>,
    out_words: usize,
    maps: Vec<BTreeMap<String, String>>,
    ops: Vec<Op>,
}

fn fields(text: &str) -> BTreeMap<String, String> {
    text.split_whitespace()
        .filter_map(|f| f.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

impl Golden {
    fn read(path: &Path) -> Self {
        let ptx = std::fs::read_to_string(path).expect("readable kernel");
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let mut golden = Self {
            name,
            ptx,
            grid: 1,
            block: 32,
            shared: 0,
            input: Vec::new(),
            out_words: 0,
            maps: Vec::new(),
            ops: Vec::new(),
        };
        for line in golden
            .ptx
            .clone()
            .lines()
            .map_while(|l| l.strip_prefix("// "))
        {
            let (key, value) = line.split_once(": ").expect("key: value");
            let words: Vec<&str> = key.split_whitespace().collect();
            match words[0] {
                "launch" => {
                    let f = fields(value);
                    let number = |k: &str| f.get(k).map_or(0, |v| v.parse().expect("a number"));
                    (golden.grid, golden.block, golden.shared) =
                        (number("grid"), number("block"), number("shared"));
                }
                "in" => {
                    let (n, kind) = value.split_once(' ').expect("words and kind");
                    golden.input = make_input(&golden.name, n.parse().expect("a number"), kind);
                }
                "out" => golden.out_words = value.parse().expect("a number"),
                "map" => golden.maps.push(fields(value)),
                "op" => {
                    let bound = || words[4].parse::<f64>().expect("a bound");
                    golden.ops.push(Op {
                        first: words[1].parse().expect("a number"),
                        count: words[2].parse().expect("a number"),
                        rule: match words[3] {
                            "bits" => Rule::Bits,
                            "nan64" => Rule::Nan64,
                            "nan32" => Rule::Nan32,
                            "nanf16" => Rule::NanHalves(f16_value),
                            "nanbf16" => Rule::NanHalves(bf16_value),
                            "f16abs" => Rule::HalvesAbs(bound(), f16_value),
                            "bf16abs" => Rule::HalvesAbs(bound(), bf16_value),
                            "ulp" => Rule::Ulp(bound() as i64),
                            "f16ulp" => Rule::F16Ulp(bound() as i64),
                            "abs" => Rule::Abs(bound()),
                            "close" => Rule::Close(bound()),
                            other => panic!("{}: rule {other}", golden.name),
                        },
                        name: value.to_owned(),
                    });
                }
                other => panic!("{}: header {other}", golden.name),
            }
        }
        golden
    }

    /// The kernel's output words in the simulator.
    fn simulate(&self, seed: u64) -> Result<Vec<u32>, String> {
        let module = Module::parse(&self.ptx).map_err(|e| e.to_string())?;
        let memory = Memory::new();
        let run = || -> Result<Vec<u8>, ptx_sim::SimError> {
            let source = memory.alloc(self.input.len() as u64)?;
            memory.write(source, &self.input)?;
            let target = memory.alloc(4 * self.out_words as u64)?;
            memory.write(target, &vec![0; 4 * self.out_words])?;
            let mut blobs = vec![source.to_le_bytes().to_vec(), target.to_le_bytes().to_vec()];
            for map in &self.maps {
                blobs.push(tensor_map(map, source, target));
            }
            let params: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
            let config = LaunchConfig::new([self.grid, 1, 1], [self.block, 1, 1])
                .shared_bytes(self.shared)
                .checks(Checks::ALL)
                .schedule_seed(seed);
            launch(&module, &self.name, &config, &params, &memory)?;
            let mut out = vec![0; 4 * self.out_words];
            memory.read(target, &mut out)?;
            Ok(out)
        };
        run()
            .map(|bytes| words_of(&bytes))
            .map_err(|e| e.to_string())
    }

    /// The first disagreements with hardware.
    fn compare(&self, ours: &[u32], theirs: &[u32]) -> Vec<String> {
        let mut wrong = Vec::new();
        for op in &self.ops {
            let threads = (self.block) as usize;
            let mut bad = 0;
            let mut example = String::new();
            let planes = if matches!(op.rule, Rule::Nan64) {
                1
            } else {
                op.count
            };
            for i in 0..planes * threads {
                let at = op.first * threads + i;
                let (x, y) = (ours[at], theirs[at]);
                let agrees = match op.rule {
                    Rule::Nan64 => {
                        let wide = |w: &[u32]| u64::from(w[at]) | u64::from(w[at + threads]) << 32;
                        let (x, y) = (wide(ours), wide(theirs));
                        x == y || (f64::from_bits(x).is_nan() && f64::from_bits(y).is_nan())
                    }
                    rule => agree(rule, x, y),
                };
                if !agrees {
                    bad += 1;
                    if example.is_empty() {
                        example = format!(
                            "thread {} word {}: simulator {x:#010x} ({:e}), hardware {y:#010x} ({:e})",
                            i % threads,
                            i / threads,
                            f32::from_bits(x),
                            f32::from_bits(y)
                        );
                    }
                }
            }
            if bad > 0 {
                let all = planes * threads;
                wrong.push(format!(
                    "{}: {}: {bad} of {all} differ; {example}",
                    self.name, op.name
                ));
            }
        }
        wrong
    }
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect()
}

/// Distance of two floats of one format in units of the last place.
fn ulps(x: u32, y: u32, sign: u32) -> i64 {
    let line = |v: u32| {
        let magnitude = i64::from(v & (sign - 1));
        if v & sign != 0 { -magnitude } else { magnitude }
    };
    (line(x) - line(y)).abs()
}

fn f16_value(bits: u32) -> f64 {
    half::f16::from_bits(bits as u16).to_f64()
}

fn bf16_value(bits: u32) -> f64 {
    half::bf16::from_bits(bits as u16).to_f64()
}

fn agree(rule: Rule, x: u32, y: u32) -> bool {
    let (a, b) = (f64::from(f32::from_bits(x)), f64::from(f32::from_bits(y)));
    match rule {
        _ if x == y => true,
        Rule::Bits | Rule::Nan64 => false,
        Rule::Nan32 => a.is_nan() && b.is_nan(),
        Rule::NanHalves(value) => (0..2).all(|i| {
            let (p, q) = (x >> (16 * i) & 0xffff, y >> (16 * i) & 0xffff);
            p == q || (value(p).is_nan() && value(q).is_nan())
        }),
        Rule::HalvesAbs(d, value) => (0..2).all(|i| {
            let half = |v: u32| value(v >> (16 * i) & 0xffff);
            (half(x) - half(y)).abs() <= d
        }),
        Rule::Ulp(n) => (a.is_nan() && b.is_nan()) || ulps(x, y, 1 << 31) <= n,
        Rule::F16Ulp(n) => (0..2).all(|i| {
            let half = |v: u32| v >> (16 * i) & 0xffff;
            ulps(half(x), half(y), 1 << 15) <= n
        }),
        Rule::Abs(d) => (a - b).abs() <= d || (a.is_nan() && b.is_nan()),
        Rule::Close(d) => (a - b).abs() <= d * a.abs().max(1.0),
    }
}

fn tensor_map(map: &BTreeMap<String, String>, source: u64, target: u64) -> Vec<u8> {
    let list = |key: &str| -> Vec<u64> {
        map[key]
            .split(',')
            .map(|v| v.parse().expect("a number"))
            .collect()
    };
    let (of, offset) = map["of"].split_once('+').unwrap_or((&map["of"], "0"));
    let ty = match map["ty"].as_str() {
        "u8" => TensorMapType::U8,
        "u16" => TensorMapType::U16,
        "u32" => TensorMapType::U32,
        "f32" => TensorMapType::F32,
        "f16" => TensorMapType::F16,
        "bf16" => TensorMapType::Bf16,
        other => panic!("type {other}"),
    };
    let dims = list("dims");
    let mut strides = Vec::new();
    let mut stride = ty.bytes() * dims[0];
    for dim in &dims[1..] {
        strides.push(stride);
        stride *= dim;
    }
    let base = if of == "in" { source } else { target };
    TensorMap {
        ty,
        address: base + offset.parse::<u64>().expect("a number"),
        dims,
        strides,
        box_dims: list("box").into_iter().map(|b| b as u32).collect(),
        swizzle: match map["swizzle"].as_str() {
            "0" => Swizzle::None,
            "32" => Swizzle::B32,
            "64" => Swizzle::B64,
            _ => Swizzle::B128,
        },
        fill: if map.get("fill").is_some_and(|f| f == "nan") {
            OutOfBoundsFill::Nan
        } else {
            OutOfBoundsFill::Zeros
        },
    }
    .encode()
    .expect("a map the driver takes")
    .to_vec()
}

/// The recorded answer, or why there is none.
fn answer(golden: &Golden, folder: &Path, index: &serde_json::Value) -> Result<Vec<u32>, String> {
    let facts = &index[&golden.name];
    let recorded = |key: &str| facts[key].as_str().unwrap_or("").to_owned();
    if facts.is_null() {
        return Err("no recorded answer".into());
    }
    if recorded("ptx_fnv") != format!("{:016x}", fnv(golden.ptx.as_bytes()))
        || recorded("input_fnv") != format!("{:016x}", fnv(&golden.input))
    {
        return Err("the kernel or its input changed since the answer was recorded".into());
    }
    let bytes = std::fs::read(folder.join(format!("{}.bin", golden.name)))
        .map_err(|e| format!("its answer cannot be read: {e}"))?;
    if bytes.len() != 4 * golden.out_words {
        return Err("its answer has the wrong size".into());
    }
    Ok(words_of(&bytes))
}

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the golden folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "ptx"))
        .collect();
    paths.sort();
    let answers = folder.join("answers");
    let index: serde_json::Value = std::fs::read_to_string(answers.join("index.json"))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let (mut compared, mut not_run, mut failures) = (0, Vec::new(), Vec::new());
    for path in &paths {
        let golden = Golden::read(path);
        for seed in [0, 1] {
            match (golden.simulate(seed), answer(&golden, &answers, &index)) {
                (Err(error), _) => failures.push(format!("{}: {error}", golden.name)),
                (Ok(ours), Ok(theirs)) => {
                    compared += usize::from(seed == 0);
                    failures.extend(golden.compare(&ours, &theirs));
                }
                (Ok(_), Err(why)) if seed == 0 => not_run.push(format!("{} ({why})", golden.name)),
                (Ok(_), Err(_)) => {}
            }
        }
    }
    println!(
        "golden: {compared} of {} kernels compared with hardware",
        paths.len()
    );
    if !not_run.is_empty() {
        println!("golden: NOT RUN against hardware: {}", not_run.join(", "));
        println!("golden: record answers on a GPU machine with `python3 sim/golden/record.py`");
    }
    for failure in &failures {
        println!("golden: FAILED {failure}");
    }
    assert!(!paths.is_empty(), "the golden kernels are missing");
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
