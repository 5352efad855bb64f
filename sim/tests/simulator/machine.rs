//! Results of kernels: control flow, calls, memory spaces, barriers, schedules, statistics.

use std::collections::BTreeSet;

use ptx_sim::{
    Checks, FaultKind, LaunchConfig, Memory, MemoryError, Module, Report, SimError, launch,
};

const HEAD: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n";
const REGS: &str = ".reg .pred %p<16>; .reg .b16 %rs<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>;\n";

struct Run {
    words: Vec<u32>,
    report: Report,
}

/// Runs kernel `k(u64 out)` of `ptx`; returns its `words` output words.
fn run_module(ptx: &str, words: usize, config: &LaunchConfig) -> Result<Run, SimError> {
    let module = Module::parse(ptx).unwrap_or_else(|e| panic!("{e}"));
    let memory = Memory::new();
    let out = memory.alloc(4 * words as u64)?;
    let report = launch(&module, "k", config, &[&out.to_le_bytes()], &memory)?;
    let mut bytes = vec![0; 4 * words];
    memory.read(out, &mut bytes)?;
    let words = bytes
        .chunks_exact(4)
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect();
    Ok(Run { words, report })
}

/// A kernel whose body leaves each thread's result in %r9.
fn body(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}
.visible .entry k(.param .u64 out)
{{
{REGS}
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd1, %rd2;
{body}
    st.global.b32 [%rd3], %r9;
    ret;
}}
"
    )
}

fn threads(before: &str, text: &str, grid: u32, block: u32) -> Vec<u32> {
    let config = LaunchConfig::new([grid, 1, 1], [block, 1, 1]).shared_bytes(4096);
    let words = (grid * block) as usize;
    run_module(&body(before, text), words, &config)
        .unwrap_or_else(|e| panic!("{e}"))
        .words
}

/// `min.relu` and `max.relu` (PTX ISA, "Integer Arithmetic Instructions: min, max"): below 0 comes 0. Other types have none.
#[test]
fn relu_takes_the_place_of_what_is_negative() {
    let pairs = [(-7, -3), (-7, 5), (4, 9), (i32::MIN, i32::MAX), (0, -1)];
    for (op, of) in [("min", i32::min as fn(i32, i32) -> i32), ("max", i32::max)] {
        for (a, b) in pairs {
            let text = format!("mov.b32 %r5, {a}; mov.b32 %r6, {b}; {op}.relu.s32 %r9, %r5, %r6;");
            let expected = of(a, b).max(0) as u32;
            assert_eq!(threads("", &text, 1, 1), [expected], "{op} {a} {b}");
        }
        let text = body("", &format!("{op}.relu.u32 %r9, %r1, %r2;"));
        let refused = run_module(&text, 1, &LaunchConfig::new([1, 1, 1], [1, 1, 1]));
        assert!(refused.is_err(), "{op} of u32");
    }
}

#[test]
fn nested_divergence_and_loops() {
    let got = threads(
        "",
        "
    mov.b32 %r9, 0;
    mov.b32 %r10, 0;
LOOP:
    and.b32 %r11, %r1, 3;
    setp.eq.u32 %p1, %r11, 0;
    @%p1 bra EVEN;
    setp.eq.u32 %p2, %r11, 1;
    @%p2 bra ONE;
    add.s32 %r9, %r9, 100;
    bra.uni JOIN;
ONE:
    add.s32 %r9, %r9, 10;
    bra.uni JOIN;
EVEN:
    add.s32 %r9, %r9, 1;
JOIN:
    bar.warp.sync -1;
    add.s32 %r10, %r10, 1;
    shfl.sync.idx.b32 %r12, %r10, 0, 31, -1;
    setp.lt.u32 %p3, %r12, 5;
    @%p3 bra LOOP;
    // A loop that each lane leaves at its own time.
    mov.b32 %r13, 0;
OWN:
    add.s32 %r13, %r13, 1;
    add.s32 %r9, %r9, 1000;
    setp.lt.u32 %p4, %r13, %r1;
    @%p4 bra OWN;
    bar.sync 0;
",
        1,
        64,
    );
    for (t, &v) in got.iter().enumerate() {
        let branch = [1, 10, 100, 100][t % 4];
        assert_eq!(v as usize, 5 * branch + 1000 * t.max(1), "thread {t}");
    }
}

