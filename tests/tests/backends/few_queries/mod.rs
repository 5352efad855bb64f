//! Forward passes of a few queries on many keys, which the decode kernels run: where nobody asks for them, and where they are forced.

mod properties;

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, DType, HostTensor, Indices, KvCache, Mask, Variant, decode};
use ferroflash_testing::cases::{Case, CaseSpec, InputKind, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;

/// Three queries of four heads on `keys` keys.
fn spec(keys: usize) -> CaseSpec {
    CaseSpec {
        group: 4,
        mask: Mask::Causal,
        kind: InputKind::Planted,
        ..plain(DType::Bf16, Lengths::one(3, keys), 64)
    }
}

fn forced(spec: &CaseSpec) -> Case {
    let mut case = spec.build().expect("small");
    case.options.force = Some(Variant::Decode);
    case
}

fn assert_right(case: &Case, (o, lse): &(HostTensor, HostTensor), what: &str) {
    let verdict = case.check(o, lse, Rows::All).expect("checked");
    assert!(verdict.passed(), "{what}: {verdict}");
}

/// The bits of attention to a cache of the same keys, in whatever order blocks run.
#[test]
fn bits_are_those_of_a_cache() {
    let case = forced(&spec(3000));
    let mut results = SCHEDULES.map(|seed| {
        let mut sim = Sim::on(SimDevice::with_schedule(seed));
        let of_forward = case.run(&mut sim).expect("it runs");
        assert_right(&case, &of_forward, "forward");
        assert_eq!(case.run(&mut sim).expect("it runs"), of_forward, "again");
        let memory = sim.memory();
        let tensors = [&case.q, &case.k, &case.v];
        let [q, k, v] = tensors.map(|tensor| tensor.upload(memory).expect("room"));
        let lens = Indices::upload(memory, &[3000], [1, 1]).expect("room");
        let cache = KvCache::contiguous(memory, k, v, lens).expect("it fits");
        let output = decode(&mut sim, &q, &cache, &case.options).expect("it runs");
        let memory = sim.memory();
        let lse = output.lse.expect("it is asked for by default");
        let of_cache = (
            output.o.download(memory).expect("it ran"),
            lse.download(memory).expect("it ran"),
        );
        assert_eq!(of_cache.0.bytes(), of_forward.0.bytes());
        assert_eq!(of_cache.1.bytes(), of_forward.1.bytes());
        of_forward
    });
    let [first, others @ ..] = &mut results;
    assert!(others.iter().all(|other| other == first));
}

/// Rows that see no key, and no keys at all.
#[test]
fn nothing_to_see_is_zero() {
    let nothing = Mask::Band {
        lower: Some(0),
        upper: Some(-1),
    };
    let mut sim = Sim::new();
    for (mask, queries, keys) in [
        (Mask::None, 3, 0),
        (Mask::Causal, 5, 2),
        (nothing, 2, 700),
        (Mask::CAUSAL_TOP_LEFT, 3, 700),
    ] {
        for (sinks, kind) in [
            (false, InputKind::Planted),
            (true, InputKind::Planted),
            // Each query then reads its keys for itself, and those before all keys none.
            (false, InputKind::NonFinite),
        ] {
            let mut spec = CaseSpec {
                lengths: Lengths::one(queries, keys),
                mask,
                kind,
                ..spec(keys)
            };
            spec.modifiers.sinks = sinks;
            let case = forced(&spec);
            let result = case.run(&mut sim).expect("it runs");
            assert_right(&case, &result, &spec.to_string());
        }
    }
}

/// NaN and infinities among keys that another query sees, of another tile: the heads of a group fill each query's own.
#[test]
fn what_other_tiles_see_does_not_leak() {
    let mut sim = Sim::new();
    for (dtype, keys) in [(DType::Bf16, 2), (DType::F16, 150)] {
        let spec = CaseSpec {
            dtype,
            group: 16,
            mask: Mask::Window {
                left: Some(1),
                right: Some(0),
            },
            kind: InputKind::NonFinite,
            ..spec(keys)
        };
        let case = forced(&spec);
        let result = case.run(&mut sim).expect("it runs");
        assert_right(&case, &result, &spec.to_string());
    }
}

/// Hopper's kernels for packed sequences leave a list where decode kernels count who has finished.
#[test]
fn launches_that_count_keep_to_workspaces_of_their_own() {
    let mut sim = Sim::new();
    // Three groups of chunks for each of four heads, the last of which is counted where a list has a length.
    let few = forced(&CaseSpec {
        lengths: Lengths::Dense {
            batch: 2,
            seq_q: 3,
            seq_kv: 2100,
        },
        heads_kv: 2,
        group: 2,
        head_dim: 256,
        head_dim_v: 256,
        mask: Mask::Window {
            left: Some(1080),
            right: Some(0),
        },
        ..spec(2100)
    });
    let packed = CaseSpec {
        lengths: Lengths::Varlen(vec![(3, 40); 10]),
        ..spec(40)
    };
    let mut packed = packed.build().expect("small");
    packed.options.force = Some(Variant::Wgmma);
    let [first, between, again] =
        [&few, &packed, &few].map(|case| case.run(&mut sim).expect("it runs"));
    assert_right(&few, &first, "before");
    assert_right(&packed, &between, "between");
    assert_eq!(again, first);
}
