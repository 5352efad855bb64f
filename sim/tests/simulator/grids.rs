//! Programmatic dependent launch: a grid that begins before the one before it has ended.
//!
//! Each test has a fault and its twin: what a dependent grid touches before `griddepcontrol.wait`, and after.

use ptx_sim::{FaultKind, LaunchConfig, Memory, Module, Report, SimError, Stream};

const THREADS: u32 = 64;

/// A kernel over `a`, `b` and `flag`: %rd1 = &a[thread], %rd2 = &b[thread], %rd3 = &flag.
fn kernel(name: &str, body: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 a, .param .u64 b, .param .u64 flag)
{{
    .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>;
    .shared .align 16 .b8 smem[1024];
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [flag];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    setp.eq.u32 %p1, %r1, 0;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd4, %r4, 4;
    add.s64 %rd1, %rd1, %rd4;
    add.s64 %rd2, %rd2, %rd4;
{body}
    ret;
}}
"
    )
}

/// How a grid is queued: after all before it, or as their dependent.
#[derive(Clone, Copy)]
enum After {
    All,
    Begun,
}

/// Runs the kernel bodies one after the other; the error is the last one's.
fn queue(grids: &[(After, &str)]) -> Result<Report, SimError> {
    let names: Vec<_> = (0..grids.len()).map(|i| format!("grid{i}")).collect();
    let kernels = names
        .iter()
        .zip(grids)
        .map(|(name, (_, body))| kernel(name, body));
    let text: String =
        std::iter::once(".version 8.0\n.target sm_90a\n.address_size 64\n".to_owned())
            .chain(kernels)
            .collect();
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let memory = Memory::new();
    let buffer = || {
        let address = memory.alloc(u64::from(4 * 2 * THREADS)).unwrap();
        memory.write(address, &[0; 8 * THREADS as usize]).unwrap();
        address.to_le_bytes()
    };
    let params = [buffer(), buffer(), buffer()];
    let params: Vec<&[u8]> = params.iter().map(|p| &p[..]).collect();
    let mut stream = Stream::new(&memory);
    let mut last = None;
    for (i, ((after, _), name)) in grids.iter().zip(&names).enumerate() {
        let config = LaunchConfig::new([2, 1, 1], [THREADS, 1, 1]).schedule_seed(i as u64 % 3);
        let result = match after {
            After::All => stream.launch(&module, name, &config, &params),
            After::Begun => stream.launch_dependent(&module, name, &config, &params),
        };
        if i + 1 < grids.len() {
            result.unwrap_or_else(|e| panic!("{name}: {e}"));
        } else {
            last = Some(result);
        }
    }
    last.unwrap()
}

const WRITES_A: &str = "st.global.u32 [%rd1], %r1; griddepcontrol.launch_dependents;";
const READS_A: &str = "ld.global.u32 %r5, [%rd1];";
const WAIT: &str = "griddepcontrol.wait;";

#[track_caller]
fn overlaps(grids: &[(After, &str)], words: &[&str]) {
    let error = queue(grids).unwrap_err();
    assert!(
        matches!(error.fault(), Some(FaultKind::GridOverlap { .. })),
        "{error}"
    );
    for word in words {
        assert!(error.to_string().contains(word), "`{word}` in: {error}");
    }
}

#[track_caller]
fn passes(grids: &[(After, &str)]) {
    if let Err(error) = queue(grids) {
        panic!("{error}");
    }
}

#[test]
fn what_the_grid_before_wrote_is_read_behind_the_wait() {
    overlaps(
        &[(After::All, WRITES_A), (After::Begun, READS_A)],
        &[
            "read by block",
            "of kernel `grid0`, launched before",
            "`griddepcontrol.wait`",
        ],
    );
    overlaps(
        &[
            (After::All, WRITES_A),
            (After::Begun, &format!("{READS_A} {WAIT}")),
        ],
        &["ld.global"],
    );
    passes(&[
        (After::All, WRITES_A),
        (After::Begun, &format!("{WAIT} {READS_A}")),
    ]);
    // In stream order nothing has to wait.
    passes(&[(After::All, WRITES_A), (After::All, READS_A)]);
}

#[test]
fn nothing_is_visible_for_being_written_before_launch_dependents() {
    // Nor for the grid before never having said that others may begin.
    let silent = "st.global.u32 [%rd1], %r1;";
    overlaps(&[(After::All, silent), (After::Begun, READS_A)], &[]);
}