#[test]
fn early_returns_do_not_hold_up_barriers() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out)
{{
{REGS}
    .shared .align 4 .b8 flags[256];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], 7;
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra DONE;
    bar.sync 0;
    st.global.b32 [%rd3], 9;
DONE:
    ret;
}}"
    );
    let config = LaunchConfig::new([1, 1, 1], [64, 1, 1]);
    let got = run_module(&text, 64, &config).unwrap().words;
    assert!(
        got.iter()
            .enumerate()
            .all(|(t, &v)| v == if t % 2 == 0 { 7 } else { 9 })
    );
}

#[test]
fn calls_are_inlined_with_their_parameters() {
    let functions = "
.func (.param .b32 result) twice_plus(.param .align 8 .b8 pair[8], .param .b32 extra)
{
    .reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .pred %p<2>;
    ld.param.b32 %r1, [pair];
    ld.param.b32 %r2, [pair+4];
    ld.param.b32 %r3, [extra];
    add.s32 %r4, %r1, %r2;
    setp.gt.s32 %p1, %r3, 5;
    @%p1 bra BIG;
    st.param.b32 [result], %r4;
    ret;
BIG:
    shl.b32 %r4, %r4, 1;
    st.param.b32 [result], %r4;
    ret;
}
";
    let call = "
    {
    .param .align 8 .b8 p0[8]; .param .b32 p1; .param .b32 back;
    st.param.b32 [p0], %r1;
    st.param.b32 [p0+4], 1;
    st.param.b32 [p1], %r1;
    call.uni (back), twice_plus, (p0, p1);
    ld.param.b32 %r9, [back];
    }
";
    let got = threads(functions, call, 1, 32);
    for (t, &v) in got.iter().enumerate() {
        let sum = t as u32 + 1;
        assert_eq!(v, if t > 5 { 2 * sum } else { sum });
    }
}

#[test]
fn indexed_branches_reach_their_targets() {
    let got = threads(
        "",
        "
    and.b32 %r10, %r1, 3;
T: .branchtargets A, B, C, B;
    brx.idx %r10, T;
A:  mov.b32 %r9, 10;
    bra.uni E;
B:  mov.b32 %r9, 20;
    bra.uni E;
C:  mov.b32 %r9, 30;
E:
    bar.sync 0;
",
        1,
        32,
    );
    assert!(
        got.iter()
            .enumerate()
            .all(|(t, &v)| v == [10, 20, 30, 20][t % 4])
    );
}

#[test]
fn module_variables_are_initialised_and_generic_addresses_work() {
    let variables = "
.global .align 4 .b32 table[4] = {11, 22, 33, 0x2c};
.global .align 8 .u64 pointer = table+8;
.const .align 2 .b16 small[2] = {5, 6};
.global .align 4 .b32 zeros[2];
.shared .align 4 .b8 cell[128];
";
    let got = threads(
        variables,
        "
    mov.b64 %rd4, pointer;
    ld.global.b64 %rd5, [%rd4];
    ld.b32 %r9, [%rd5];              // 33
    ld.const.b16 %rs1, [small+2];
    cvt.u32.u16 %r10, %rs1;
    add.s32 %r9, %r9, %r10;          // 39
    ld.global.b32 %r10, [zeros+4];
    add.s32 %r9, %r9, %r10;
    // Shared memory through a generic address.
    mov.u64 %rd6, cell;
    cvta.shared.u64 %rd7, %rd6;
    mul.wide.u32 %rd8, %r1, 4;
    add.s64 %rd7, %rd7, %rd8;
    st.b32 [%rd7], %r9;
    ld.b32 %r11, [%rd7];
    add.s32 %r9, %r9, %r11;          // 78
    isspacep.shared %p1, %rd7;
    selp.b32 %r12, 1000, 0, %p1;
    add.s32 %r9, %r9, %r12;
",
        1,
        32,
    );
    assert!(got.iter().all(|&v| v == 1078));
}

