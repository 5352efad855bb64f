//! Reductions into global memory: `cp.reduce.async.bulk`, and `red` and `atom` of vectors, type by type.

use half::{bf16, f16};
use ptx_sim::{LaunchConfig, Memory, Module, launch};

const HEAD: &str = ".version 8.6\n.target sm_90a\n.address_size 64\n";

/// Runs `k(in, out)` of one warp on `source` and `start`; returns what `out` holds then.
fn run(body: &str, source: &[u8], start: &[u8]) -> Result<Vec<u8>, String> {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .pred %p<4>; .reg .b16 %rs<16>; .reg .b32 %r<32>; .reg .b64 %rd<16>;
    .shared .align 16 .b8 smem[512];
    ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
{body}
    ret;
}}"
    );
    let module = Module::parse(&text).map_err(|e| e.to_string())?;
    let memory = Memory::new();
    let buffer = |bytes: &[u8]| {
        let address = memory.alloc(bytes.len() as u64).unwrap();
        memory.write(address, bytes).unwrap();
        address
    };
    let (source, out) = (buffer(source), buffer(start));
    let params = [source.to_le_bytes(), out.to_le_bytes()];
    let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    launch(&module, "k", &config, &[&params[0], &params[1]], &memory).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; start.len()];
    memory.read(out, &mut bytes).unwrap();
    Ok(bytes)
}

/// A bulk reduction of the 16 bytes of `source`.
fn bulk(operation: &str, source: &[u8], start: &[u8]) -> Result<Vec<u8>, String> {
    let body = format!(
        "
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    mov.u32 %r2, smem;
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd1];
    st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
    fence.proxy.async.shared::cta;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%rd2], [%r2], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:"
    );
    run(&body, source, start)
}

fn bytes<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

fn f32s(values: [f32; 4]) -> Vec<u8> {
    bytes(values.map(f32::to_le_bytes))
}

#[test]
fn bulk_reductions_of_every_type() {
    let u32s = |values: [u32; 4]| bytes(values.map(u32::to_le_bytes));
    let u64s = |values: [u64; 2]| bytes(values.map(u64::to_le_bytes));
    let f16s = |values: [f32; 8]| bytes(values.map(|v| f16::from_f32(v).to_le_bytes()));
    let bf16s = |values: [f32; 8]| bytes(values.map(|v| bf16::from_f32(v).to_le_bytes()));
    let max = u32::MAX;
    let cases = [
        (
            "add.u32",
            u32s([1, max, 3, 4]),
            u32s([1, 1, 1, 1]),
            u32s([2, 0, 4, 5]),
        ),
        (
            "add.s32",
            u32s([1, max, 3, 4]),
            u32s([1, 1, 1, 1]),
            u32s([2, 0, 4, 5]),
        ),
        (
            "min.u32",
            u32s([1, max, 3, 4]),
            u32s([2; 4]),
            u32s([1, 2, 2, 2]),
        ),
        (
            "min.s32",
            u32s([1, max, 3, 4]),
            u32s([2; 4]),
            u32s([1, max, 2, 2]),
        ),
        (
            "max.s32",
            u32s([1, max, 3, 4]),
            u32s([2; 4]),
            u32s([2, 2, 3, 4]),
        ),
        ("and.b32", u32s([12; 4]), u32s([10; 4]), u32s([8; 4])),
        ("or.b32", u32s([12; 4]), u32s([10; 4]), u32s([14; 4])),
        ("xor.b32", u32s([12; 4]), u32s([10; 4]), u32s([6; 4])),
        (
            "inc.u32",
            u32s([3; 4]),
            u32s([0, 2, 3, 4]),
            u32s([1, 3, 0, 0]),
        ),
        (
            "dec.u32",
            u32s([3; 4]),
            u32s([0, 2, 3, 4]),
            u32s([3, 1, 2, 3]),
        ),
        ("add.u64", u64s([1, u64::MAX]), u64s([1, 1]), u64s([2, 0])),
        ("max.s64", u64s([1, u64::MAX]), u64s([0, 0]), u64s([1, 0])),
        (
            "add.f32",
            f32s([1.5, -1.0, f32::INFINITY, 1e30]),
            f32s([2.25, 1.0, 1.0, 1e30]),
            f32s([3.75, 0.0, f32::INFINITY, 2e30]),
        ),
        (
            "add.f64",
            bytes([1.5f64, 0.1].map(f64::to_le_bytes)),
            bytes([2.25f64, 0.2].map(f64::to_le_bytes)),
            bytes([3.75f64, 0.1 + 0.2].map(f64::to_le_bytes)),
        ),
        // 2048 + 1 is a tie in f16, 256 + 1 in bf16: to even. Subnormals stay.
        (
            "add.noftz.f16",
            f16s([1.5, 1.0, 6e-8, 65504.0, 0.0, 1.0, 2.0, 3.0]),
            f16s([2.25, 2048.0, 6e-8, 65504.0, 0.0, 1.0, 2.0, 3.0]),
            f16s([3.75, 2048.0, 1.2e-7, f32::INFINITY, 0.0, 2.0, 4.0, 6.0]),
        ),
        (
            "add.noftz.bf16",
            bf16s([1.5, 1.0, 1e-39, 3e38, 0.0, 1.0, 2.0, 3.0]),
            bf16s([2.25, 256.0, 1e-39, 3e38, 0.0, 1.0, 2.0, 3.0]),
            bf16s([3.75, 256.0, 2e-39, f32::INFINITY, 0.0, 2.0, 4.0, 6.0]),
        ),
        (
            "min.bf16",
            bf16s([1.5, -1.0, 0.0, 3.0, 0.0, 1.0, 2.0, 3.0]),
            bf16s([2.0; 8]),
            bf16s([1.5, -1.0, 0.0, 2.0, 0.0, 1.0, 2.0, 2.0]),
        ),
    ];
    for (operation, source, start, end) in cases {
        assert_eq!(bulk(operation, &source, &start), Ok(end), "{operation}");
    }
}

