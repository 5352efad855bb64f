//! Planted faults: each file of `tests/faults` is a kernel with one mistake and its repair.
//!
//! A line `//fault …` is part of the faulty kernel only, `//fixed …` of the repaired one only. Header
//! lines say how to run it:
//!
//! ```text
//! // check: races                     the check this fault exercises
//! // kind: Race                       variant of FaultKind; `A|B` where the schedule decides
//! // message: not ordered after       part of the message
//! // at: ld.shared                    part of the PTX line the fault must name
//! // launch: grid=1 block=64 shared=256 cluster=1 max=100000 resident=64
//! // param: in 256                    256 bytes the host wrote; out: nothing wrote; u32 V: a number
//! // param: map 2 dims 64,8 box 64,8 swizzle 128   tensor map of bf16 over parameter 0's buffer
//! // seeds: 1,2,3                     seeds that show the fault; `SEEDS` if there is no such line
//! ```
//!
//! The faulty kernel must raise that fault on every seed it names, the repaired one must pass on all of `SEEDS`.

use std::collections::BTreeMap;
use std::path::Path;

use ptx_sim::{
    Checks, LaunchConfig, Memory, Module, OutOfBoundsFill, Report, SimError, Swizzle, TensorMap,
    TensorMapType, launch,
};

const SEEDS: [u64; 4] = [0, 1, 2, 3];

struct Planted {
    name: String,
    check: String,
    kind: String,
    message: String,
    at: String,
    launch: String,
    seeds: Vec<u64>,
    params: Vec<String>,
    text: String,
}

impl Planted {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let field = |key: &str| -> Vec<String> {
            text.lines()
                .filter_map(|l| l.strip_prefix(&format!("// {key}:")))
                .map(|v| v.trim().to_owned())
                .collect()
        };
        let one = |key: &str| {
            field(key)
                .first()
                .cloned()
                .unwrap_or_else(|| panic!("{}: no `// {key}:` line", path.display()))
        };
        Self {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            check: one("check"),
            kind: one("kind"),
            message: one("message"),
            at: one("at"),
            launch: one("launch"),
            seeds: match field("seeds").first() {
                Some(list) => list.split(',').map(|s| s.parse().unwrap()).collect(),
                None => SEEDS.to_vec(),
            },
            params: field("param"),
            text,
        }
    }

    /// The faulty or the repaired kernel; lines keep their numbers.
    fn ptx(&self, faulty: bool) -> String {
        let keep = if faulty { "//fault " } else { "//fixed " };
        self.text
            .lines()
            .map(|l| l.trim_start().strip_prefix(keep).unwrap_or(l))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn number(&self, key: &str, default: u32) -> u32 {
        self.launch
            .split_whitespace()
            .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
            .map_or(default, |v| v.parse().unwrap())
    }

    fn run(&self, faulty: bool, seed: u64) -> Result<Report, SimError> {
        let ptx = self.ptx(faulty);
        let module = Module::parse(&ptx).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let kernel = module.kernels().next().unwrap();
        let memory = Memory::new();
        let mut blobs: Vec<Vec<u8>> = Vec::new();
        for param in &self.params {
            blobs.push(parameter(param, &memory, &blobs));
        }
        let mut config = LaunchConfig::new(
            [self.number("grid", 1), 1, 1],
            [self.number("block", 32), 1, 1],
        )
        .shared_bytes(self.number("shared", 0))
        .max_instructions(self.number("max", 200_000).into())
        .max_resident(self.number("resident", 64))
        .checks(Checks::ALL)
        .schedule_seed(seed);
        if self.number("cluster", 1) > 1 {
            config = config.cluster([self.number("cluster", 1), 1, 1]);
        }
        let params: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        // One CPU thread: what depends on the order in which blocks run is then the same every time.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
        pool.unwrap()
            .install(|| launch(&module, kernel.name(), &config, &params, &memory))
    }
}

fn parameter(text: &str, memory: &Memory, before: &[Vec<u8>]) -> Vec<u8> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[0] {
        "in" | "out" => {
            let bytes: u64 = words[1].parse().unwrap();
            let address = memory.alloc(bytes).unwrap();
            if words[0] == "in" {
                let data: Vec<u8> = match words.get(2) {
                    Some(&"zero") => vec![0; bytes as usize],
                    _ => (0..bytes).map(|i| (i % 61) as u8).collect(),
                };
                memory.write(address, &data).unwrap();
            }
            address.to_le_bytes().to_vec()
        }
        "u32" => words[1].parse::<u32>().unwrap().to_le_bytes().to_vec(),
        "map" => {
            let of: usize = words[1].parse().unwrap();
            let list = |key: &str| -> Vec<u64> {
                let at = words.iter().position(|w| *w == key).unwrap();
                words[at + 1]
                    .split(',')
                    .map(|v| v.parse().unwrap())
                    .collect()
            };
            let dims = list("dims");
            let mut strides = Vec::new();
            let mut stride = 2 * dims[0];
            for dim in &dims[1..] {
                strides.push(stride);
                stride *= dim;
            }
            TensorMap {
                ty: TensorMapType::Bf16,
                address: u64::from_le_bytes(before[of][..].try_into().unwrap()),
                dims,
                strides,
                box_dims: list("box").into_iter().map(|b| b as u32).collect(),
                swizzle: match list("swizzle")[0] {
                    0 => Swizzle::None,
                    128 => Swizzle::B128,
                    other => panic!("swizzle {other}"),
                },
                fill: OutOfBoundsFill::Zeros,
            }
            .encode()
            .unwrap()
            .to_vec()
        }
        other => panic!("unknown parameter kind {other}"),
    }
}

fn all() -> Vec<Planted> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "ptx"))
        .collect();
    paths.sort();
    paths.iter().map(|path| Planted::read(path)).collect()
}

#[test]
fn every_planted_fault_is_caught_and_every_repair_passes() {
    let mut failures = Vec::new();
    for planted in all() {
        for seed in SEEDS {
            let name = format!("{} (seed {seed})", planted.name);
            if let Err(error) = planted.run(false, seed) {
                failures.push(format!("{name}: the repaired kernel fails: {error}"));
            }
            if !planted.seeds.contains(&seed) {
                continue;
            }
            match planted.run(true, seed) {
                Err(SimError::Fault(fault)) => {
                    let text = fault.to_string();
                    let kind = format!("{:?}", fault.kind);
                    let ok = planted.kind.split('|').any(|k| kind.starts_with(k))
                        && text.contains(&planted.message)
                        && fault.text.contains(&planted.at);
                    if !ok {
                        failures.push(format!(
                            "{name}: wanted {} `{}` at `{}`, got {text}",
                            planted.kind, planted.message, planted.at
                        ));
                    }
                }
                Err(other) => failures.push(format!("{name}: {other}")),
                Ok(_) => failures.push(format!("{name}: the fault was not caught")),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn every_check_has_two_faults_or_more() {
    let mut by_check: BTreeMap<String, usize> = BTreeMap::new();
    for planted in all() {
        *by_check.entry(planted.check).or_default() += 1;
    }
    for check in [
        "bounds",
        "alignment",
        "uninitialised",
        "shared races",
        "global races",
        "proxies",
        "asynchronous copies",
        "wgmma registers",
        "partial warps",
        "barrier counts",
        "deadlock",
        "mbarrier",
        "register budget",
        "clusters",
        "start order",
        "scopes",
    ] {
        assert!(
            by_check.get(check).is_some_and(|&n| n >= 2),
            "{check}: {by_check:?}"
        );
    }
    assert!(by_check.values().sum::<usize>() >= 25);
}