#[test]
fn three_dimensional_geometry() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out)
{{
{REGS}
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
    mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z;
    mov.u32 %r7, %nctaid.x; mov.u32 %r8, %nctaid.y;
    mad.lo.u32 %r10, %r6, %r8, %r5;
    mad.lo.u32 %r10, %r10, %r7, %r4;
    mad.lo.u32 %r11, %r3, 3, %r2;
    mad.lo.u32 %r11, %r11, 5, %r1;
    mad.lo.u32 %r12, %r10, 30, %r11;
    mul.wide.u32 %rd2, %r12, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r12;
    ret;
}}"
    );
    let config = LaunchConfig::new([2, 3, 2], [5, 3, 2]);
    let got = run_module(&text, 12 * 30, &config).unwrap().words;
    assert!(got.iter().enumerate().all(|(i, &v)| v as usize == i));
}

#[test]
fn shared_addresses_name_their_block_of_the_cluster() {
    let dynamic = ".extern .shared .align 16 .b8 smem[];\n.shared .align 4 .b8 fixed[4];";
    // Each expression of rank 1's own addresses, for both blocks.
    let both = |text: &str| {
        let text = body(dynamic, text).replace(
            "(.param .u64 out)",
            "(.param .u64 out)\n.reqnctapercluster 2, 1, 1",
        );
        let config = LaunchConfig::new([2, 1, 1], [1, 1, 1]).shared_bytes(64);
        run_module(&text, 2, &config)
            .unwrap_or_else(|e| panic!("{e}"))
            .words
    };
    for variable in ["smem", "fixed"] {
        let address = format!("mov.u32 %r5, {variable};");
        let rank = both(&format!("{address} shr.u32 %r9, %r5, 24;"));
        assert_eq!(rank, [0, 1], "{variable}");
        let rank = both(&format!(
            "{address} getctarank.shared::cluster.u32 %r9, %r5;"
        ));
        assert_eq!(rank, [0, 1], "{variable}");
        let generic = format!("mov.u64 %rd4, {variable}; cvta.shared.u64 %rd5, %rd4;");
        let rank = both(&format!("{generic} getctarank.u64 %r9, %rd5;"));
        assert_eq!(rank, [0, 1], "{variable}");
        // A memory operand that names the variable means the own block's, at an offset too.
        let named = format!("st.shared.b32 [{variable}], %r2; ld.shared.b32 %r9, [{variable}];");
        assert_eq!(both(&named), [0, 1], "{variable}");
        // The address bits in a matrix descriptor are the same in every block.
        let bits = both(&format!(
            "{address} shr.u32 %r6, %r5, 4; and.b32 %r9, %r6, 0x3fff;"
        ));
        assert_eq!(bits[0], bits[1], "{variable}");
        // An own address equals the result of `mapa` for the own rank.
        let mapped = "mov.u32 %r6, %cluster_ctarank; mapa.shared::cluster.u32 %r7, %r5, %r6;";
        let difference = both(&format!("{address} {mapped} sub.u32 %r9, %r7, %r5;"));
        assert_eq!(difference, [0, 0], "{variable}");
    }
    // Generic: rank 0's memory is in the window, but not that of rank 1's own block.
    let own = "mov.u64 %rd4, smem; cvta.shared.u64 %rd5, %rd4;";
    let is_own = "isspacep.shared %p1, %rd6; selp.u32 %r9, 1, 0, %p1;";
    assert_eq!(both(&format!("{own} mov.u64 %rd6, %rd5; {is_own}")), [1, 1]);
    let first = "mapa.u64 %rd6, %rd5, 0;";
    assert_eq!(both(&format!("{own} {first} {is_own}")), [1, 0]);
    let first = "and.b64 %rd6, %rd5, 0xffffffff00ffffff;";
    assert_eq!(both(&format!("{own} {first} {is_own}")), [1, 0]);
    let in_cluster = is_own.replace("shared", "shared::cluster");
    assert_eq!(both(&format!("{own} {first} {in_cluster}")), [1, 1]);
    let global = "mov.u64 %rd6, %rd1;";
    assert_eq!(both(&format!("{own} {global} {in_cluster}")), [0, 0]);
    // A parameter of a copy: back in the window, a generic address still names its block.
    let back = "cvta.to.shared.u64 %rd6, %rd5; cvt.u32.u64 %r5, %rd6; shr.u32 %r9, %r5, 24;";
    assert_eq!(both(&format!("{own} {back}")), [0, 1]);
}

