//! ∞ and NaN in V reach the rows that see them, in their own columns, and no others.

use ferroflash::backend::sim::Sim;
use ferroflash::cases::{Arrangement, CaseSpec, InputKind, Lengths};
use ferroflash::oracle::Rows;
use ferroflash::variant::eligible;
use ferroflash::{Backend, Cpu, DType, Layout, Mask};
use ferroflash_tests::gpu::gpu_or_not_run;

/// NaN in a column whose key some rows of a tile see, beside ∞ in a column whose key all of them see: kernels look at
/// columns in pairs and more.
fn neighbouring_columns<B: Backend>(mut backend: B) {
    let spec = CaseSpec {
        dtype: DType::Bf16,
        lengths: Lengths::one(100, 100),
        heads_kv: 1,
        group: 1,
        head_dim: 64,
        head_dim_v: 64,
        mask: Mask::Window {
            left: Some(60),
            right: Some(10),
        },
        scale_factor: None,
        softcap: None,
        alibi: None,
        kind: InputKind::Random,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: Layout::Bshd,
        seed: 1,
    };
    for odd in [0, 1] {
        let mut case = spec.build().expect("small");
        case.v.set(0, 0, 10, 20 + odd, f32::NAN);
        case.v.set(0, 0, 70, 21 - odd, f32::INFINITY);
        let problem = case.problem().expect("valid");
        for variant in eligible(&problem, &backend.capabilities()) {
            case.options.force = Some(variant);
            let (o, lse) = case.run(&mut backend).expect("it runs");
            let verdict = case.check(&o, &lse, Rows::All).expect("checked");
            assert!(verdict.passed(), "{variant}: {verdict}");
        }
    }
}

#[test]
fn neighbouring_columns_cpu() {
    neighbouring_columns(Cpu::new());
}

#[test]
fn neighbouring_columns_sim() {
    neighbouring_columns(Sim::new());
}

#[test]
fn neighbouring_columns_cuda() {
    if let Some(gpu) = gpu_or_not_run("neighbouring columns") {
        neighbouring_columns(gpu);
    }
}
