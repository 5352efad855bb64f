//! NaN and infinities in operands of gradients, in rows that some of a block see and others do not: nothing of what is hidden comes
//! through. Of every kernel of f32, which ask blocks for what is not finite, and of those for tensor cores that compute such tiles again.

use std::collections::BTreeSet;

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{CaseSpec, InputKind, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::{is_backward_untouched, is_plan_untouched};
use ferroflash_tests::specs::plain;
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};

fn agrees<B: Backend>(backend: &mut B) {
    // An odd number of rows: what is computed one at a time is at times computed two at a time.
    for (head_dim, sinks) in [64, 128, 256]
        .into_iter()
        .flat_map(|head_dim| [(head_dim, false), (head_dim, true)])
    {
        let modifiers = ModifierSpec {
            sinks,
            ..ModifierSpec::default()
        };
        let spec = CaseSpec {
            mask: Mask::Causal,
            kind: InputKind::NonFinite,
            modifiers,
            ..plain(DType::F32, Lengths::one(71, 71), head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        case.forward.options.force = Some(Variant::Simt);
        let plan = backend.plan(&case.problem().unwrap()).unwrap();
        if is_plan_untouched(&plan) {
            continue;
        }
        let run = case.run(backend).unwrap();
        let wrong = case.check_all(&run).unwrap();
        assert_eq!(wrong, None, "{}: {spec}", plan.kernel_name());
    }
}

/// A key, its value, a query and its d_o that are not finite in any component, which rows within ten of them see: every element of what
/// a thread has is one of a pair that must not show it. With a softcap, whose scores stay finite, keys and queries that each are infinite
/// in one component, which alone is not finite in the gradients.
/// Each kernel once with a softcap and once without: `ran` are those that have been.
fn whole_rows_agree<B: Backend>(backend: &mut B, ran: &mut BTreeSet<(bool, Vec<String>)>) {
    let dtypes = [DType::F16, DType::Bf16];
    let kernels = (dtypes.into_iter()).flat_map(|dtype| [64, 128, 256].map(|d| (dtype, d)));
    for ((dtype, head_dim), softcap) in
        kernels.flat_map(|kernel| [None, Some(1.5)].map(|softcap| (kernel, softcap)))
    {
        let spec = CaseSpec {
            mask: Mask::Window {
                left: Some(10),
                right: Some(10),
            },
            softcap,
            ..plain(dtype, Lengths::one(71, 71), head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        // Each at another place in 16 bytes.
        for place in (0..8).take_while(|_| softcap.is_some()) {
            case.forward
                .k
                .set(0, 0, 40 + place, 9 * place, f32::INFINITY);
            case.forward
                .q
                .set(0, 0, 8 + place, 9 * place, f32::INFINITY);
        }
        for dim in (0..head_dim).take_while(|_| softcap.is_none()) {
            let value = [f32::NAN, f32::INFINITY][dim % 2];
            for (tensor, row) in [
                (&mut case.forward.k, 40),
                (&mut case.forward.v, 40),
                (&mut case.forward.q, 8),
                (&mut case.d_o, 8),
            ] {
                tensor.set(0, 0, row, dim, value);
            }
        }
        case.forward.options.force = Some(Variant::Mma);
        // Without a workspace other kernels compute dq.
        for (deterministic, limit) in [(false, None), (true, None), (true, Some(0))] {
            case.deterministic = deterministic;
            case.workspace_limit_bytes = limit;
            let plan = backend.plan(&case.problem().unwrap()).unwrap();
            let kernels = plan.kernel_names().map(str::to_owned).collect();
            let is_new = ran.insert((softcap.is_some(), kernels));
            if !is_new || is_backward_untouched(backend, &case) {
                continue;
            }
            let run = case.run(backend).unwrap();
            let wrong = case.check_all(&run).unwrap();
            assert_eq!(wrong, None, "{}: {spec}", plan.kernel_name());
        }
    }
}

#[test]
fn sim() {
    for shared_bytes in [SM86_SHARED_BYTES, SM80_SHARED_BYTES] {
        let mut sim = Sim::new();
        sim.limit_shared_bytes(shared_bytes);
        agrees(&mut sim);
    }
}

#[test]
fn sim_whole_rows() {
    let mut ran = BTreeSet::new();
    for shared_bytes in [SM86_SHARED_BYTES, SM80_SHARED_BYTES, SM90_SHARED_BYTES] {
        let mut sim = Sim::new();
        sim.limit_shared_bytes(shared_bytes);
        whole_rows_agree(&mut sim, &mut ran);
    }
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients of what is not finite") {
        agrees(&mut gpu);
        whole_rows_agree(&mut gpu, &mut BTreeSet::new());
    }
}
