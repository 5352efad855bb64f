//! Counts of statistics: sectors of copies, passes over the banks, multiply-adds.

use std::time::{Duration, Instant};

use ptx_sim::{
    Checks, LaunchConfig, LineStatistics, Memory, Module, OutOfBoundsFill, Statistics, Swizzle,
    TensorMap, TensorMapType, launch,
};

const REGS: &str = ".reg .pred %p<4>; .reg .b32 %r<64>; .reg .b64 %rd<8>;";

/// Runs one warp with %r1 = lane, %r2 = shared base, %rd1 = address of 64 KiB of global memory, and a map of 40 rows
/// of 64 bf16 there.
fn run(text: &str) -> Statistics {
    let ptx = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 buffer, .param .align 64 .b8 map[128])
{{
{REGS}
    ld.param.u64 %rd1, [buffer];
    mov.u64 %rd2, map; cvta.param.u64 %rd2, %rd2;
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem;
{text}
    ret;
}}
"
    );
    let module = Module::parse(&ptx).expect("PTX");
    let memory = Memory::new();
    let buffer = memory.alloc(1 << 16).expect("there is memory");
    memory.write(buffer, &[1; 1 << 16]).expect("inside");
    let map = TensorMap {
        ty: TensorMapType::Bf16,
        address: buffer,
        dims: vec![64, 40],
        strides: vec![128],
        box_dims: vec![64, 16],
        swizzle: Swizzle::B128,
        fill: OutOfBoundsFill::Zeros,
    };
    let map = map.encode().expect("a map the driver takes");
    let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]).shared_bytes(16 * 1024);
    let params: [&[u8]; 2] = [&buffer.to_le_bytes(), &map];
    let report = launch(&module, "k", &config, &params, &memory);
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    report.statistics.expect("counted by default")
}

/// The only line whose opcode starts with `opcode`.
fn line<'s>(statistics: &'s Statistics, opcode: &str) -> &'s LineStatistics {
    let mut found = statistics
        .lines
        .iter()
        .filter(|line| line.opcode.starts_with(opcode));
    let line = found.next().unwrap_or_else(|| panic!("no {opcode}"));
    assert!(found.next().is_none(), "one {opcode}");
    line
}

/// Rows of 16 bytes `row` apart, one a lane: stored, so that they can be read.
fn rows(row: u32) -> String {
    format!(
        "mad.lo.u32 %r3, %r1, {row}, %r2;
    st.shared.v4.b32 [%r3], {{%r1, %r1, %r1, %r1}};
    bar.warp.sync 0xffffffff;"
    )
}

#[test]
fn cp_async_counts_both_its_sides() {
    let copy = |source: u32, destination: u32| {
        run(&format!(
            "mul.wide.u32 %rd3, %r1, {source}; add.s64 %rd3, %rd1, %rd3;
    mad.lo.u32 %r3, %r1, {destination}, %r2;
    cp.async.cg.shared.global [%r3], [%rd3], 16;
    cp.async.wait_all;"
        ))
    };
    let dense = copy(16, 16);
    let dense = line(&dense, "cp.async.cg");
    assert_eq!((dense.global_requests, dense.sectors), (1, 16));
    assert_eq!((dense.shared_requests, dense.bank_conflicts()), (1, 0));
    let scattered = copy(256, 128);
    let scattered = line(&scattered, "cp.async.cg");
    assert_eq!(scattered.sectors, 32);
    // Eight lanes at a time hit the same four banks.
    assert_eq!(scattered.bank_conflicts(), 4 * 7);
}

#[test]
fn cp_async_that_zero_fills_reads_what_it_copies() {
    let statistics = run("mul.wide.u32 %rd3, %r1, 16; add.s64 %rd3, %rd1, %rd3;
    mad.lo.u32 %r3, %r1, 16, %r2;
    setp.lt.u32 %p1, %r1, 4;
    selp.b32 %r4, 16, 0, %p1;
    cp.async.cg.shared.global [%r3], [%rd3], 16, %r4;
    cp.async.wait_all;");
    assert_eq!(line(&statistics, "cp.async.cg").sectors, 2);
}

#[test]
fn tensor_copies_count_the_part_inside() {
    let load = |x: i32, y: i32| {
        let statistics = run(&format!(
            "setp.ne.u32 %p1, %r1, 0;
    add.u32 %r3, %r2, 4096;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 2048;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd2, {{{x}, {y}}}], [%r3];
READY:
    bar.warp.sync 0xffffffff;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;"
        ));
        let copy = line(&statistics, "cp.async.bulk.tensor");
        assert_eq!(copy.global_requests, 1);
        copy.sectors
    };
    // 16 rows of 128 bytes.
    assert_eq!(load(0, 0), 64);
    // 10 rows, each without its first 16 bytes, which share a sector with the rest.
    assert_eq!(load(8, 30), 40);
    assert_eq!(load(64, 0), 0);
}

