//! `wgmma` on matrices that lie either way in memory: all ways give one product.
//!
//! Each operand is in global memory twice, by rows and transposed, and TMA brings one of them to shared memory
//! under a 128-byte swizzle, as kernels do it. Whatever the descriptors and transpose flags say must then mean the
//! same matrix (PTX ISA §9.7.15.5.1): m64n128k64 of small integers, which bf16 and f32 hold exactly.

use half::bf16;
use ptx_sim::{
    LaunchConfig, Memory, Module, OutOfBoundsFill, Swizzle, TensorMap, TensorMapType, launch,
};

const M: usize = 64;
const N: usize = 128;
const K: usize = 64;
/// Bytes of a box of 64 rows of 64 elements.
const BOX: usize = 64 * 64 * 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Major {
    K,
    Mn,
}

fn a(m: usize, k: usize) -> i32 {
    (m * 7 + k * 3) as i32 % 15 - 7
}

fn b(n: usize, k: usize) -> i32 {
    (n * 5 + k * 11) as i32 % 13 - 6
}

/// A map of a matrix of `rows` rows of `columns` elements, in boxes of 64 by 64.
fn matrix(
    memory: &Memory,
    rows: usize,
    columns: usize,
    at: impl Fn(usize, usize) -> i32,
) -> Vec<u8> {
    let elements = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
    let bytes: Vec<u8> = elements
        .flat_map(|(r, c)| bf16::from_f32(at(r, c) as f32).to_le_bytes())
        .collect();
    let address = memory.alloc(bytes.len() as u64).unwrap();
    memory.write(address, &bytes).unwrap();
    let map = TensorMap {
        ty: TensorMapType::Bf16,
        address,
        dims: vec![columns as u64, rows as u64],
        strides: vec![2 * columns as u64],
        box_dims: vec![64, 64],
        swizzle: Swizzle::B128,
        fill: OutOfBoundsFill::Zeros,
    };
    map.encode().unwrap().to_vec()
}

/// Descriptor bits other than the start address: 128-byte swizzle, groups of 8 rows 1024 bytes apart, boxes `BOX`
/// apart.
fn layout() -> u64 {
    1 << 62 | (1024 >> 4) << 32 | (BOX as u64 >> 4) << 16
}

/// Bytes from one step of 16 along k to the next.
fn step(major: Major) -> usize {
    match major {
        Major::K => 32,
        Major::Mn => 16 * 128,
    }
}

fn kernel(a: Major, b: Major, b_step: usize) -> String {
    let list = |regs: &[String]| regs.join(", ");
    let d: Vec<_> = (20..20 + N / 2).map(|i| format!("%r{i}")).collect();
    // B's second box: 64 columns of n further, along the rows of its memory or across them.
    let second = if b == Major::K { "{0, 64}" } else { "{64, 0}" };
    let mut text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 out, .param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128])
{{
    .reg .pred %p<4>; .reg .b32 %r<100>; .reg .b64 %rd<16>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r3, %r2, {bar};
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    @%p1 bra WAIT;
    mov.u64 %rd1, ma; cvta.param.u64 %rd1, %rd1; mov.u64 %rd2, mb; cvta.param.u64 %rd2, %rd2;
    add.u32 %r4, %r2, {BOX}; add.u32 %r5, %r2, {two};
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {all};
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd1, {{0, 0}}], [%r3];
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%rd2, {{0, 0}}], [%r3];
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r5], [%rd2, {second}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    and.b32 %r6, %r2, 0x3ffff; shr.u32 %r6, %r6, 4; cvt.u64.u32 %rd3, %r6;
    setp.ne.b32 %p3, 0, 0;
    wgmma.fence.sync.aligned;
",
        bar = 3 * BOX,
        two = 2 * BOX,
        all = 3 * BOX,
    );
    for k in 0..K / 16 {
        let (at_a, at_b) = (k * step(a), BOX + k * b_step);
        text += &format!(
            "    add.u64 %rd4, %rd3, {}; add.u64 %rd5, %rd3, {};
    wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {{{}}}, %rd4, %rd5, %p3, 1, 1, {}, {};
    setp.eq.b32 %p3, 0, 0;
",
            layout() + (at_a as u64 >> 4),
            layout() + (at_b as u64 >> 4),
            list(&d),
            u8::from(a == Major::Mn),
            u8::from(b == Major::Mn),
        );
    }
    text += "    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %rd6, [out]; mul.wide.u32 %rd7, %r1, 4; add.u64 %rd6, %rd6, %rd7;\n";
    for (i, reg) in d.iter().enumerate() {
        text += &format!("    st.global.b32 [%rd6+{}], {reg};\n", 512 * i);
    }
    text + "    ret;\n}\n"
}

/// The product as the warpgroup holds it, by thread and register.
fn product(a_major: Major, b_major: Major, b_step: usize) -> Vec<f32> {
    let memory = Memory::new();
    let map_a = match a_major {
        Major::K => matrix(&memory, M, K, a),
        Major::Mn => matrix(&memory, K, M, |k, m| a(m, k)),
    };
    let map_b = match b_major {
        Major::K => matrix(&memory, N, K, b),
        Major::Mn => matrix(&memory, K, N, |k, n| b(n, k)),
    };
    let out = memory.alloc((M * N * 4) as u64).unwrap();
    let text = kernel(a_major, b_major, b_step);
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let config = LaunchConfig::new([1, 1, 1], [128, 1, 1]).shared_bytes(3 * BOX as u32 + 8);
    let params: [&[u8]; 3] = [&out.to_le_bytes(), &map_a, &map_b];
    launch(&module, "k", &config, &params, &memory).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = vec![0; M * N * 4];
    memory.read(out, &mut bytes).unwrap();
    let word = |w: &[u8]| f32::from_le_bytes([w[0], w[1], w[2], w[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

/// The same by the definition: thread t of warp w holds rows 16w + t/4 and 8 more, columns 8j + 2(t mod 4) and the next.
fn expected() -> Vec<f32> {
    let held = (0..N / 2).flat_map(|reg| (0..128).map(move |thread| (reg, thread)));
    let element = |(reg, thread): (usize, usize)| {
        let m = thread / 32 * 16 + thread % 32 / 4 + reg % 4 / 2 * 8;
        let n = reg / 4 * 8 + thread % 4 * 2 + reg % 2;
        (0..K).map(|k| a(m, k) * b(n, k)).sum::<i32>() as f32
    };
    held.map(element).collect()
}

#[test]
fn every_majorness_gives_one_product() {
    for a in [Major::K, Major::Mn] {
        for b in [Major::K, Major::Mn] {
            let got = product(a, b, step(b));
            assert!(got == expected(), "A {a:?}-major, B {b:?}-major");
        }
    }
}

/// The planted fault: steps along k of a K-major operand through one that is MN-major.
#[test]
fn a_step_of_the_other_majorness_is_another_product() {
    assert!(product(Major::K, Major::Mn, step(Major::K)) != expected());
}