#[test]
fn reducing_barriers_give_everyone_the_result() {
    let got = threads(
        "",
        "
    setp.lt.u32 %p1, %r1, 40;
    barrier.red.popc.aligned.u32 %r9, 1, %p1;
    barrier.red.and.aligned.pred %p2, 2, 96, %p1;
    bar.red.or.pred %p3, 3, 96, %p1;
    selp.b32 %r10, 1000, 0, %p2;
    selp.b32 %r11, 5000, 0, %p3;
    add.s32 %r9, %r9, %r10;
    add.s32 %r9, %r9, %r11;
",
        1,
        96,
    );
    assert!(got.iter().all(|&v| v == 5040), "{got:?}");
}

/// Blocks that hand a value on in turn: a later block waits for an earlier one's flag.
#[test]
fn blocks_that_wait_for_each_other_make_progress() {
    let text = format!(
        "{HEAD}.global .align 4 .b32 turn;
.visible .entry k(.param .u64 out)
{{
{REGS}
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    // The last block goes first.
    sub.u32 %r3, %r2, %r1;
    add.u32 %r3, %r3, -1;
    mov.b64 %rd4, turn;
WAIT:
    ld.acquire.gpu.global.u32 %r4, [%rd4];
    setp.ne.u32 %p1, %r4, %r3;
    @%p1 bra WAIT;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r1;
    add.u32 %r4, %r4, 1;
    st.release.gpu.global.u32 [%rd4], %r4;
    ret;
}}"
    );
    let config = LaunchConfig::new([6, 1, 1], [1, 1, 1]);
    let got = run_module(&text, 6, &config).unwrap().words;
    assert_eq!(got, [5, 4, 3, 2, 1, 0]);
}

#[test]
fn a_seed_reproduces_its_schedule_and_seeds_differ() {
    // Which warp draws which ticket depends on the schedule only.
    let text = body(
        ".global .align 4 .b32 ticket;",
        "
    mov.b64 %rd4, ticket;
    atom.global.add.u32 %r9, [%rd4], 1;
",
    );
    let with = |seed| {
        let config = LaunchConfig::new([1, 1, 1], [256, 1, 1]).schedule_seed(seed);
        run_module(&text, 256, &config).unwrap().words
    };
    assert_eq!(with(3), with(3));
    assert!((1..5).any(|seed| with(seed) != with(seed + 1)));
}

#[test]
fn without_checks_a_missing_wait_reads_stale_data() {
    let text = |wait: &str| {
        format!(
            "{HEAD}.extern .shared .align 16 .b8 smem[];
.global .align 16 .b32 source[4] = {{1, 2, 3, 4}};
.visible .entry k(.param .u64 out)
{{
{REGS}
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, smem;
    st.shared.b32 [%r1], 99;
    mov.b64 %rd2, source;
    cp.async.cg.shared.global [%r1], [%rd2], 16;
    cp.async.commit_group;
    {wait}
    ld.shared.b32 %r2, [%r1];
    st.global.b32 [%rd1], %r2;
    ret;
}}"
        )
    };
    let config = LaunchConfig::new([1, 1, 1], [1, 1, 1])
        .shared_bytes(16)
        .checks(Checks::NONE);
    let first = |wait| run_module(&text(wait), 1, &config).unwrap().words[0];
    assert_eq!(first("cp.async.wait_group 0;"), 1);
    assert_eq!(first(""), 99);
}

