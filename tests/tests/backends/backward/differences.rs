//! The oracle itself against differences of the loss, computed from the definition of attention in f64.

use ferroflash::{Cpu, DType, HostTensor, Mask};
use ferroflash_testing::cases::{AlibiSpec, BackwardCase, CaseSpec, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::specs::plain;

/// Of a central difference; its error is of the order of its square.
const STEP: f64 = 1e-4;
/// Error left by f32's o and lse, and by the step.
const TOLERANCE: f64 = 2e-5;

fn spec(mask: Mask, softcap: Option<f32>, alibi: Option<AlibiSpec>) -> CaseSpec {
    CaseSpec {
        group: 2,
        head_dim_v: 4,
        mask,
        scale_factor: Some(-1.3),
        softcap,
        alibi,
        seed: 31, // odd: with d_lse
        ..plain(DType::F32, Lengths::one(5, 7), 3)
    }
}

/// A head of a tensor as rows of f64.
fn rows(tensor: &HostTensor, head: usize) -> Vec<Vec<f64>> {
    let shape = tensor.spec().shape;
    let row = |i| {
        (0..shape.dim)
            .map(|dim| f64::from(tensor.get(0, head, i, dim)))
            .collect()
    };
    (0..shape.seq).map(row).collect()
}

/// q, k and v of one query head, `[row][component]`.
#[derive(Clone)]
struct Inputs([Vec<Vec<f64>>; 3]);

/// `Σ d_o·o + Σ d_lse·lse` of query head `head`.
fn loss(case: &BackwardCase, head: usize, inputs: &Inputs) -> f64 {
    let slopes = case.forward.options.alibi.as_ref();
    let slope = slopes.map_or(0.0, |slopes| slopes.get(0, head));
    loss_with_slope(case, head, inputs, f64::from(slope))
}

/// The same with `slope` in place of the head's.
fn loss_with_slope(
    case: &BackwardCase,
    head: usize,
    Inputs([q, k, v]): &Inputs,
    slope: f64,
) -> f64 {
    let options = &case.forward.options;
    let scale = f64::from(options.softmax_scale.unwrap());
    let corner = k.len() as i64 - q.len() as i64;
    let mut total = 0.0;
    for (i, q_row) in q.iter().enumerate() {
        let diagonal = i as i64 + corner;
        let sees = |j: &usize| options.mask != Mask::Causal || *j as i64 <= diagonal;
        let keys: Vec<usize> = (0..k.len()).filter(sees).collect();
        let score = |&j: &usize| {
            let dot: f64 = q_row.iter().zip(&k[j]).map(|(q, k)| q * k).sum();
            let cap = |x: f64, cap: f64| cap * (x / cap).tanh();
            let score = options
                .softcap
                .map_or(scale * dot, |c| cap(scale * dot, f64::from(c)));
            score - slope * (diagonal - j as i64).abs() as f64
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        let lse = sum.ln();
        for (dim, _) in v[0].iter().enumerate() {
            let terms = keys
                .iter()
                .zip(&scores)
                .map(|(&j, score)| (score - lse).exp() * v[j][dim]);
            total += f64::from(case.d_o.get(0, head, i, dim)) * terms.sum::<f64>();
        }
        total += f64::from(case.d_lse.as_ref().unwrap().get(0, head, i, 0)) * lse;
    }
    total
}

/// The loss's derivative by every element of input number `which` of query head `head`.
fn derivatives(case: &BackwardCase, head: usize, inputs: &Inputs, which: usize) -> Vec<Vec<f64>> {
    let at = |row: usize, dim: usize, step: f64| {
        let mut moved = inputs.clone();
        moved.0[which][row][dim] += step;
        loss(case, head, &moved)
    };
    let tensor = &inputs.0[which];
    let derivative = |row, dim| (at(row, dim, STEP) - at(row, dim, -STEP)) / (2.0 * STEP);
    let of_row = |row| {
        (0..tensor[0].len())
            .map(move |dim| derivative(row, dim))
            .collect()
    };
    (0..tensor.len()).map(of_row).collect()
}

#[test]
fn gradients_are_differences_of_the_loss() {
    let alibi = Some(AlibiSpec {
        steepest: 0.3,
        is_batched: false,
    });
    for (mask, softcap, alibi) in [
        (Mask::None, None, None),
        (Mask::Causal, Some(1.5), None),
        (Mask::Causal, None, alibi),
        (Mask::None, Some(1.5), alibi),
    ] {
        let case = spec(mask, softcap, alibi).build_backward().unwrap();
        let mut run = case.run(&mut Cpu::new()).unwrap();
        let inputs = |head| {
            Inputs([
                rows(&case.forward.q, head),
                rows(&case.forward.k, 0),
                rows(&case.forward.v, 0),
            ])
        };
        // dk and dv are summed over the heads that share k and v.
        let mut shared = [vec![vec![0.0; 3]; 7], vec![vec![0.0; 4]; 7]];
        for head in 0..2 {
            let inputs = inputs(head);
            for (i, row) in derivatives(&case, head, &inputs, 0).iter().enumerate() {
                for (dim, &exact) in row.iter().enumerate() {
                    let got = f64::from(run.dq.get(0, head, i, dim));
                    assert!(
                        (got - exact).abs() < TOLERANCE,
                        "dq {head} {i} {dim}: {got} {exact}"
                    );
                }
            }
            if let Some(found) = &run.d_alibi_slopes {
                let slope = case.forward.options.alibi.as_ref().unwrap().get(0, head);
                let at = |step| loss_with_slope(&case, head, &inputs, f64::from(slope) + step);
                let exact = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                let got = f64::from(found.get(0, head, 0, 0));
                assert!(
                    (got - exact).abs() < TOLERANCE,
                    "slope {head}: {got} {exact}"
                );
            }
            for (which, sum) in shared.iter_mut().enumerate() {
                let of_head = derivatives(&case, head, &inputs, which + 1);
                for (sum, row) in sum.iter_mut().flatten().zip(of_head.iter().flatten()) {
                    *sum += row;
                }
            }
        }
        for (tensor, exact) in [&run.dk, &run.dv].into_iter().zip(&shared) {
            for (j, row) in exact.iter().enumerate() {
                for (dim, &exact) in row.iter().enumerate() {
                    let got = f64::from(tensor.get(0, 0, j, dim));
                    assert!((got - exact).abs() < TOLERANCE, "{j} {dim}: {got} {exact}");
                }
            }
        }
        // The oracle agrees with what agrees with the differences, and with nothing 2⁻⁹ away from it.
        assert!(case.check(&run, Rows::All).unwrap().passed());
        for tensor in [0, 1, 2] {
            let mut wrong = run.clone();
            let of = [&mut wrong.dq, &mut wrong.dk, &mut wrong.dv];
            let tensor = of.into_iter().nth(tensor).unwrap();
            let value = tensor.get(0, 0, 4, 1);
            tensor.set(0, 0, 4, 1, value + value.abs().max(0.5) / 512.0);
            assert!(!case.check(&wrong, Rows::All).unwrap().passed());
        }
        assert_eq!(run.d_alibi_slopes.is_some(), alibi.is_some());
        if alibi.is_some() {
            let mut wrong = run.clone();
            let slopes = wrong.d_alibi_slopes.as_mut().unwrap();
            let value = slopes.get(0, 1, 0, 0);
            slopes.set(0, 1, 0, 0, value + value.abs().max(0.5) / 512.0);
            assert!(!case.check(&wrong, Rows::All).unwrap().passed());
        }
        run.dq.set(0, 1, 4, 2, f32::NAN);
        assert!(!case.check(&run, Rows::All).unwrap().passed());
    }
}
