//! The same inputs give the same bits, every time.

use ferroflash::plan::eligible;
use ferroflash::{Backend, Cpu, HostTensor, Mask, forward};
use ferroflash_testing::cases::{AlibiSpec, CaseSpec, Lengths, dtypes_of};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;

/// (seq_q, seq_kv), those that FlashAttention's race test uses.
const SEQS: [(usize, usize); 7] = [
    (1, 239),
    (239, 1),
    (3, 799),
    (799, 3),
    (97, 97),
    (257, 257),
    (1024, 1024),
];

/// Rows of a head that a batch has at most: tiles for every multiprocessor of a GPU twice over. More would only take
/// longer to compare.
const ROWS: usize = 8192;

/// Runs each shape `repeats` times, dense and packed, `batch` of them if they are short.
fn repeats<B: Backend>(mut backend: B, batch: usize, repeats: usize) {
    for dtype in dtypes_of(&backend).expect("the backend runs something") {
        for (number, (seq_q, seq_kv)) in SEQS.into_iter().enumerate() {
            let dense = Lengths::Dense {
                batch: batch.min(ROWS / seq_q),
                seq_q,
                seq_kv,
            };
            let packed = dense.made_uneven(number as u64);
            for (lengths, alibi) in [(dense, None), (packed, Some(SLOPES))] {
                let spec = CaseSpec {
                    heads_kv: 2,
                    group: 2,
                    head_dim_v: 64,
                    mask: [Mask::None, Mask::Causal][number % 2],
                    alibi,
                    seed: number as u64,
                    ..plain(dtype, lengths, [32, 64, 96, 128, 256][number % 5])
                };
                repeats_of(&mut backend, &spec, repeats);
            }
        }
    }
}

const SLOPES: AlibiSpec = AlibiSpec {
    steepest: 0.5,
    is_batched: false,
};

fn repeats_of<B: Backend>(backend: &mut B, spec: &CaseSpec, repeats: usize) {
    let mut case = spec.build().expect("small");
    let tensors = [&case.q, &case.k, &case.v];
    let [q, k, v] = tensors.map(|t| t.upload(backend.memory()).expect("there is memory"));
    let problem = case.problem().expect("valid");
    for variant in eligible(&problem, &backend.capabilities()) {
        case.options.force = Some(variant);
        let mut run = || -> (HostTensor, HostTensor) {
            let output = forward(backend, &q, &k, &v, &case.options).expect("it runs");
            let memory = backend.memory();
            let o = output.o.download(memory).expect("it ran");
            let lse = output.lse.expect("it is asked for by default");
            (o, lse.download(memory).expect("it ran"))
        };
        let first = run();
        for repeat in 1..repeats {
            let again = run();
            assert!(again == first, "{variant}, {spec}: repeat {repeat} differs");
        }
    }
}

#[test]
fn cpu() {
    repeats(Cpu::new(), 2, 5);
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("determinism") {
        repeats(gpu, 30, 1000);
    }
}
