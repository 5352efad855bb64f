//! The static divergence check: what it reports, and what it accepts.

use ptx_sim::{Module, Together};

/// The lines reported for `text` in a kernel of 256 threads with %r1 = tid.
fn faults(text: &str) -> Vec<(String, Together)> {
    in_block("256, 1, 1", text)
}

fn in_block(maxntid: &str, text: &str) -> Vec<(String, Together)> {
    let ptx = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 data, .param .u32 n)
.maxntid {maxntid}
.minnctapersm 1
{{
    .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<9>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, smem;
    ld.param.u64 %rd1, [data]; ld.param.u32 %r4, [n];
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
{text}
    ret;
}}
"
    );
    let module = Module::parse(&ptx).unwrap_or_else(|e| panic!("{e}\n{ptx}"));
    let kernel = module.kernels().next().expect("one kernel");
    let unsupported = kernel.unsupported();
    assert!(unsupported.is_empty(), "{unsupported:?}");
    let found = kernel.divergences();
    let with_text = |at: u32| ptx.lines().nth(at as usize - 1).expect("a line");
    for divergence in &found {
        assert!(with_text(divergence.line).contains(&divergence.text));
    }
    found.into_iter().map(|d| (d.text, d.needs)).collect()
}

/// Only instruction `at` is reported.
#[track_caller]
fn found(text: &str, at: &str, needs: Together) {
    assert_eq!(faults(text), [(at.to_owned(), needs)], "{text}");
}

#[track_caller]
fn passes(text: &str) {
    assert_eq!(faults(text), [], "{text}");
}

/// `condition` computes %p1; `text` runs where it holds.
fn guarded(condition: &str, text: &str) -> String {
    format!("{condition}\n@!%p1 bra SKIP;\n{text}\nSKIP:\n")
}

const MMA: &str = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r20, %r21, %r22, %r23}, {%r5, %r6}, {%r7}, {%r20, %r21, %r22, %r23};";

#[test]
fn a_barrier_in_a_branch_on_the_thread() {
    let bar = "bar.sync 0;";
    for condition in [
        "setp.lt.u32 %p1, %r1, 16;",
        "setp.eq.u32 %p1, %r1, 0;",
        // Uniform in each warp, but not in the CTA.
        "setp.lt.u32 %p1, %r1, 128;",
        "shr.u32 %r5, %r1, 7; setp.eq.u32 %p1, %r5, 0;",
        "ld.global.u32 %r5, [%rd3]; setp.eq.u32 %p1, %r5, 0;",
        "mov.u32 %r5, %laneid; setp.eq.u32 %p1, %r5, 0;",
        "elect.sync %r5|%p1, 0xffffffff;",
        "atom.global.add.u32 %r5, [%rd1], 1; setp.eq.u32 %p1, %r5, 0;",
        "clock: mov.u32 %r5, %clock; setp.lt.u32 %p1, %r5, %r4;",
    ] {
        found(&guarded(condition, bar), bar, Together::Cta);
    }
    found(
        "setp.lt.u32 %p1, %r1, 16;\n@%p1 bar.sync 0;",
        "@%p1 bar.sync 0;",
        Together::Cta,
    );
    found(
        &guarded(
            "setp.lt.u32 %p1, %r1, 32;",
            "barrier.cluster.arrive.aligned;",
        ),
        "barrier.cluster.arrive.aligned;",
        Together::Cta,
    );
}

#[test]
fn a_barrier_that_all_threads_reach() {
    for condition in [
        "setp.lt.u32 %p1, %r2, 16;",
        "setp.lt.u32 %p1, %r4, 16;",
        "ld.global.u32 %r5, [%rd1]; setp.eq.u32 %p1, %r5, 0;",
        "setp.lt.u32 %p2, %r1, 16; bar.red.popc.u32 %r5, 0, %p2; setp.eq.u32 %p1, %r5, 0;",
        "vote.sync.any.pred %p1, 0, 0xffffffff;",
    ] {
        passes(&guarded(condition, "bar.sync 0;"));
    }
    passes(
        "mov.b32 %r5, 0;\nLOOP:\nbar.sync 0;\nadd.s32 %r5, %r5, 1;\nsetp.lt.u32 %p1, %r5, %r4;\n@%p1 bra LOOP;",
    );
    // Where the paths have met again.
    passes(&format!(
        "{}bar.sync 0;\n{MMA}",
        guarded("setp.eq.u32 %p1, %r1, 0;", "st.global.u32 [%rd1], %r4;")
    ));
    // A panic is not a path.
    passes(&format!(
        "{}bar.sync 0;",
        guarded("setp.eq.u32 %p1, %r1, 300;", "trap;")
    ));
}

