//! Few queries: where decode kernels run them, and what these refuse.

use ferroflash::plan::{eligible, preferred, why_not};
use ferroflash::{
    AlibiSlopes, BackwardOptions, CacheLayout, Capabilities, DType, DeviceLengths, Dropout,
    ForwardOptions, Layout, Mask, Plan, Problem, Shape, Sinks, TensorSpec, Variant,
};

use super::packed::packed;
use super::{HOPPER, SINCE_AMPERE, planned, problem};

/// Operands of few queries and many keys.
#[derive(Clone, Copy, Debug)]
struct Few {
    batch: usize,
    heads_kv: usize,
    group: usize,
    seq_q: usize,
    seq_kv: usize,
    head_dim: usize,
}

/// One query on 8192 keys, 64 heads on 8.
const FEW: Few = Few {
    batch: 1,
    heads_kv: 8,
    group: 8,
    seq_q: 1,
    seq_kv: 8192,
    head_dim: 128,
};

impl Few {
    fn problem(&self, dtype: DType, options: &ForwardOptions) -> Problem {
        let spec = |heads, seq| {
            let shape = Shape {
                batch: self.batch,
                heads,
                seq,
                dim: self.head_dim,
            };
            TensorSpec::contiguous(dtype, shape, Layout::Bshd).expect("small")
        };
        let (q, kv) = (
            spec(self.heads_kv * self.group, self.seq_q),
            spec(self.heads_kv, self.seq_kv),
        );
        Problem::with_dense_output(q, kv, kv, options).expect("valid")
    }

    /// The variant that runs it in bf16.
    fn variant(&self, here: &Capabilities, options: &ForwardOptions) -> Variant {
        let problem = self.problem(DType::Bf16, options);
        let plan = Plan::new(&problem, here).expect("eligible");
        assert_eq!(preferred(&problem, here), Some(plan.variant()));
        assert_eq!(
            eligible(&problem, here).first().copied(),
            Some(plan.variant())
        );
        plan.variant()
    }
}

/// By what `bench/results/decode-log.md` says of both, and by the sizes at which both take as long.
#[test]
fn few_queries_on_many_keys_are_decoded() {
    let plain = ForwardOptions::new();
    let on_hopper = |few: Few| few.variant(&HOPPER, &plain);
    for few in [
        FEW,
        Few {
            seq_kv: 131_072,
            ..FEW
        },
        Few {
            seq_q: 8,
            seq_kv: 131_072,
            ..FEW
        },
        Few {
            seq_kv: 2048,
            ..FEW
        },
        Few { batch: 4, ..FEW },
        Few {
            head_dim: 64,
            ..FEW
        },
        Few {
            group: 1,
            seq_q: 64,
            heads_kv: 2,
            ..FEW
        },
    ] {
        assert_eq!(on_hopper(few), Variant::Decode, "{few:?}");
    }
    for few in [
        Few {
            seq_kv: 1024,
            ..FEW
        },
        Few { batch: 8, ..FEW },
        Few { batch: 64, ..FEW },
        Few { seq_q: 9, ..FEW },
        Few {
            group: 65,
            heads_kv: 1,
            ..FEW
        },
        Few { seq_q: 0, ..FEW },
    ] {
        assert_eq!(on_hopper(few), Variant::Wgmma, "{few:?}");
    }
    // Where Hopper's kernels are none, a tile of few rows is as slow as one of many, and each head has its own.
    let ampere = Capabilities::Gpu(SINCE_AMPERE[0]);
    for few in [
        FEW,
        Few {
            seq_kv: 1024,
            ..FEW
        },
        Few { batch: 64, ..FEW },
    ] {
        assert_eq!(few.variant(&ampere, &plain), Variant::Decode, "{few:?}");
    }
    let one_head = Few { group: 1, ..FEW };
    for few in [
        Few {
            seq_kv: 256,
            ..one_head
        },
        Few {
            batch: 64,
            ..one_head
        },
        Few { seq_q: 9, ..FEW },
        Few { seq_kv: 0, ..FEW },
    ] {
        assert_eq!(few.variant(&ampere, &plain), Variant::Mma, "{few:?}");
    }
}

