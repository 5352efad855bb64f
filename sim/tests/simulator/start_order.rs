//! Blocks start in an order that the seed draws.

use ptx_sim::{Fault, LaunchConfig, Memory, Module, SimError, launch};

const HEAD: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n";

/// Each block writes to `out[%ctaid.x]` the ticket it drew from `out[nctaid]`.
const TICKETS: &str = "
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd4, %rd1, %rd2;
    atom.relaxed.gpu.global.add.u32 %r3, [%rd4], 1;
    st.global.u32 [%rd3], %r3;
    ret;";

/// Every block from 5 on writes far outside.
const FAULTY: &str = "
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    setp.lt.u32 %p1, %r1, 5;
    @!%p1 st.global.u32 [%rd1+1048576], %r1;
    ret;";

/// In each of 400 rounds, with 4 + 1 words each, the block that counts last reads what all have written.
const LAST_READS: &str = "
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %rd2, %r1, 4;
    mov.u32 %r4, 400;
    ROUND:
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r1;
    fence.acq_rel.gpu;
    atom.relaxed.gpu.global.add.u32 %r3, [%rd1+16], 1;
    fence.acq_rel.gpu;
    setp.ne.u32 %p1, %r3, 3;
    @%p1 bra NEXT;
    ld.global.u32 %r5, [%rd1];
    ld.global.u32 %r5, [%rd1+4];
    ld.global.u32 %r5, [%rd1+8];
    ld.global.u32 %r5, [%rd1+12];
    NEXT:
    add.s64 %rd1, %rd1, 20;
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %p1, %r4, 0;
    @%p1 bra ROUND;
    ret;";

fn module(body: &str) -> Module {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out)
{{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>; {body} }}"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs `f` on a pool of `threads` CPU threads.
fn on<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.unwrap().install(f)
}

/// The ticket each of `grid` blocks drew.
fn tickets(grid: u32, config: LaunchConfig) -> Vec<u32> {
    let memory = Memory::new();
    let out = memory.alloc(4 * u64::from(grid) + 4).unwrap();
    memory.write(out + 4 * u64::from(grid), &[0; 4]).unwrap();
    launch(
        &module(TICKETS),
        "k",
        &config,
        &[&out.to_le_bytes()],
        &memory,
    )
    .unwrap();
    let mut bytes = vec![0; 4 * grid as usize];
    memory.read(out, &mut bytes).unwrap();
    let word = |w: &[u8]| u32::from_le_bytes([w[0], w[1], w[2], w[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

fn fault(config: &LaunchConfig) -> Fault {
    let memory = Memory::new();
    let out = memory.alloc(4).unwrap();
    match launch(&module(FAULTY), "k", config, &[&out.to_le_bytes()], &memory) {
        Err(SimError::Fault(fault)) => *fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn seed_0_starts_blocks_by_number_and_others_do_not() {
    let with = |seed| {
        let config = LaunchConfig::new([100, 1, 1], [1, 1, 1]).schedule_seed(seed);
        on(1, || tickets(100, config))
    };
    assert!(with(0).into_iter().eq(0..100));
    for seed in 1..5 {
        let drawn = with(seed);
        assert_eq!(drawn, with(seed), "seed {seed} repeats");
        let in_place = drawn.iter().zip(0..).filter(|&(&t, b)| t == b).count();
        assert!(in_place < 10, "seed {seed}: {drawn:?}");
        let mut sorted = drawn;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100), "each block runs once");
    }
}

#[test]
fn a_cluster_starts_as_one() {
    let config = LaunchConfig::new([64, 1, 1], [1, 1, 1])
        .cluster([4, 1, 1])
        .schedule_seed(3);
    let drawn = on(1, || tickets(64, config));
    for cluster in drawn.chunks(4) {
        let first = cluster.iter().min().unwrap();
        assert_eq!(first % 4, 0, "{drawn:?}");
        assert!(cluster.iter().all(|t| t - first < 4), "{drawn:?}");
    }
}

#[test]
fn the_fault_reported_is_of_the_block_that_started_first() {
    let mut blocks = Vec::new();
    for seed in 0..6 {
        let config = LaunchConfig::new([40, 1, 1], [1, 1, 1]).schedule_seed(seed);
        let alone = on(1, || fault(&config));
        let order = on(1, || {
            let config = LaunchConfig::new([40, 1, 1], [1, 1, 1]).schedule_seed(seed);
            tickets(40, config)
        });
        let first = (5..40).min_by_key(|&b| order[b]).unwrap();
        assert_eq!(alone.block, [first as u32, 0, 0], "seed {seed}");
        assert_eq!(alone.schedule_seed, seed);
        // Nor does it depend on how many clusters run at once.
        for _ in 0..5 {
            assert_eq!(on(3, || fault(&config)).block, alone.block, "seed {seed}");
        }
        blocks.push(first);
    }
    assert_eq!(blocks[0], 5);
    blocks.sort_unstable();
    blocks.dedup();
    assert!(blocks.len() > 3, "{blocks:?}");
}

#[test]
fn a_launch_without_room_is_refused() {
    let config = LaunchConfig::new([1, 1, 1], [1, 1, 1]).max_resident(0);
    let memory = Memory::new();
    let error = launch(&module("ret;"), "k", &config, &[&[0; 8]], &memory).unwrap_err();
    assert!(error.to_string().contains("max_resident"), "{error}");
}

/// What an atomic orders is what it does to memory, whichever CPU thread is in between: no false race.
#[test]
fn atomics_of_parallel_blocks_order_what_they_count() {
    let module = module(LAST_READS);
    on(4, || {
        for seed in 0..50 {
            let memory = Memory::new();
            let out = memory.alloc(400 * 20).unwrap();
            memory.write(out, &[0; 400 * 20]).unwrap();
            let config = LaunchConfig::new([4, 1, 1], [1, 1, 1]).schedule_seed(seed);
            let params = [&out.to_le_bytes()[..]];
            launch(&module, "k", &config, &params, &memory)
                .unwrap_or_else(|e| panic!("{seed}: {e}"));
        }
    });
}
