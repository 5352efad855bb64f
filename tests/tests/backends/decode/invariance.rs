//! A sequence's bits depend on its own queries and keys alone.

use ferroflash::{Backend, Cpu, DType, Mask};
use ferroflash_testing::cases::{DecodeSpec, ScaleKind};

use super::{bits, bits_of_rows, run_right};

/// Lengths beside chunks and groups of kernels, and of some of them.
const LENGTHS: [usize; 5] = [1, 255, 257, 2100, 64];

/// Sequence 3 beside others that differ; its contents depend on its number, length and the seed alone.
fn beside_others<B: Backend>(backend: &mut B, spec: &DecodeSpec) {
    let alone = DecodeSpec {
        kv_lens: vec![0, 0, 0, LENGTHS[3]],
        ..spec.clone()
    };
    let expected = bits(3, &run_right(backend, &alone));
    let together = DecodeSpec {
        kv_lens: LENGTHS.to_vec(),
        ..spec.clone()
    };
    assert_eq!(bits(3, &run_right(backend, &together)), expected, "{spec}");
    // Behind queries of others, of other numbers, one of them none.
    let packed = DecodeSpec {
        queries: Some(vec![2, 0, 5, spec.seq_q, 1]),
        ..together
    };
    let rows = packed.build().expect("small").q_rows[3].clone();
    let result = run_right(backend, &packed);
    assert_eq!(bits_of_rows(&rows, &result), expected, "{packed}");
    for page_size in [Some(1), Some(3), Some(64), Some(256), None] {
        let paged = DecodeSpec {
            page_size,
            ..alone.clone()
        };
        assert_eq!(bits(3, &run_right(backend, &paged)), expected, "{paged}");
    }
}

fn all_of<B: Backend>(backend: &mut B, dtype: DType) {
    let plain = DecodeSpec {
        dtype,
        ..DecodeSpec::plain(&[])
    };
    let window = DecodeSpec {
        mask: Mask::Window {
            left: Some(700),
            right: Some(0),
        },
        seq_q: 3,
        head_dim: 128,
        head_dim_v: 128,
        ..plain.clone()
    };
    let e4m3 = DecodeSpec {
        e4m3: Some(ScaleKind::Tensor),
        ..window.clone()
    };
    for spec in [&plain, &window, &e4m3] {
        beside_others(backend, spec);
    }
}

fn all<B: Backend>(backend: &mut B) {
    all_of(backend, DType::Bf16);
}

#[test]
fn cpu() {
    for dtype in [DType::F32, DType::F16] {
        all_of(&mut Cpu::new(), dtype);
    }
}

ferroflash_tests::on_simulator_and_gpu!(all, "bits of a sequence beside others");