#[test]
fn warp_wide_instructions_need_whole_warps() {
    let mask = "0xffffffff";
    for instruction in [
        MMA.to_owned(),
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r3];".to_owned(),
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r20};".to_owned(),
        "wgmma.fence.sync.aligned;".to_owned(),
        "wgmma.commit_group.sync.aligned;".to_owned(),
        "wgmma.wait_group.sync.aligned 0;".to_owned(),
        "setmaxnreg.dec.sync.aligned.u32 40;".to_owned(),
        "bar.sync 1, 64;".to_owned(),
        format!("shfl.sync.bfly.b32 %r20, %r20, 1, 31, {mask};"),
        format!("vote.sync.any.pred %p3, %p2, {mask};"),
        format!("redux.sync.add.u32 %r20, %r20, {mask};"),
        format!("elect.sync %r20|%p3, {mask};"),
        format!("bar.warp.sync {mask};"),
    ] {
        let name = instruction.as_str();
        for lanes in [
            "setp.lt.u32 %p1, %r1, 48;",
            "setp.le.u32 %p1, %r1, 64;",
            "setp.gt.u32 %p1, 16, %r1;",
            "and.b32 %r5, %r1, 48; setp.eq.u32 %p1, %r5, 0;",
            "shr.u32 %r5, %r1, 4; setp.eq.u32 %p1, %r5, 0;",
            "shl.b32 %r5, %r1, 1; setp.lt.u32 %p1, %r5, 64;",
        ] {
            found(&guarded(lanes, name), name, Together::Warp);
        }
        for warps in [
            "setp.lt.u32 %p1, %r1, 64;",
            "setp.le.u32 %p1, %r1, 63;",
            "setp.gt.u32 %p1, 64, %r1;",
            "and.b32 %r5, %r1, 96; setp.eq.u32 %p1, %r5, 0;",
            "shr.u32 %r5, %r1, 7; setp.eq.u32 %p1, %r5, 1;",
            "and.b32 %r5, %r1, 127; setp.lt.u32 %p1, %r5, 32;",
            "rem.u32 %r5, %r1, 64; setp.ge.u32 %p1, %r5, 32;",
            "div.u32 %r5, %r1, 32; setp.eq.u32 %p1, %r5, 1;",
            "sub.u32 %r6, %r1, 64; shr.u32 %r5, %r6, 5; setp.eq.u32 %p1, %r5, 1;",
            "cvt.u64.u32 %rd5, %r1; setp.lt.u64 %p1, %rd5, 64;",
            "mov.u32 %r5, %warpid; setp.eq.u32 %p1, %r5, 1;",
            "setp.lt.u32 %p2, %r1, 5; vote.sync.any.pred %p1, %p2, 0xffffffff;",
            "ld.global.u32 %r5, [%rd3]; redux.sync.max.u32 %r6, %r5, 0xffffffff; setp.eq.u32 %p1, %r6, 1;",
            "ld.global.u32 %r5, [%rd3]; shfl.sync.idx.b32 %r6, %r5, 0, 31, 0xffffffff; setp.eq.u32 %p1, %r6, 1;",
        ] {
            passes(&guarded(warps, name));
        }
    }
}

#[test]
fn a_thread_number_of_a_plane_is_no_lane() {
    let text = guarded("setp.lt.u32 %p1, %r1, 32;", "bar.warp.sync 0xffffffff;");
    assert_eq!(in_block("16, 16, 1", &text).len(), 1);
    assert_eq!(in_block("256, 1, 1", &text).len(), 0);
}

