//! Dropout in backward kernels that add dq up, which find a keep mask in the workspace: of all heads at once, or in parts.

use ferroflash::backend::sim::Sim;
use ferroflash::plan::eligible;
use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{BackwardCase, CaseSpec, InputKind, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_backward_untouched;
use ferroflash_tests::specs::plain;

/// The kernel that makes a mask.
const MAKER: &str = "fa_keep_mask_simt_sm80";
/// More bytes of workspace than any case needs.
const MUCH: usize = 1 << 30;
/// Heads of k and v, of all batch entries.
const UNITS: usize = 4;

/// What hides pairs, and lengths: tiles and blocks that end in the middle, some of which are not taken.
fn cases() -> Vec<(Lengths, Mask, ModifierSpec)> {
    let dense = |seq_q, seq_kv| Lengths::Dense {
        batch: 2,
        seq_q,
        seq_kv,
    };
    let window = Mask::Window {
        left: Some(40),
        right: Some(10),
    };
    let none = ModifierSpec {
        dropout: Some(0.3),
        ..ModifierSpec::default()
    };
    let documents = ModifierSpec {
        documents: Some((61, true)),
        ..none
    };
    let packed = Lengths::Varlen(vec![(200, 40), (30, 180)]);
    vec![
        (dense(150, 300), Mask::None, none),
        (dense(150, 300), Mask::Causal, none),
        (dense(140, 290), window, none),
        (dense(200, 290), Mask::Causal, documents),
        (packed, Mask::Causal, none),
    ]
}

/// How often a mask is made with at most `limit_bytes` of workspace, and whether dq is added up.
fn masks_made<B: Backend>(
    backend: &B,
    case: &mut BackwardCase,
    limit_bytes: usize,
) -> (usize, bool) {
    case.workspace_limit_bytes = Some(limit_bytes);
    let plan = backend.plan(&case.problem().unwrap()).unwrap();
    let names: Vec<_> = plan.kernel_names().collect();
    let made = names.iter().filter(|name| **name == MAKER).count();
    (
        made,
        names.iter().any(|name| name.starts_with("fa_bwd_fused")),
    )
}

/// The least workspace with which dq is added up.
fn least_bytes<B: Backend>(backend: &B, case: &mut BackwardCase) -> usize {
    let (mut too_few, mut enough) = (0, MUCH);
    while enough - too_few > 1 {
        let limit = (too_few + enough) / 2;
        match masks_made(backend, case, limit).1 {
            true => enough = limit,
            false => too_few = limit,
        }
    }
    enough
}

fn parts_agree<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    for (lengths, mask, modifiers) in cases() {
        let spec = CaseSpec {
            heads_kv: 2,
            group: 2,
            mask,
            modifiers,
            kind: InputKind::Low,
            ..plain(dtype, lengths, head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        let variants = eligible(&case.problem().unwrap(), &backend.capabilities());
        for variant in variants {
            if ![Variant::Mma, Variant::Wgmma].contains(&variant) {
                continue;
            }
            case.forward.options.force = Some(variant);
            let least = least_bytes(backend, &mut case);
            for (limit, made) in [(MUCH, 1), (least, UNITS), (least - 1, 0)] {
                let of = (made, made > 0);
                assert_eq!(masks_made(backend, &mut case, limit), of, "{spec}");
                if !is_backward_untouched(backend, &case) {
                    let run = case.run(backend).unwrap();
                    let wrong = case.check_all(&run).unwrap();
                    assert_eq!(wrong, None, "{variant}, {made} masks: {spec}");
                }
            }
        }
    }
}

#[test]
fn parts_agree_in_the_simulator() {
    for (dtype, head_dim) in [(DType::Bf16, 40), (DType::F16, 128), (DType::Bf16, 256)] {
        parts_agree(&mut Sim::new(), dtype, head_dim);
    }
}

#[test]
fn parts_agree_on_a_gpu() {
    let Some(mut gpu) = gpu_or_not_run("keep masks in parts") else {
        return;
    };
    for dtype in [DType::Bf16, DType::F16] {
        for head_dim in [40, 64, 128, 256] {
            parts_agree(&mut gpu, dtype, head_dim);
        }
    }
}