#[test]
fn bulk_copies_count_their_bytes() {
    let statistics = run("setp.ne.u32 %p1, %r1, 0;
    mad.lo.u32 %r3, %r1, 32, %r2;
    st.shared.v4.b32 [%r3], {%r1, %r1, %r1, %r1};
    st.shared.v4.b32 [%r3+16], {%r1, %r1, %r1, %r1};
    fence.proxy.async.shared::cta;
    bar.warp.sync 0xffffffff;
    @%p1 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:");
    assert_eq!(line(&statistics, "cp.async.bulk.global").sectors, 32);
}

#[test]
fn matrix_moves_conflict_by_the_distance_of_their_rows() {
    // Rows 128 bytes apart lie in the same banks, all eight of a matrix; 144 apart they do not.
    for (row, conflicts) in [(128, 4 * 7), (144, 0), (16, 0), (64, 4 * 3)] {
        let load = run(&format!(
            "{}
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r3];",
            rows(row)
        ));
        assert_eq!(line(&load, "ldmatrix").bank_conflicts(), conflicts, "{row}");
        let store = run(&format!(
            "mad.lo.u32 %r3, %r1, {row}, %r2;
    stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r3], {{%r1, %r1, %r1, %r1}};"
        ));
        let store = line(&store, "stmatrix");
        assert_eq!(store.shared_requests, 1);
        assert_eq!(store.bank_conflicts(), conflicts, "{row}");
    }
}

#[test]
fn loads_and_stores_conflict() {
    let statistics = run(&format!(
        "{}
    ld.shared.b32 %r5, [%r3];",
        rows(128)
    ));
    assert_eq!(line(&statistics, "ld.shared.b32").bank_conflicts(), 31);
    assert_eq!(line(&statistics, "st.shared.v4").bank_conflicts(), 4 * 7);
}

#[test]
fn tensor_operations_are_counted_by_line() {
    let statistics = run("mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 0; mov.b32 %r13, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13}, {%r10, %r11}, {%r10, %r11, %r12, %r13};");
    assert_eq!(line(&statistics, "mma.sync").tensor_macs, 16 * 8 * 16);
    assert_eq!(statistics.tensor_macs, 16 * 8 * 16);
    assert_eq!(statistics.executed("mma.sync"), 1);
}

/// Looking each line up by reading the text from its start took minutes here.
#[test]
fn the_time_of_a_launch_grows_with_its_code_alone() {
    const LINES: usize = 150_000;
    const PATIENCE: Duration = Duration::from_secs(20);
    let code = "add.u32 %r1, %r1, 1;\n".repeat(LINES);
    let begin = Instant::now();
    let statistics = run(&code);
    assert_eq!(statistics.executed("add.u32"), LINES as u64);
    let spent = begin.elapsed();
    assert!(spent < PATIENCE, "{LINES} lines took {spent:?}");
}

/// Eight CTAs, each of which adds its number to a word: what they executed, and how often, over all.
#[test]
fn counts_and_coverage_are_there_where_they_are_asked_for() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 at)
{
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [at];
    mov.u32 %r1, %ctaid.x;
    setp.eq.u32 %p1, %r1, 5;
    @%p1 red.global.add.u32 [%rd1], %r1;
    ret;
}
";
    let module = Module::parse(text).expect("PTX");
    let memory = Memory::new();
    let at = memory.alloc(4).expect("there is memory");
    memory.write(at, &[0; 4]).expect("inside");
    for (statistics, coverage) in [(false, false), (true, false), (false, true), (true, true)] {
        let checks = Checks {
            statistics,
            coverage,
            ..Checks::ALL
        };
        let config = LaunchConfig::new([8, 1, 1], [32, 1, 1]).checks(checks);
        let report = launch(&module, "k", &config, &[&at.to_le_bytes()], &memory);
        let report = report.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.statistics.is_some(), statistics);
        if let Some(counts) = report.statistics {
            assert_eq!(line(&counts, "setp").warps, 8);
            assert_eq!(counts.sectors(), 1);
        }
        let executed = report.coverage.map(|coverage| coverage.to_string());
        // A `ret` that the parser adds is not reached.
        assert_eq!(executed, coverage.then(|| "111310".to_owned()));
    }
}
