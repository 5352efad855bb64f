//! `ferroflash attend --backward`.

use ferroflash::{
    Backend, BackwardOptions, Cpu, ForwardOptions, HostTensor, Layout, Mask, Shape, backward,
    forward,
};
use ferroflash_tests::files::{self, Dtype, Tensor, f32s};
use ferroflash_tests::folder::{Folder, K, Q, V, packed_tensors, tensors};

/// Shape of o and d_o of [`tensors`].
const O: [usize; 4] = [2, 5, 4, 8];
/// The gradients, and the operands whose shapes they have.
const GRADIENTS: [(&str, [usize; 4]); 3] = [("dq", Q), ("dk", K), ("dv", V)];

/// q, k, v and d_o that fit together, in bshd.
fn with_d_o(dtype: Dtype) -> Vec<Tensor> {
    [("q", Q), ("k", K), ("v", V), ("d_o", O)]
        .map(|(name, shape)| Tensor::new(name, dtype, &shape))
        .to_vec()
}

/// The library's own gradients of f32 tensors, as [`GRADIENTS`].
fn of_library(tensors: &[Tensor], options: &ForwardOptions) -> [Vec<f32>; 3] {
    let mut cpu = Cpu::new();
    let mut upload = |tensor: &Tensor| {
        let &[batch, seq, heads, dim] = tensor.shape.as_slice() else {
            panic!("rank 4");
        };
        let shape = Shape {
            batch,
            heads,
            seq,
            dim,
        };
        let host = HostTensor::from_f32(&f32s(tensor), shape, Layout::Bshd);
        host.expect("whole").upload(cpu.memory()).expect("small")
    };
    let [q, k, v, d_o] = [0, 1, 2, 3].map(|index| upload(&tensors[index]));
    let output = forward(&mut cpu, &q, &k, &v, options).expect("it runs");
    let options = BackwardOptions::of(options);
    let gradients = backward(&mut cpu, &q, &k, &v, &output, &d_o, &options).expect("it runs");
    [gradients.dq, gradients.dk, gradients.dv].map(|gradient| {
        let gradient = gradient.download(cpu.memory()).expect("it ran");
        gradient.to_f32(Layout::Bshd)
    })
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn gradients_are_the_librarys() {
    let tensors = with_d_o(Dtype::F32);
    let folder = Folder::with(&tensors);
    let expected = of_library(&tensors, &ForwardOptions::new().mask(Mask::Causal));
    for (backend, allowed) in [("cpu", 0.0), ("sim", 2e-6)] {
        for options in [&["--backward"][..], &["--backward", "--deterministic"]] {
            let arguments = ["--mask", "causal", "--backend", backend];
            let arguments: Vec<_> = arguments.iter().chain(options).copied().collect();
            let outcome = folder.attend(&arguments);
            let said = outcome.stderr.clone();
            outcome.succeeded();
            assert!(said.contains("fa_bwd_"), "{said}");
            for ((name, shape), expected) in GRADIENTS.into_iter().zip(&expected) {
                let found = files::read(&folder.output(), name);
                assert_eq!(found.shape, shape);
                let off = largest_difference(&f32s(&found), expected);
                assert!(off <= allowed, "{backend} {name}: {off}");
            }
        }
    }
}

#[test]
fn gradients_have_the_files_dtype_and_layout() {
    for dtype in [Dtype::F16, Dtype::BF16] {
        let folder = Folder::with(&with_d_o(dtype));
        for arguments in [&["--backward"][..], &["--backward", "--dtype", "f32"]] {
            folder.attend(arguments).succeeded();
            for (name, shape) in GRADIENTS {
                let found = files::read(&folder.output(), name);
                assert_eq!((found.dtype, found.shape.as_slice()), (dtype, &shape[..]));
            }
        }
    }
    // One head and one row each: both layouts are the same bytes.
    let small = [("q", 16), ("k", 16), ("v", 8), ("d_o", 8)];
    let small = |[x, y]: [usize; 2]| {
        small.map(|(name, dim)| Tensor::new(name, Dtype::F32, &[2, x, y, dim]))
    };
    let (bshd, bhsd) = (Folder::with(&small([5, 1])), Folder::with(&small([1, 5])));
    bshd.attend(&["--backward"]).succeeded();
    bhsd.attend(&["--backward", "--layout", "bhsd"]).succeeded();
    for (name, _) in GRADIENTS {
        let [a, b] = [&bshd, &bhsd].map(|folder| files::read(&folder.output(), name));
        assert_eq!(a.bytes, b.bytes);
        assert_eq!([a.shape[1], a.shape[2]], [b.shape[2], b.shape[1]]);
    }
}

#[test]
fn packed_gradients_have_the_shapes_of_their_operands() {
    let mut tensors = packed_tensors();
    tensors.push(Tensor::new("d_o", Dtype::F32, &[5, 4, 8]));
    let folder = Folder::with(&tensors);
    folder.attend(&["--backward"]).succeeded();
    for (name, tensor) in ["dq", "dk", "dv"].into_iter().zip(&tensors) {
        let found = files::read(&folder.output(), name);
        assert_eq!(found.shape, tensor.shape);
        assert!(f32s(&found).iter().any(|&value| value != 0.0));
    }
}

/// Slopes of heads, or of batch entries and heads, that go with [`with_d_o`].
fn with_slopes(shape: &[usize]) -> Vec<Tensor> {
    let mut tensors = with_d_o(Dtype::F32);
    tensors.push(Tensor::new("alibi_slopes", Dtype::F32, shape));
    tensors
}

#[test]
fn slopes_have_a_gradient_of_their_shape() {
    const ALL: [&str; 3] = ["--alibi", "--backward", "--alibi-gradient"];
    for shape in [&[4][..], &[2, 4]] {
        let folder = Folder::with(&with_slopes(shape));
        let mut results = Vec::new();
        for backend in ["cpu", "sim"] {
            let arguments: Vec<_> = ALL.into_iter().chain(["--backend", backend]).collect();
            folder.attend(&arguments).succeeded();
            let found = files::read(&folder.output(), "d_alibi_slopes");
            assert_eq!((found.dtype, found.shape.as_slice()), (Dtype::F32, shape));
            assert!(f32s(&found).iter().all(|&value| value != 0.0));
            results.push(f32s(&found));
        }
        let off = largest_difference(&results[0], &results[1]);
        assert!(off <= 1e-5, "{shape:?}: {off}");
        folder.attend(&["--alibi", "--backward"]).succeeded();
        assert!(!files::names(&folder.output()).contains(&"d_alibi_slopes".to_owned()));
    }
    let folder = Folder::with(&with_slopes(&[4]));
    for arguments in [
        &["--alibi", "--alibi-gradient"][..],
        &["--backward", "--alibi-gradient"],
    ] {
        let (argument, rest) = folder.refused(arguments);
        assert!(ALL.contains(&argument.as_str()), "{argument}: {rest}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |tensors: &[Tensor], arguments: &[&str]| Folder::with(tensors).refused(arguments);
    let (argument, rest) = refused(&tensors(), &["--backward"]);
    assert_eq!(argument, "d_o");
    assert!(rest.contains("the file has no such tensor"), "{rest}");

    let (argument, rest) = refused(&with_d_o(Dtype::F32), &[]);
    assert_eq!(argument, "d_o");
    assert!(rest.contains("--backward is not given"), "{rest}");

    for (dtype, shape) in [
        (Dtype::F16, &O[..]),
        (Dtype::F32, &[2, 5, 4, 16]),
        (Dtype::F32, &[2, 4, 5, 8]),
        (Dtype::F32, &[5, 4, 8]),
        (Dtype::I32, &O),
    ] {
        let mut tensors = tensors();
        tensors.push(Tensor::new("d_o", dtype, shape));
        let (argument, rest) = refused(&tensors, &["--backward"]);
        assert_eq!(argument, "d_o", "{rest}");
    }
    let (argument, _) = refused(&tensors(), &["--deterministic"]);
    assert_eq!(argument, "--backward");
}
