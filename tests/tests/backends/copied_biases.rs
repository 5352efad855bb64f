//! Each option beside biases that Hopper's forward kernels copy to shared memory, or read, and without any. In most cases the bias alone decides, so that
//! an element of another row or key shows.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{CaseSpec, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::variant_is_right;

use super::hopper_modifiers::options;

/// Rows that end a warp's in the middle, and keys that end a block in the middle, whose biases are read one by one beside others that are
/// copied; rows of biases are 16 bytes' multiples.
const SEQ_Q: usize = 201;
const SEQ_KV: usize = 344;

/// What stands beside a bias: nothing, blocks that are left out, and each option.
fn beside() -> Vec<(Mask, ModifierSpec)> {
    let none = ModifierSpec::default();
    let blocks = ModifierSpec {
        blocks: Some([64, 64]),
        ..none
    };
    let options = options().into_iter();
    let options = options.map(|(_, mask, modifiers)| (mask, modifiers));
    let alone = [(Mask::None, none), (Mask::None, blocks)];
    alone.into_iter().chain(options).collect()
}

/// Biases in 16 bits, which are copied, in f32, and none: kernels without are others.
const OF_BIASES: [Option<DType>; 4] = [Some(DType::F16), Some(DType::Bf16), Some(DType::F32), None];

/// A bias with each option, that alone decides, or scores beside it; or the option without one.
fn agree<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize, of_bias: Option<DType>) {
    let several = vec![(3, 17), (SEQ_Q, SEQ_KV), (0, 5), (128, 320)];
    let axes = [[false; 3], [true, false, false], [true, true, false]];
    for (index, (mask, modifiers)) in beside().into_iter().enumerate() {
        // Each option on rows of one length, and on packed ones, of the two dtypes of q.
        let is_packed = (index + usize::from(dtype == DType::F16)).is_multiple_of(2);
        let spec = CaseSpec {
            lengths: if is_packed {
                Lengths::Varlen(several.clone())
            } else {
                Lengths::one(SEQ_Q, SEQ_KV)
            },
            group: 2,
            mask,
            scale_factor: (index % 3 != 2).then_some(0.0),
            softcap: (index % 5 == 4).then_some(2.0),
            modifiers: ModifierSpec {
                bias: of_bias.map(|dtype| (axes[index % 3], dtype)),
                ..modifiers
            },
            ..plain(dtype, Lengths::one(1, 1), head_dim)
        };
        if spec.modifiers == ModifierSpec::default() {
            continue;
        }
        let mut case = spec.build().unwrap();
        case.options.force = Some(Variant::Wgmma);
        let plan = backend.plan(&case.problem().unwrap()).unwrap();
        let kind = of_bias.map_or("_modified", |_| "_biased");
        assert!(plan.kernel_name().ends_with(kind), "{spec}");
        variant_is_right(backend, Variant::Wgmma, &mut case, &spec.to_string());
    }
}

/// Of so few multiprocessors that a block has several tiles.
fn simulated(dtype: DType, head_dim: usize) {
    for (seed, of_bias) in SCHEDULES.into_iter().cycle().zip(OF_BIASES) {
        let device = SimDevice::with_schedule(seed).multiprocessors(2);
        agree(&mut Sim::on(device), dtype, head_dim, of_bias);
    }
}

#[test]
fn sim_bf16_hd64() {
    simulated(DType::Bf16, 64);
}

#[test]
fn sim_bf16_hd128() {
    simulated(DType::Bf16, 128);
}

#[test]
fn sim_bf16_hd256() {
    simulated(DType::Bf16, 256);
}

#[test]
fn sim_f16_hd64() {
    simulated(DType::F16, 64);
}

#[test]
fn sim_f16_hd128() {
    simulated(DType::F16, 128);
}

#[test]
fn sim_f16_hd256() {
    simulated(DType::F16, 256);
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("biases that are copied") {
        for (dtype, head_dim) in [DType::Bf16, DType::F16]
            .into_iter()
            .flat_map(|dtype| [64, 128, 256].map(|dim| (dtype, dim)))
        {
            for of_bias in OF_BIASES {
                agree(&mut gpu, dtype, head_dim, of_bias);
            }
        }
    }
}
