//! `attend` on a file with a paged cache.

use ferroflash_tests::command::{Outcome, attend};
use ferroflash_tests::files::{self, Dtype, Tensor, f32s};
use tempfile::TempDir;

/// Keys of sequence 0, in pages 3, 0 and 2, of two each; sequence 1 has 2 in page 1. Page 4, and the rest of page 2, are nobody's.
const KEYS: usize = 5;
const PLACES: [usize; KEYS] = [6, 7, 0, 1, 4];
const NOBODYS: [usize; 3] = [5, 8, 9];
const HEADS_KV: usize = 2;
const HEAD_DIM: usize = 8;

fn table() -> Tensor {
    Tensor {
        shape: vec![2, 3],
        ..Tensor::of_i32s("block_table", &[3, 0, 2, 1, -1, 99])
    }
}

fn kv_lens() -> Tensor {
    Tensor::of_i32s("kv_lens", &[KEYS as i32, 2])
}

fn q() -> Tensor {
    Tensor::new("q", Dtype::F32, &[2, 1, 4, HEAD_DIM])
}

/// Runs `attend` with `options` on a file of these tensors.
fn outcome(tensors: &[Tensor], options: &[&str]) -> (Outcome, Option<Vec<f32>>) {
    let dir = TempDir::new().expect("a temporary folder");
    let [input, output] = ["in", "out"].map(|name| dir.path().join(name));
    files::write(&input, tensors);
    let options = [&["--mask", "causal", "--backend", "cpu"], options].concat();
    let outcome = attend(&input, &output, &options);
    let o = output.exists().then(|| f32s(&files::read(&output, "o")));
    (outcome, o)
}

#[track_caller]
fn attended(tensors: &[Tensor], kernel: &str, options: &[&str]) -> Vec<f32> {
    let (outcome, o) = outcome(tensors, options);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(kernel), "{}", outcome.stderr);
    o.expect("it is written")
}

/// What sequence 0 gives as a dense problem, of pages `[page, place, head, component]` of k and v.
fn expected(pages: [&[f32]; 2]) -> Vec<f32> {
    let row = HEADS_KV * HEAD_DIM;
    let gathered = |name, values: &[f32]| {
        let rows = PLACES.map(|place| &values[place * row..(place + 1) * row]);
        Tensor::of_f32s(name, &rows.concat(), &[1, KEYS, HEADS_KV, HEAD_DIM])
    };
    let q = q();
    let of_first = Tensor {
        shape: vec![1, 1, 4, HEAD_DIM],
        bytes: q.bytes[..q.bytes.len() / 2].to_vec(),
        ..q
    };
    let [k, v] = pages;
    attended(
        &[of_first, gathered("k", k), gathered("v", v)],
        "fa_fwd_cpu_f32_tiled",
        &[],
    )
}

#[test]
fn pages_are_those_of_the_table() {
    let shape = [5, 2, HEADS_KV, HEAD_DIM];
    let pages = ["k", "v"].map(|name| {
        let mut values = f32s(&Tensor::new(name, Dtype::F32, &shape));
        let rows = values.chunks_exact_mut(HEADS_KV * HEAD_DIM).enumerate();
        for (_, row) in rows.filter(|(place, _)| NOBODYS.contains(place)) {
            row.fill(f32::NAN);
        }
        values
    });
    let [k, v] = &pages;
    let expected = expected([k, v]);
    let tensors = [("k", k), ("v", v)].map(|(name, values)| Tensor::of_f32s(name, values, &shape));
    let mut tensors = [&[q(), table(), kv_lens()], tensors.as_slice()].concat();
    let bshd = attended(&tensors, "fa_decode_cpu_f32_tiled", &[]);
    assert_eq!(bshd[..expected.len()], expected);
    assert!(bshd.iter().all(|value| value.is_finite()));

    // The same numbers in the other order of axes; that of one query's heads is alike in both.
    tensors[0].shape = vec![2, 4, 1, HEAD_DIM];
    for (tensor, values) in tensors[3..].iter_mut().zip(&pages) {
        let pages = values.chunks_exact(2 * HEADS_KV * HEAD_DIM);
        let swapped = pages.flat_map(|page| {
            let rows: Vec<_> = page.chunks_exact(HEAD_DIM).collect();
            [rows[0], rows[2], rows[1], rows[3]].concat()
        });
        let swapped: Vec<_> = swapped.collect();
        *tensor = Tensor::of_f32s(tensor.name, &swapped, &shape);
    }
    let bhsd = attended(&tensors, "fa_decode_cpu_f32_tiled", &["--layout", "bhsd"]);
    assert_eq!(bhsd, bshd);
}

/// Of e4m3, by its definition: a sign, four bits of exponent, three of the significand.
fn number(code: u8) -> f32 {
    let (exponent, significand) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => significand / 8.0 * 2f32.powi(-6),
        _ => (1.0 + significand / 8.0) * 2f32.powi(exponent - 7),
    };
    if code >> 7 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

/// Codes of numbers below 4, all of them different from their neighbours'.
fn codes(name: &'static str) -> Tensor {
    let shape = [5, 2, HEADS_KV, HEAD_DIM];
    let code = |index: usize| (index * 37 % 0x48) as u8 | (index as u8 & 1) << 7;
    Tensor {
        bytes: (0..shape.iter().product()).map(code).collect(),
        ..Tensor::new(name, Dtype::F8_E4M3, &shape)
    }
}