#[test]
fn what_the_grid_before_reads_is_overwritten_behind_the_wait() {
    let write = "st.global.u32 [%rd1], %r1;";
    overlaps(
        &[(After::All, READS_A), (After::Begun, write)],
        &["write by block"],
    );
    passes(&[
        (After::All, READS_A),
        (After::Begun, &format!("{WAIT} {write}")),
    ]);
    let twice = &[(After::All, WRITES_A), (After::Begun, write)];
    overlaps(twice, &["may come before the write"]);
}

#[test]
fn other_memory_needs_no_wait() {
    passes(&[
        (After::All, WRITES_A),
        (After::Begun, "st.global.u32 [%rd2], %r1;"),
    ]);
    // Two grids may read the same.
    passes(&[(After::All, READS_A), (After::Begun, READS_A)]);
}

#[test]
fn one_thread_may_wait_for_its_block() {
    let waiter = format!("@%p1 {WAIT} bar.sync 0; {READS_A}");
    passes(&[(After::All, WRITES_A), (After::Begun, &waiter)]);
    let unheard = format!("@%p1 {WAIT} {READS_A}");
    overlaps(
        &[(After::All, WRITES_A), (After::Begun, &unheard)],
        &["ld.global"],
    );
}

#[test]
fn bulk_copies_wait_too() {
    let load = "
    mov.u32 %r6, smem;
    @!%p1 bra END;
    mbarrier.init.shared::cta.b64 [%r6], 1;
    fence.mbarrier_init.release.cluster;
    WAITS
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6+16], [%rd1], 16, [%r6];
LOOP:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r6], 0;
    @!%p2 bra LOOP;
END:";
    let with = |wait| load.replace("WAITS", wait);
    overlaps(
        &[(After::All, WRITES_A), (After::Begun, &with(""))],
        &["cp.async.bulk"],
    );
    passes(&[(After::All, WRITES_A), (After::Begun, &with(WAIT))]);
    let reduce = "
    mov.u32 %r6, smem;
    @!%p1 bra END;
    st.shared.v4.u32 [%r6], {%r1, %r1, %r1, %r1};
    fence.proxy.async.shared::cta;
    WAITS
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r6], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:";
    let with = |wait| reduce.replace("WAITS", wait);
    overlaps(
        &[(After::All, WRITES_A), (After::Begun, &with(""))],
        &["cp.reduce"],
    );
    passes(&[(After::All, WRITES_A), (After::Begun, &with(WAIT))]);
}

#[test]
fn a_wait_reaches_one_grid_back_unless_that_one_waited() {
    let last = format!("{WAIT} {READS_A}");
    let between = "st.global.u32 [%rd2], %r1; griddepcontrol.launch_dependents;";
    let chain = |middle: &str| {
        queue(&[
            (After::All, WRITES_A),
            (After::Begun, middle),
            (After::Begun, &last),
        ])
    };
    let error = chain(between).unwrap_err();
    assert!(error.to_string().contains("of kernel `grid0`"), "{error}");
    let patient = format!("{between} @%p1 {WAIT}");
    chain(&patient).unwrap();
}

#[test]
fn a_flag_orders_grids_as_it_orders_blocks() {
    // Block 0 of the first grid writes and raises the flag, the second grid polls it.
    let raise = "
    setp.ne.u32 %p2, %r4, 0;
    @%p2 bra END;
    st.global.u32 [%rd1], 5;
    griddepcontrol.launch_dependents;
    st.release.gpu.global.u32 [%rd3], 1;
END:";
    let poll = |order: &str| {
        format!(
            "
    setp.ne.u32 %p2, %r4, 0;
    @%p2 bra END;
LOOP:
    ld.{order}.gpu.global.u32 %r5, [%rd3];
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra LOOP;
    ld.global.u32 %r6, [%rd1];
END:"
        )
    };
    passes(&[(After::All, raise), (After::Begun, &poll("acquire"))]);
    overlaps(
        &[(After::All, raise), (After::Begun, &poll("relaxed"))],
        &[],
    );
    // Atomics of the GPU's scope are atomic across grids.
    let add = "red.relaxed.gpu.global.add.u32 [%rd3], 1;";
    passes(&[(After::All, add), (After::Begun, add)]);
    overlaps(
        &[
            (After::All, add),
            (After::Begun, "red.relaxed.cta.global.add.u32 [%rd3], 1;"),
        ],
        &[],
    );
}