#[test]
fn statistics_count_by_line() {
    let text = body(
        ".shared .align 4 .b8 tile[4096];",
        "
    mov.u32 %r10, tile;
    shl.b32 %r11, %r1, 2;
    add.s32 %r12, %r10, %r11;
    st.shared.b32 [%r12], %r1;       // one word a bank
    shl.b32 %r13, %r1, 7;
    add.s32 %r14, %r10, %r13;
    st.shared.b32 [%r14], %r1;       // every word in bank 0
    mov.b32 %r9, 0;
",
    );
    let config = LaunchConfig::new([2, 1, 1], [32, 1, 1]);
    // The second store overwrites a word of the first: order them.
    let text = text.replace("shl.b32 %r13", "bar.sync 0;\n    shl.b32 %r13");
    let report = run_module(&text, 64, &config).unwrap().report;
    let statistics = report.statistics.unwrap();
    let stores: Vec<_> = statistics
        .lines
        .iter()
        .filter(|l| l.opcode == "st.shared.b32")
        .collect();
    assert_eq!(stores[0].bank_conflicts(), 0);
    assert_eq!(stores[1].bank_conflicts(), 2 * 31);
    assert_eq!(statistics.executed("st.shared"), 4);
    let global = statistics
        .lines
        .iter()
        .find(|l| l.opcode == "st.global.b32")
        .unwrap();
    assert_eq!((global.global_requests, global.sectors), (2, 8));
    assert_eq!(
        statistics.thread_instructions,
        report.warp_instructions * 32
    );
    assert!(statistics.to_string().contains("st.shared.b32"));
}

#[test]
fn launches_that_cannot_run_are_refused() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out)\n.maxntid 64, 1, 1\n.reqnctapercluster 2, 1, 1\n{{ ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let memory = Memory::new();
    let try_it = |config: &LaunchConfig, params: &[&[u8]]| {
        launch(&module, "k", config, params, &memory)
            .unwrap_err()
            .to_string()
    };
    let p = 0u64.to_le_bytes();
    let good = LaunchConfig::new([2, 1, 1], [64, 1, 1]);
    launch(&module, "k", &good, &[&p], &memory).unwrap();
    for (config, what) in [
        (LaunchConfig::new([2, 1, 1], [65, 1, 1]), ".maxntid"),
        (
            LaunchConfig::new([3, 1, 1], [64, 1, 1]),
            "multiple of the cluster",
        ),
        (LaunchConfig::new([0, 1, 1], [64, 1, 1]), "empty"),
        (good.clone().cluster([4, 1, 1]), ".reqnctapercluster"),
        (good.clone().shared_bytes(1 << 20), "shared memory"),
    ] {
        let message = try_it(&config, &[&p]);
        assert!(message.contains(what), "{message}");
    }
    assert!(try_it(&good, &[]).contains("0 parameters given"));
    assert!(try_it(&good, &[&p[..4]]).contains("4 given"));
    let unknown = launch(&module, "x", &good, &[&p], &memory).unwrap_err();
    assert!(unknown.to_string().contains("it has `k`"));
}

#[test]
fn errors_name_line_block_and_thread() {
    let text =
        body("", "mov.b32 %r9, 0;").replace("st.global.b32 [%rd3],", "st.global.b32 [%rd3+4],");
    let config = LaunchConfig::new([3, 1, 1], [32, 1, 1]);
    let error = run_module(&text, 96, &config).err().unwrap();
    let SimError::Fault(fault) = &error else {
        panic!("{error}");
    };
    assert_eq!((fault.block, fault.thread), ([2, 0, 0], Some([31, 0, 0])));
    assert_eq!(fault.text, "st.global.b32 [%rd3+4], %r9;");
    let line = text.lines().position(|l| l.contains("[%rd3+4]")).unwrap() + 1;
    assert_eq!(fault.line as usize, line);
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }));
    let parse = Module::parse("\n\n.visible .entry k() { add.s32 %r1, %r2, %r3; }").unwrap_err();
    assert_eq!(parse.line, 3);
    assert!(parse.to_string().contains("unknown register"));
}