#[test]
fn options_decide_whether_few_queries_are_decoded() {
    let few = Few {
        seq_kv: 65_536,
        ..FEW
    };
    let options = ForwardOptions::new;
    let window = |left| Mask::Window {
        left: Some(left),
        right: Some(0),
    };
    let slopes = AlibiSlopes::geometric(64).expect("some heads");
    let sinks = Sinks::per_head(&[0.5; 64]).expect("some heads");
    for options in [
        options().mask(Mask::Causal).softcap(20.0),
        options().mask(window(4095)),
        options().alibi(slopes),
        options().sinks(sinks.clone()),
        options().lengths(DeviceLengths::seqused_kv()),
        options().force(Variant::Decode),
    ] {
        assert_eq!(few.variant(&HOPPER, &options), Variant::Decode);
    }
    let dropout = Dropout::new(0.5, 1).expect("a rate");
    for options in [
        options().mask(window(127)),
        options().dropout(dropout),
        options().sinks(sinks).chunk(9),
        options().force(Variant::Wgmma),
    ] {
        let problem = few.problem(DType::Bf16, &options);
        assert_eq!(planned(&problem, &HOPPER), Some(Variant::Wgmma));
    }
    let forced = options().force(Variant::Mma);
    let plan = Plan::new(&few.problem(DType::Bf16, &forced), &HOPPER).expect("eligible");
    assert_eq!(plan.kernel_name(), "fa_fwd_mma_sm80_bf16_hd128");
    let f32 = few.problem(DType::F32, &options());
    assert_eq!(planned(&f32, &HOPPER), Some(Variant::Mma));
    let cpu = few.problem(DType::Bf16, &options());
    assert_eq!(planned(&cpu, &Capabilities::Cpu), Some(Variant::Tiled));
}

#[test]
fn what_decode_kernels_cannot_do_is_refused_by_name() {
    let reason = |problem: &Problem, here| why_not(Variant::Decode, problem, here);
    let expected = |words: &str| Some(words.to_owned());
    let f32 = problem(DType::F32, 64, None);
    assert_eq!(reason(&f32, &HOPPER), expected("it has no f32 kernel"));
    assert_eq!(
        reason(&packed(DType::Bf16, 64, None), &HOPPER),
        expected("it has no kernel for packed sequences without a cache")
    );
    let half = problem(DType::F16, 64, None);
    assert_eq!(reason(&half, &HOPPER), None);
    assert_eq!(
        reason(&half, &Capabilities::Cpu),
        expected("it runs on the cuda and sim backends")
    );
    let many_rows = Few {
        heads_kv: 1,
        group: 256,
        seq_q: 1 << 24,
        seq_kv: 9,
        head_dim: 1,
        ..FEW
    };
    assert_eq!(
        reason(
            &many_rows.problem(DType::F16, &ForwardOptions::new()),
            &HOPPER
        ),
        expected("its items of work are more than it can number")
    );
    let options = ForwardOptions::new().chunk(9);
    assert_eq!(
        reason(&FEW.problem(DType::F16, &options), &HOPPER),
        expected("it has no kernel with modifiers (masks, biases, sinks, dropout)")
    );
    let spec = *half.q();
    let options = BackwardOptions::default();
    let backward = Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options);
    assert_eq!(
        reason(&backward.expect("valid"), &HOPPER),
        expected("it has no kernel for gradients")
    );
    let layout = CacheLayout::Contiguous;
    let cached = Problem::decode(spec, spec, spec, spec, layout, &ForwardOptions::new());
    let cached = cached.expect("valid");
    assert_eq!(
        eligible(&cached, &HOPPER),
        [Variant::Decode, Variant::Wgmma]
    );
    assert_eq!(
        why_not(Variant::Mma, &cached, &HOPPER),
        expected("it has no f16 kernel for a cache")
    );
}
