//! Prints how fast the simulator runs, with its checks on and off:
//!
//! ```text
//! cargo run --release -p ptx-sim --example throughput [-- NAME]
//! ```
//!
//! Each workload is one loop of the kind a real kernel spends its time in. The figures are thread
//! instructions per second, for all cores together and per core.

use ptx_sim::{Checks, LaunchConfig, Memory, Module, launch};

const HEAD: &str = "
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 buffer)
{
    .reg .pred %p<8>; .reg .b32 %r<64>; .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [buffer];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    shl.b32 %r3, %r1, 4;
    add.s32 %r4, %r2, %r3;
    mov.u32 %r5, %ctaid.x;
    mov.u32 %r6, %ntid.x;
    mad.lo.u32 %r7, %r5, %r6, %r1;
    mul.wide.u32 %rd2, %r7, 16;
    add.s64 %rd3, %rd1, %rd2;
    mov.b32 %r8, 0f3F800000;
    mov.b32 %r60, 0;
";

/// A loop of `count` iterations of `body`, between `before` and the end.
fn kernel(before: &str, body: &str, count: u32) -> String {
    format!(
        "{HEAD}{before}
LOOP:
{body}
    add.s32 %r60, %r60, 1;
    setp.lt.u32 %p7, %r60, {count};
    @%p7 bra LOOP;
    st.global.b32 [%rd3], %r9;
    ret;
}}
"
    )
}

fn workloads() -> Vec<(&'static str, String)> {
    let fma: String = (0..16)
        .map(|i| format!("fma.rn.f32 %r{0}, %r{0}, %r8, %r1;\n", 9 + i))
        .collect();
    let shared = "
    st.shared.v4.b32 [%r4], {%r9, %r10, %r11, %r12};
    bar.sync 0;
    ld.shared.v4.b32 {%r9, %r10, %r11, %r12}, [%r2];
    fma.rn.f32 %r9, %r9, %r8, %r1;
    ex2.approx.ftz.f32 %r10, %r9;
    bar.sync 0;";
    let global = "
    ld.global.v4.b32 {%r9, %r10, %r11, %r12}, [%rd3];
    add.f32 %r9, %r9, %r8;
    st.global.v4.b32 [%rd3], {%r9, %r10, %r11, %r12};";
    let fill = "
    st.shared.v4.b32 [%r4], {%r8, %r8, %r8, %r8};
    bar.sync 0;";
    let mma = "
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r4];
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r9, %r10, %r11, %r12}, {%r20, %r21, %r22, %r23}, {%r20, %r21}, {%r9, %r10, %r11, %r12};
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r13, %r14, %r15, %r16}, {%r20, %r21, %r22, %r23}, {%r22, %r23}, {%r13, %r14, %r15, %r16};";
    let wgmma_before = "
    mov.b32 %r50, 0;
FILL:
    st.shared.v4.b32 [%r4], {%r8, %r8, %r8, %r8};
    add.s32 %r4, %r4, 2048;
    add.s32 %r50, %r50, 1;
    setp.lt.u32 %p6, %r50, 8;
    @%p6 bra FILL;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u32 %r51, %r2, 4;
    cvt.u64.u32 %rd8, %r51;
    add.s64 %rd8, %rd8, 4611686293305360384;
    setp.ne.b32 %p5, 0, 0;";
    // 64 x 64 x 16: a quarter of the registers a real tile has.
    let regs: Vec<String> = (9..41).map(|i| format!("%r{i}")).collect();
    let wgmma = format!(
        "
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{}}}, %rd8, %rd8, %p5, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;",
        regs.join(", ")
    );
    vec![
        ("f32 arithmetic", kernel("", &fma, 20_000)),
        ("shared memory and barriers", kernel("", shared, 6_000)),
        ("global memory", kernel("", global, 6_000)),
        ("ldmatrix and mma.sync", kernel(fill, mma, 3_000)),
        ("wgmma 64x64x16", kernel(wgmma_before, &wgmma, 1_500)),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cores = std::thread::available_parallelism()?.get();
    println!(
        "million thread instructions a second on {cores} cores (per core), and tensor multiply-adds\n"
    );
    println!(
        "{:<28} {:>16} {:>16}",
        "workload", "checks off", "checks on"
    );
    let only = std::env::args().nth(1).unwrap_or_default();
    for (name, ptx) in workloads() {
        if !name.contains(&only) {
            continue;
        }
        let module = Module::parse(&ptx)?;
        let mut cells = Vec::new();
        let mut macs = 0.0;
        for checks in [Checks::NONE, Checks::ALL] {
            let memory = Memory::new();
            let blocks = 2 * cores as u32;
            let bytes = u64::from(blocks) * 128 * 16;
            let buffer = memory.alloc(bytes)?;
            memory.write(buffer, &vec![0; bytes as usize])?;
            let config = LaunchConfig::new([blocks, 1, 1], [128, 1, 1])
                .shared_bytes(32 * 1024)
                .checks(checks);
            let report = launch(&module, "k", &config, &[&buffer.to_le_bytes()], &memory)?;
            let seconds = report.elapsed.as_secs_f64();
            let rate = report.warp_instructions as f64 * 32.0 / seconds / 1e6;
            cells.push(format!("{rate:.0} ({:.0})", rate / cores as f64));
            if let Some(statistics) = &report.statistics {
                macs = statistics.tensor_macs as f64 / seconds / 1e9;
            }
        }
        print!("{name:<28} {:>16} {:>16}", cells[0], cells[1]);
        if macs > 0.0 {
            print!("   {macs:.2} G multiply-adds/s with checks");
        }
        println!();
    }
    Ok(())
}