#[test]
fn unsupported_instructions_are_listed_beforehand() {
    let text = body("", "frob.b32 %r9, %r1;");
    let module = Module::parse(&text).unwrap();
    let list = module.kernels().next().unwrap().unsupported();
    assert_eq!(list.len(), 1);
    assert!(list[0].2.contains("frob"));
}

#[test]
fn host_memory_operations_fail_with_their_reason() {
    let memory = Memory::new();
    let a = memory.alloc(8).unwrap();
    assert!(matches!(
        memory.read(a, &mut [0; 8]),
        Err(MemoryError::Uninitialised { unwritten: 8, .. })
    ));
    assert!(matches!(
        memory.write(a + 4, &[0; 8]),
        Err(MemoryError::OutOfBounds {
            nearest_bytes: 8,
            ..
        })
    ));
}

/// All threads of a block arrive at an mbarrier, `bar`, that waits for 128.
const ARRIVE: &str = "
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 128;
READY:
    bar.sync 0;
    mbarrier.arrive.shared::cta.b64 _, [bar];
";

/// How often warps ask until a phase ends depends on the schedule, and what they execute otherwise does not.
#[test]
fn instructions_without_questions_in_vain_are_the_same_on_every_schedule() {
    let text = body(
        ".shared .align 8 .b64 bar;",
        &format!(
            "{ARRIVE}
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;
    mov.b32 %r9, 0;
"
        ),
    );
    let counts: Vec<_> = (0..20)
        .map(|seed| {
            let config = LaunchConfig::new([1, 1, 1], [128, 1, 1]).schedule_seed(seed);
            let report = run_module(&text, 128, &config).unwrap().report;
            (report.warp_instructions, report.asked_in_vain)
        })
        .collect();
    let vain: BTreeSet<_> = counts.iter().map(|(_, vain)| vain).collect();
    let others: BTreeSet<_> = counts.iter().map(|(all, vain)| all - vain).collect();
    assert!(vain.len() > 1, "{vain:?}");
    assert_eq!(others.len(), 1, "{others:?}");
}

/// A wait may return false whenever it can not know better, and only then.
#[test]
fn a_wait_for_what_is_known_to_have_ended_is_true() {
    let waits = |sync: &str| {
        format!(
            "{ARRIVE}
    {sync}
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    selp.u32 %r9, 1, 0, %p2;
    mbarrier.test_wait.parity.shared::cta.b64 %p3, [bar], 1;     // of the phase before
    selp.u32 %r10, 2, 0, %p3;
    add.u32 %r9, %r9, %r10;
"
        )
    };
    let with = |sync: &str, seed| {
        let config = LaunchConfig::new([1, 1, 1], [128, 1, 1]).schedule_seed(seed);
        let text = body(".shared .align 8 .b64 bar;", &waits(sync));
        run_module(&text, 128, &config)
            .unwrap_or_else(|e| panic!("{e}"))
            .words
    };
    let falses = |sync: &str| {
        let answers = (0..20).flat_map(|seed| with(sync, seed));
        answers.filter(|a| a & 1 == 0).count()
    };
    // Every arrival is ordered before: there is nothing left to wait for.
    assert_eq!(falses("bar.sync 0;"), 0);
    // Otherwise some waits, and none on seed 0.
    let drawn = falses("");
    assert!((900..2000).contains(&drawn), "{drawn} of 2560");
    assert!(with("", 0).iter().all(|a| a & 1 == 1));
}
