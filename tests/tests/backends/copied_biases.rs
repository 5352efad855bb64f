//! Each option beside biases that Hopper's kernels copy to shared memory, or read, and without any. In most cases the bias alone decides, so that
//! an element of another row or key shows.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{CaseSpec, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::variant_is_right;

use super::hopper_modifiers::{agrees, options};

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
    for (index, spec) in specs(dtype, head_dim, of_bias).into_iter().enumerate() {
        let spec = CaseSpec {
            scale_factor: (index % 3 != 2).then_some(0.0),
            softcap: (index % 5 == 4).then_some(2.0),
            ..spec
        };
        let mut case = spec.build().unwrap();
        case.options.force = Some(Variant::Wgmma);
        let plan = backend.plan(&case.problem().unwrap()).unwrap();
        let kind = of_bias.map_or("_modified", |_| "_biased");
        assert!(plan.kernel_name().ends_with(kind), "{spec}");
        variant_is_right(backend, Variant::Wgmma, &mut case, &spec.to_string());
    }
}

/// As [`agree`], gradients of the fused kernels, every `nth` option: in some, the bias nearly alone decides.
fn gradients_agree<B: Backend>(
    backend: &mut B,
    [dtype, of_bias]: [DType; 2],
    head_dim: usize,
    nth: usize,
) {
    let specs = specs(dtype, head_dim, Some(of_bias)).into_iter();
    for (index, spec) in specs.enumerate().step_by(nth) {
        let spec = CaseSpec {
            scale_factor: (index % 4 == 3).then_some(0.01),
            ..spec
        };
        let names = agrees(backend, spec.build_backward().unwrap(), &spec.to_string());
        let is_it = |of: &&str| of.starts_with("fa_bwd_fused_wgmma") && of.ends_with("_biased");
        assert!(names.iter().any(is_it), "{spec}: {names:?}");
    }
}

/// Each option beside a bias, or alone, on rows of one length or on packed ones, of the two dtypes of q.
fn specs(dtype: DType, head_dim: usize, of_bias: Option<DType>) -> Vec<CaseSpec> {
    let several = vec![(3, 17), (SEQ_Q, SEQ_KV), (0, 5), (128, 320)];
    let axes = [[false; 3], [true, false, false], [true, true, false]];
    let spec = |(index, (mask, modifiers)): (usize, (Mask, ModifierSpec))| {
        let is_packed = (index + usize::from(dtype == DType::F16)).is_multiple_of(2);
        CaseSpec {
            lengths: if is_packed {
                Lengths::Varlen(several.clone())
            } else {
                Lengths::one(SEQ_Q, SEQ_KV)
            },
            group: 2,
            mask,
            modifiers: ModifierSpec {
                bias: of_bias.map(|dtype| (axes[index % 3], dtype)),
                ..modifiers
            },
            ..plain(dtype, Lengths::one(1, 1), head_dim)
        }
    };
    let specs = beside().into_iter().enumerate().map(spec);
    specs
        .filter(|spec| spec.modifiers != ModifierSpec::default())
        .collect()
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

/// Beside f32, which is read, of one option in three.
fn simulated_gradients(dtype: DType, head_dim: usize) {
    let ways = [(DType::F16, 1), (DType::Bf16, 1), (DType::F32, 3)];
    for (seed, (of_bias, nth)) in SCHEDULES.into_iter().cycle().zip(ways) {
        let device = SimDevice::with_schedule(seed).multiprocessors(2);
        gradients_agree(&mut Sim::on(device), [dtype, of_bias], head_dim, nth);
    }
}

#[test]
fn sim_gradients_bf16_hd64() {
    simulated_gradients(DType::Bf16, 64);
}

#[test]
fn sim_gradients_bf16_hd128() {
    simulated_gradients(DType::Bf16, 128);
}

#[test]
fn sim_gradients_f16_hd64() {
    simulated_gradients(DType::F16, 64);
}

#[test]
fn sim_gradients_f16_hd128() {
    simulated_gradients(DType::F16, 128);
}

#[test]
fn gradients_cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients beside biases that are copied") {
        for dtype in [DType::Bf16, DType::F16] {
            for of_bias in DType::ALL {
                for head_dim in [64, 128] {
                    gradients_agree(&mut gpu, [dtype, of_bias], head_dim, 1);
                }
            }
        }
    }
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
