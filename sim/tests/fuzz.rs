//! No PTX text, however broken, makes the parser or the machine panic or hang.

use std::path::Path;

use proptest::prelude::*;
use ptx_sim::{Checks, LaunchConfig, Memory, Module, launch};

/// Real kernels to break: the planted faults use every family of instructions.
fn corpus() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults");
    let mut texts: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        // Both variants at once: more text, more mistakes.
        .map(|text| text.replace("//fault ", "").replace("//fixed ", ""))
        .collect();
    texts.sort();
    texts
}

/// One edit: where (as a fraction of the text), and what.
#[derive(Clone, Debug)]
enum Edit {
    DropToken(f64),
    CopyToken(f64, f64),
    SwapTokens(f64, f64),
    Insert(f64, &'static str),
    Byte(f64, u8),
    Number(f64, u64),
}

const SNIPPETS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ";",
    ",",
    "@%p1",
    "!",
    "-",
    "+",
    "|",
    "_",
    ":",
    ".v4",
    "/*",
    "\"",
    "%r1",
    "%rd1",
    "99999999999999999999",
    "0x",
    "bra READY;",
    "exit;",
];

fn edit() -> impl Strategy<Value = Edit> {
    let at = || 0.0..1.0f64;
    prop_oneof![
        at().prop_map(Edit::DropToken),
        (at(), at()).prop_map(|(a, b)| Edit::CopyToken(a, b)),
        (at(), at()).prop_map(|(a, b)| Edit::SwapTokens(a, b)),
        (at(), prop::sample::select(SNIPPETS.to_vec())).prop_map(|(a, s)| Edit::Insert(a, s)),
        (at(), any::<u8>()).prop_map(|(a, b)| Edit::Byte(a, b)),
        (at(), prop_oneof![0..70u64, any::<u64>()]).prop_map(|(a, n)| Edit::Number(a, n)),
    ]
}

fn tokens(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    for c in text.chars() {
        let joins = |c: char| c.is_alphanumeric() || "_.$%:".contains(c);
        let last = out.last_mut().unwrap();
        if last.chars().last().is_some_and(|l| joins(l) && joins(c)) {
            last.push(c);
        } else {
            out.push(c.to_string());
        }
    }
    out
}

fn apply(text: &str, edits: &[Edit]) -> String {
    let mut t = tokens(text);
    for e in edits {
        let n = t.len();
        let at = |f: f64| ((f * n as f64) as usize).min(n - 1);
        match *e {
            Edit::DropToken(a) => t[at(a)].clear(),
            Edit::CopyToken(a, b) => t[at(b)] = t[at(a)].clone(),
            Edit::SwapTokens(a, b) => t.swap(at(a), at(b)),
            Edit::Insert(a, s) => t.insert(at(a), s.to_owned()),
            Edit::Byte(a, b) => t[at(a)].push(char::from(b)),
            Edit::Number(a, v) => {
                // The next number in the text takes another value.
                let from = at(a);
                if let Some(i) = (from..n).find(|&i| t[i].parse::<u64>().is_ok()) {
                    t[i] = v.to_string();
                }
            }
        }
    }
    t.concat()
}

/// Parses, and runs what parses with plausible parameters. Any outcome is fine but a panic.
fn exercise(ptx: &str, seed: u64) {
    let Ok(module) = Module::parse(ptx) else {
        return;
    };
    let memory = Memory::new();
    let buffer = memory.alloc(4096).unwrap();
    memory.write(buffer, &[1; 2048]).unwrap();
    for kernel in module.kernels() {
        let blobs: Vec<Vec<u8>> = kernel
            .parameters()
            .iter()
            .map(|p| {
                let mut blob = vec![0; p.bytes as usize];
                let n = blob.len().min(8);
                blob[..n].copy_from_slice(&buffer.to_le_bytes()[..n]);
                blob
            })
            .collect();
        let params: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        let config = LaunchConfig::new([2, 1, 1], [128, 1, 1])
            .shared_bytes(8192)
            .max_instructions(3000)
            .checks(Checks::ALL)
            .schedule_seed(seed);
        // A refusal or a fault is as good as success.
        let _ = launch(&module, kernel.name(), &config, &params, &memory);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(600), ..ProptestConfig::default() })]

    #[test]
    fn broken_kernels_never_panic(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec(edit(), 0..8),
        seed in 0..4u64,
    ) {
        let corpus = corpus();
        let text = apply(&corpus[which.index(corpus.len())], &edits);
        exercise(&text, seed);
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,400}") {
        exercise(&text, 0);
    }

    #[test]
    fn token_soup_never_panics(words in prop::collection::vec(prop::sample::select(SOUP.to_vec()), 0..120)) {
        let body = words.join(" ");
        exercise(&format!(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>; {body} ret; }}"), 1);
        exercise(&body, 0);
    }
}

const SOUP: [&str; 40] = [
    ".visible .entry f()",
    "{",
    "}",
    ";",
    "mov.b32 %r1, %tid.x;",
    "add.s32 %r2, %r1, %r1;",
    "ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd1];",
    "st.shared.b32 [%r1], %r2;",
    "bar.sync 0;",
    "bar.sync %r1, 64;",
    "@%p1 bra L;",
    "L:",
    "setp.lt.s32 %p1, %r1, 7;",
    "@!%p2 exit;",
    "shfl.sync.idx.b32 %r3, %r1, %r2, %r4, %r5;",
    "atom.global.add.u32 %r1, [%rd1], %r2;",
    "mbarrier.init.shared.b64 [%r1], %r2;",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;",
    "cp.async.ca.shared.global [%r1], [%rd1], 4;",
    "cp.async.wait_all;",
    "wgmma.fence.sync.aligned;",
    "wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group.sync.aligned 0;",
    "bar.warp.sync %r1;",
    "barrier.cluster.arrive;",
    "barrier.cluster.wait;",
    "div.s32 %r1, %r2, %r3;",
    "shl.b64 %rd1, %rd2, %r1;",
    "cvt.rni.s32.f32 %r1, %r2;",
    "mul.hi.s64 %rd1, %rd2, %rd3;",
    ".shared .align 4 .b8 s[64];",
    ".local .b8 l[8];",
    "mov.b64 %rd1, l;",
    "ld.param.b64 %rd1, [p];",
    "bra.uni L;",
    "call f, ();",
    "redux.sync.add.s32 %r1, %r2, %r3;",
    "elect.sync %r1|%p1, %r2;",
    "setmaxnreg.inc.sync.aligned.u32 240;",
    "brx.idx %r1, T; T: .branchtargets L;",
];