#[test]
fn values_depend_on_the_path_that_wrote_them() {
    let branch = "setp.eq.u32 %p1, %r5, 7;\n@!%p1 bra END;\nbar.sync 0;\nEND:";
    // Two constants, and the thread chose.
    let chosen = guarded(
        "mov.b32 %r5, 0; setp.eq.u32 %p1, %r1, 0;",
        "mov.b32 %r5, 7;",
    );
    found(&format!("{chosen}{branch}"), "bar.sync 0;", Together::Cta);
    found(
        &format!("setp.eq.u32 %p2, %r1, 0;\nselp.b32 %r5, 7, 0, %p2;\n{branch}"),
        "bar.sync 0;",
        Together::Cta,
    );
    found(
        &format!("mov.b32 %r5, 0;\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 mov.b32 %r5, 7;\n{branch}"),
        "bar.sync 0;",
        Together::Cta,
    );
    // The number of iterations depends on the thread, and so does the counter, though each step adds the same.
    let turns = "mov.b32 %r5, 0;\nTURN:\nadd.s32 %r5, %r5, 1;\nsetp.lt.u32 %p2, %r5, %r1;\n@%p2 bra TURN;\n";
    found(&format!("{turns}{branch}"), "bar.sync 0;", Together::Cta);
    // Another value in the same register, which the branch does not see.
    passes(&format!(
        "mov.u32 %r5, %r1;\nadd.u32 %r6, %r5, %r5;\nmov.u32 %r5, %r4;\n{branch}"
    ));
    // A register that holds a thread's value and then what the warp made of it, in turn.
    passes(&format!(
        "mov.b32 %r5, 0;\nmov.b32 %r7, 0;\nTURN:\nsetp.eq.u32 %p3, %r4, %r7;\n@%p3 bra USE;\n\
         ld.global.u32 %r5, [%rd3];\nUSE:\nsetp.ne.u32 %p4, %r5, 0;\n\
         vote.sync.any.pred %p5, %p4, 0xffffffff;\nselp.b32 %r5, 1, 0, %p5;\n\
         setp.eq.u32 %p6, %r5, 1;\n@%p6 bra NEXT;\n{MMA}\nNEXT:\nadd.u32 %r7, %r7, 1;\n\
         setp.lt.u32 %p7, %r7, %r4;\n@%p7 bra TURN;"
    ));
    // Chosen by the CTA.
    let uniform = guarded(
        "mov.b32 %r5, 0; setp.eq.u32 %p1, %r2, 0;",
        "mov.b32 %r5, 7;",
    );
    passes(&format!("{uniform}{branch}"));
}

#[test]
fn loops_and_exits_that_threads_leave_one_by_one() {
    let looped = "mov.b32 %r5, 0;\nTURN:\nbar.sync 0;\nadd.s32 %r5, %r5, 1;\nsetp.lt.u32 %p2, %r5, %r1;\n@%p2 bra TURN;";
    found(looped, "bar.sync 0;", Together::Cta);
    found(
        "setp.lt.u32 %p1, %r1, 100;\n@%p1 ret;\nbar.sync 0;",
        "bar.sync 0;",
        Together::Cta,
    );
    passes("setp.lt.u32 %p1, %r2, 100;\n@%p1 ret;\nbar.sync 0;");
    // Waiting for an mbarrier is over for all lanes before they go on.
    passes(&format!(
        "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;\n@!%p1 bra WAIT;\nbar.sync 0;\n{MMA}"
    ));
}

/// The code that jump threading makes from `if t == 0 { a } bar; if t == 0 { b }`.
#[test]
fn a_duplicated_barrier() {
    let text = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra OTHERS;\nst.shared.u32 [%r3], %r4;\nbar.sync 0;\nbra JOIN;\nOTHERS:\nbar.sync 0;\nJOIN:";
    assert_eq!(faults(text).len(), 2);
}

/// A producer and consumers, each with barriers of its own.
#[test]
fn roles() {
    let text = "bar.sync 0;
shr.u32 %r5, %r1, 7;
setp.ne.u32 %p1, %r5, 0;
@%p1 bra CONSUMER;
setmaxnreg.dec.sync.aligned.u32 40;
bar.sync 2, 128;
setp.ne.u32 %p2, %r1, 0;
@%p2 bra DONE;
st.shared.u32 [%r3], %r4;
bra DONE;
CONSUMER:
setmaxnreg.inc.sync.aligned.u32 232;
mov.b32 %r6, 0;
STEP:
wgmma.fence.sync.aligned;
bar.sync 1, 128;
add.s32 %r6, %r6, 1;
setp.lt.u32 %p3, %r6, %r4;
@%p3 bra STEP;
DONE:
bar.sync 0;";
    passes(text);
    found(
        &text.replace("bar.sync 1, 128;", "bar.sync 1;"),
        "bar.sync 1;",
        Together::Cta,
    );
}