#[test]
fn bulk_reductions_that_ptx_does_not_have() {
    for operation in [
        "add.s64",
        "min.f32",
        "add.noftz.f32",
        "add.f16",
        "add.bf16",
        "min.noftz.f16",
        "inc.s32",
        "and.u32",
        "exch.b32",
        "add.noftz.f16x2",
    ] {
        assert!(bulk(operation, &[0; 16], &[0; 16]).is_err(), "{operation}");
    }
}

#[test]
fn vectors_are_added_element_by_element() {
    let load = "
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd1];";
    let start = f32s([10.0, 20.0, 30.0, 40.0]);
    let source = f32s([1.0, 2.0, 3.0, 4.0]);
    let red = |instruction: &str| run(&format!("{load} {instruction} END:"), &source, &start);
    let all = Ok(f32s([11.0, 22.0, 33.0, 44.0]));
    assert_eq!(
        red("red.global.add.v4.f32 [%rd2], {%r4, %r5, %r6, %r7};"),
        all
    );
    assert_eq!(
        red("red.relaxed.gpu.global.add.v4.f32 [%rd2], {%r4, %r5, %r6, %r7};"),
        all
    );
    // Generic addresses may mean global memory.
    assert_eq!(red("red.add.v4.f32 [%rd2], {%r4, %r5, %r6, %r7};"), all);
    assert_eq!(
        red("red.global.add.v2.f32 [%rd2+8], {%r4, %r5};"),
        Ok(f32s([10.0, 20.0, 31.0, 42.0]))
    );
    // The values before come back, and are replaced.
    let old = "atom.global.add.v4.f32 {%r8, %r9, %r10, %r11}, [%rd2], {%r4, %r5, %r6, %r7};
    st.global.v4.b32 [%rd2], {%r8, %r9, %r10, %r11};";
    assert_eq!(red(old), Ok(start.clone()));
    let old = "atom.global.add.f32 %r8, [%rd2], %r5; st.global.b32 [%rd2+4], %r8;";
    assert_eq!(red(old), Ok(f32s([12.0, 10.0, 30.0, 40.0])));
    for wrong in [
        "red.global.add.v8.f32 [%rd2], {%r4, %r5, %r6, %r7, %r4, %r5, %r6, %r7};",
        "red.global.min.v4.f32 [%rd2], {%r4, %r5, %r6, %r7};",
        "red.global.add.v2.u32 [%rd2], {%r4, %r5};",
        "red.global.add.noftz.v4.f32 [%rd2], {%r4, %r5, %r6, %r7};",
        "red.global.add.f16x2 [%rd2], %r4;",
        "red.shared.add.v4.f32 [smem], {%r4, %r5, %r6, %r7};",
        "cvta.shared.u64 %rd3, smem; red.add.v2.f32 [%rd3], {%r4, %r5};",
    ] {
        assert!(red(wrong).is_err(), "{wrong}");
    }
    let misaligned = red("red.global.add.v2.f32 [%rd2+4], {%r4, %r5};").unwrap_err();
    assert!(misaligned.contains("misaligned"), "{misaligned}");
}