fn cached(scales: &[Tensor]) -> Vec<Tensor> {
    let cache = [q(), codes("k"), codes("v"), table(), kv_lens()];
    [&cache, scales].concat()
}

#[test]
fn codes_are_multiplied_with_scales() {
    let by_head = [0.5, 2.0];
    let by_key: Vec<f32> = (0..20).map(|index| 0.25 + index as f32 / 16.0).collect();
    let of = |scale: &dyn Fn(usize, usize) -> f32| {
        let values = codes("k").bytes.into_iter().enumerate();
        let value = |(index, code)| {
            let row = index / HEAD_DIM;
            number(code) * scale(row / HEADS_KV, row % HEADS_KV)
        };
        values.map(value).collect::<Vec<f32>>()
    };
    let one = Tensor::of_f32s("v_scales", &[3.0], &[]);
    for (k_scales, k) in [
        (
            Tensor::of_f32s("k_scales", &by_head, &[2]),
            of(&|_, head| by_head[head]),
        ),
        (
            Tensor::of_f32s("k_scales", &by_key, &[5, 2, 2]),
            of(&|place, head| by_key[place * HEADS_KV + head]),
        ),
        (
            Tensor::of_f32s("k_scales", &by_key[..5], &[5, 1, 1]),
            of(&|place, _| by_key[place / 2]),
        ),
    ] {
        let found = attended(&cached(&[k_scales, one.clone()]), "fa_decode_cpu", &[]);
        let expected = expected([&k, &of(&|_, _| 3.0)]);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
        }
    }
    let found = attended(&cached(&[]), "fa_decode_cpu", &[]);
    let plain = of(&|_, _| 1.0);
    let expected = expected([&plain, &plain]);
    assert!((found[0] - expected[0]).abs() < 1e-5);
}

/// Words by which the query of sequence 0 sees no draft, its own key: it sees what the same query sees of a shorter cache.
#[test]
fn a_tree_hides_drafts() {
    let hidden = |words: &[i64], shape: &[usize]| {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        Tensor {
            bytes: bytes.collect(),
            ..Tensor::new("tree_mask", Dtype::I64, shape)
        }
    };
    let with = |tree: Tensor| attended(&cached(&[tree]), "fa_decode_cpu", &[]);
    let whole = attended(&cached(&[]), "fa_decode_cpu", &[]);
    let mut shorter = cached(&[]);
    shorter[4] = Tensor::of_i32s("kv_lens", &[KEYS as i32 - 1, 1]);
    let shorter = attended(&shorter, "fa_decode_cpu", &[]);
    let half = whole.len() / 2;
    let differ = |a: &[f32], b: &[f32]| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-5);
    assert!(differ(&whole[..half], &shorter[..half]) && differ(&whole[half..], &shorter[half..]));
    assert!(!differ(&with(hidden(&[1], &[1])), &whole));
    assert!(!differ(&with(hidden(&[0], &[1])), &shorter));
    let both = with(hidden(&[-2, -1], &[2, 1]));
    assert!(!differ(&both[..half], &shorter[..half]));
    assert!(!differ(&both[half..], &whole[half..]));
    for (tree, wrong) in [
        (hidden(&[1, 1], &[2]), "tree_mask: it is for 2 queries"),
        (hidden(&[1; 3], &[3, 1]), "tree_mask: it is for 3 sequences"),
        (
            hidden(&[1], &[1, 1, 1]),
            "tree_mask: its shape is [1, 1, 1]",
        ),
        (
            Tensor::of_i32s("tree_mask", &[1]),
            "tree_mask: its dtype is I32",
        ),
    ] {
        let (outcome, _) = outcome(&cached(&[tree]), &[]);
        assert_eq!(outcome.code, Some(2), "{wrong}: {}", outcome.stderr);
        let stderr = &outcome.stderr;
        assert!(stderr.contains(wrong), "{wrong}: {stderr}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let scales =
        |name, shape: &[usize]| Tensor::of_f32s(name, &vec![1.0; shape.iter().product()], shape);
    let both = |shape: &[usize]| cached(&[scales("k_scales", shape), scales("v_scales", shape)]);
    let without_cache = vec![
        Tensor::new("q", Dtype::F32, &[1, 1, 4, 8]),
        Tensor::new("k", Dtype::F32, &[1, 2, 2, 8]),
        Tensor::new("v", Dtype::F32, &[1, 2, 2, 8]),
    ];
    let with_scales = [without_cache.clone(), vec![scales("k_scales", &[2])]].concat();
    let mut dense_codes = without_cache;
    dense_codes[1] = Tensor::new("k", Dtype::F8_E4M3, &[1, 2, 2, 8]);
    for (tensors, wrong) in [
        (with_scales, "k_scales: the file has scales, and no cache"),
        (dense_codes, "k: its dtype is F8_E4M3"),
        (
            cached(&[scales("k_scales", &[2])]),
            "v_scales: the file has no such tensor",
        ),
        (both(&[2, 2]), "k_scales: its shape is [2, 2], of rank 2"),
        (both(&[3]), "k_scales: "),
        (both(&[5, 2, 4]), "k_scales: "),
        (
            vec![
                q(),
                codes("k"),
                Tensor::new("v", Dtype::F32, &[5, 2, 2, 8]),
                table(),
                kv_lens(),
            ],
            "k: ",
        ),
    ] {
        let (outcome, o) = outcome(&tensors, &[]);
        assert_eq!(outcome.code, Some(2), "{wrong}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(wrong),
            "{wrong}: {}",
            outcome.stderr
        );
        assert_eq!(o, None, "{wrong}");
    }
}
