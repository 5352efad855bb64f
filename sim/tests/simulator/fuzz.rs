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
        kernel.divergences();
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
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(600),
        failure_persistence: None, ..ProptestConfig::default() })]

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
    fn random_programs_never_panic(
        program in prop::collection::vec(statement(), 1..60),
        seed in 0..3u64,
    ) {
        let text = format!("{HEAD}{}{TAIL}", program.join("\n"));
        // Every statement is well-formed on its own, so the whole parses and runs.
        Module::parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        exercise(&text, seed);
    }
}

const HEAD: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p, .param .align 64 .b8 q[128])
{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %rs<9>; .reg .pred %p<9>;
.shared .align 128 .b8 s[4096];
.local .align 16 .b8 l[64];
T: .branchtargets L, M;
mov.u32 %r1, %tid.x; mov.u32 %r2, s; mov.b32 %r3, 3; mov.b32 %r4, 0; mov.b32 %r5, -1;
ld.param.b64 %rd1, [p]; mov.b64 %rd2, l; mov.b64 %rd3, 64; cvta.local.u64 %rd4, %rd2;
setp.eq.u32 %p1, %r1, 0; setp.lt.u32 %p2, %r1, 40;
L:
";
const TAIL: &str = "\nM:\nret;\n}\n";

/// One statement: a template with random registers, under a random guard.
fn statement() -> impl Strategy<Value = String> {
    let guard = "(@!?%p[1-4] )?";
    let templates = [
        "((add|sub|mul.lo|div|rem|min|max).(s|u)32|(and|or|xor).b32) %r[1-8], %r[1-8], (%r[1-8]|(-?(4|16|64|3)|0));",
        "(add|sub|min|max|mul.rn|div.rn|add.rz|sub.ftz).f32 %r[1-8], %r[1-8], %r[1-8];",
        "(div|rem|mul.hi|add).(s|u)64 %rd[1-8], %rd[1-8], %rd[1-8];",
        "((shl.b|shr.s|shr.u)16 %rs[1-4], %rs[1-4]|(shl.b|shr.s)32 %r[1-8], %r[1-8]|shr.u64 %rd[5-8], %rd[1-8]), %r[1-8];",
        "(bfe.u32|bfe.s32|prmt.b32|shf.l.wrap.b32|mad.lo.s32|dp4a.s32.u32) %r[1-8], %r[1-8], %r[1-8], %r[1-8];",
        "bfi.b64 %rd[1-4], %rd[1-4], %rd[1-4], %r[1-8], %r[1-8];",
        "cvt.(rni.s32.f32 %r6|rzi.u64.f32 %rd6|rmi.s8.f32 %r6|rn.f16.f32 %rs1|rn.bf16.f32 %rs2), %r[1-8];",
        "setp.(lt|eq|ge).s32 %p[1-7], %r[1-8], %r[1-8];",
        "setp.(ltu|neu|num).f32 %p[1-7]\\|%p[1-7], %r[1-8], %r[1-8];",
        "ld(.global|.shared|.local|).b(32 %r[3-8]|64 %rd[5-8]|8 %rs[1-4]), \\[%rd[1-4]\\+(-?(4|16|64|3)|0)\\];",
        "st(.global|.shared|.local|).b32 \\[%rd[1-4]\\+(-?(4|16|64|3)|0)\\], %r[1-8];",
        "ld.(global|shared|local).v4.b32 \\{%r1, %r2, %r3, %r4\\}, \\[%rd[1-4]\\+(-?(4|16|64|3)|0)\\];",
        "st.(global|shared).b16 \\[%rd[1-4]\\], %rs[1-4];",
        "ld.shared.b32 %r[4-8], \\[%r2\\+(0|4|16|64|128|256|1024|3)\\];",
        "st.shared.(b32 \\[%r2\\+(0|4|16|64|128|256|1024|3)\\], %r[1-8]|b16 \\[%r2\\+(0|4|16|64|128|256|1024|3)\\], %rs[1-4]);",
        "atom.(global|shared).(add|max|exch).u32 %r[1-8], \\[%rd[1-4]\\], %r[1-8];",
        "shfl.sync.(idx|up|down|bfly).b32 %r[1-8]\\|%p[1-7], %r[1-8], %r[1-8], %r[1-8], %r[1-8];",
        "(vote.sync.ballot.b32 %r6, %p[1-4]|redux.sync.add.s32 %r6, %r[1-8]|match.any.sync.b32 %r6, %r[1-8]|elect.sync %r6\\|%p5), (%r[1-8]|-1);",
        "bar.(sync|arrive) (0|1|2|15|16|99), (32|64|128|%r[1-8]);",
        "bar.(sync 0|warp.sync -1|warp.sync %r[1-8]);",
        "barrier.sync [0-3];",
        "bra(.uni)? [LM];",
        "brx.idx %r[1-8], T;",
        "(exit|trap|membar.gl|fence.proxy.async|fence.mbarrier_init.release.cluster|cp.async.commit_group|cp.async.wait_all);",
        "cp.async.ca.shared.global \\[%r2\\+(0|4|16|64|128|256|1024|3)\\], \\[%rd[1-3]\\], (4|8|16)(, %r[1-8])?;",
        "cp.async.bulk.(commit_group|wait_group(.read)? [0-2]);",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \\[%r2\\+(0|4|16|64|128|256|1024|3)\\], \\[%rd1\\], (16|64|%r[1-8]), \\[%r2\\];",
        "cp.async.bulk.global.shared::cta.bulk_group \\[%rd1\\], \\[%r2\\], (16|64|%r[1-8]);",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes \\[%r2\\], \\[%rd[1-4], \\{%r1, %r2\\}\\], \\[%r2\\];",
        "mbarrier.(init|expect_tx|complete_tx).shared.b64 \\[%r2\\], (1|2|32|%r[1-8]);",
        "mbarrier.arrive(.expect_tx)?.shared.b64 %rd[5-8], \\[%r2\\], (1|16|%r[1-8]);",
        "mbarrier.(try|test)_wait.parity.shared.b64 %p[1-7], \\[%r2\\], %r[3-5];",
        "mbarrier.inval.shared.b64 \\[%r2\\];",
        "cp.async.mbarrier.arrive(.noinc)?.shared.b64 \\[%r2\\];",
        "ldmatrix.sync.aligned.m8n8.x2(.trans)?.shared.b16 \\{%r5, %r6\\}, \\[%r2\\];",
        "stmatrix.sync.aligned.m8n8.x1(.trans)?.shared.b16 \\[%r2\\], \\{%r5\\};",
        "mma.sync.aligned.m16n8k16.row.col.f32.(f16.f16|bf16.bf16).f32 \\{%r5,%r6,%r7,%r8\\}, \\{%r1,%r2,%r3,%r4\\}, \\{%r1,%r2\\}, \\{%r5,%r6,%r7,%r8\\};",
        "wgmma.(fence.sync.aligned|commit_group.sync.aligned|wait_group.sync.aligned [01]);",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 \\{%r5,%r6,%r7,%r8\\}, %rd[1-8], %rd[1-8], %p[1-7], 1, -1, [01], [01];",
        "barrier.cluster.(arrive|wait);",
        "mapa.shared::cluster.u32 %r6, %r2, %r[1-8];",
        "setmaxnreg.(inc|dec).sync.aligned.u32 (24|240);",
    ];
    let strategies: Vec<_> = templates
        .iter()
        .map(|t| {
            prop::string::string_regex(&format!("{guard}({})", t.replace('.', "\\."))).unwrap()
        })
        .collect();
    prop::strategy::Union::new(strategies)
}
